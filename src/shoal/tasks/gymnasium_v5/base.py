"""What Gymnasium's MuJoCo tasks share: models, actions, observations by parts, noise at the beginning, and health.

A task declares numbers and launches the kernels of its reward; `shoal.tasks.gymnasium_v5.tasks` has them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import warp as wp

from shoal.sim.mujoco_task import MujocoTask
from shoal.tasks.gymnasium_v5 import kernels
from shoal.tasks.gymnasium_v5.config import GymnasiumConfig
from shoal.tasks.gymnasium_v5.models import load_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mujoco

ConfigT = TypeVar("ConfigT", bound=GymnasiumConfig)


@dataclass(frozen=True, slots=True)
class Part:
    """Columns of the observation: numbers of one field of `MjData`, in its order."""

    field: str
    """Name of the field."""
    first: int = 0
    """The first number that is shown."""
    count: int | None = None
    """How many are shown; None for all that follow."""
    limit: float = math.inf
    """What they are clipped to."""
    how: int = kernels.AS_IT_IS
    """How they are shown, see `shoal.tasks.gymnasium_v5.kernels`."""


class GymnasiumTask(MujocoTask[ConfigT], Generic[ConfigT]):
    """A task with a model of Gymnasium's."""

    reward_per_step = True
    file: ClassVar[str]
    """The model, among Gymnasium's assets."""
    speed_noise_is_normal: ClassVar[bool] = False
    """Whether first speeds are drawn from a normal distribution, and not evenly."""

    @classmethod
    def build_model(cls, config: ConfigT) -> mujoco.MjModel:
        """Return Gymnasium's model, with Newton in the place of a solver that MuJoCo Warp does not have."""
        return load_model(cls.file, config.engine)

    def layout(self) -> Sequence[Part]:
        """Return the parts of the observation, in order: positions and speeds, as they are."""
        return (Part("qpos"), Part("qvel"))

    def healthy_ranges(self) -> dict[int, tuple[float, float]]:
        """Return ranges that numbers of the state must be inside, by index among positions and then speeds."""
        return {}

    def allocate(self) -> None:
        """Ask for fields, and bring numbers into the form that kernels take."""
        model = self.model
        self.action_ranges = wp.array(model.actuator_ctrlrange, dtype=wp.vec2, device=self.device)
        healthy = [self.healthy_ranges().get(index, (-math.inf, math.inf)) for index in range(model.nq + model.nv)]
        self.healthy = wp.array(healthy, dtype=wp.vec2, device=self.device)
        self.noisy_joints = wp.vec2i(model.nq, model.nv)
        """How many positions, and how many speeds, begin with noise, counted from the first."""
        self.parts = [(self.rows(part.field), part) for part in self.layout()]

    def apply_actions(self) -> None:
        """Clip the actions to the action space, which is the range of the controls."""
        self.launch(
            kernels.clip_actions,
            inputs=[self.actions, self.action_ranges],
            outputs=[self.ctrl],
            dim=self.actions.shape,
        )

    def reset_state(self) -> None:
        """Begin new episodes where done."""
        self.launch(
            kernels.scatter,
            inputs=[
                self.done,
                self.config.reset_position_noise,
                self.config.reset_speed_noise,
                self.speed_noise_is_normal,
                self.noisy_joints,
            ],
            outputs=[self.rng, self.qpos, self.qvel],
        )

    def observe(self) -> None:
        """Write the observations, part after part."""
        at = 0
        for rows, part in self.parts:
            count = rows.shape[1] - part.first if part.count is None else part.count
            self.launch(
                kernels.show,
                inputs=[rows, part.first, part.limit, part.how, self.episode_length, at],
                outputs=[self.obs["policy"]],
                dim=(self.num_envs, count),
            )
            at += count

    # What rewards are made of.

    def column(self, term: str) -> int:
        """Return the column of a reward term."""
        return self.reward_terms.index(term)

    def reward_health(self, term: str) -> None:
        """Launch what rewards health, and ends the episode else."""
        self.launch(
            kernels.reward_health,
            inputs=[self.qpos, self.qvel, self.healthy, self.column(term)],
            outputs=[self.terms, self.terminated],
        )

    def charge_squares(self, term: str, field: wp.array, limit: float = math.inf, most: float = math.inf) -> None:
        """Launch what charges for the squares of a field's numbers, (num_envs, n), see `kernels.charge_squares`."""
        self.launch(kernels.charge_squares, inputs=[field, limit, most, self.column(term)], outputs=[self.terms])

    def charge_distance(self, term: str, one: str, other: str) -> None:
        """Launch what charges for the distance between two bodies."""
        self.launch(
            kernels.charge_distance,
            inputs=[self.data("xpos"), self.model.body(one).id, self.model.body(other).id, self.column(term)],
            outputs=[self.terms],
        )
