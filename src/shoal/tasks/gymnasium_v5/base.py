"""The base class of Gymnasium's MuJoCo tasks: models, actions, observations by parts, reset noise, and health."""

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import mujoco
import warp as wp

from shoal.sim.mujoco_task import MujocoTask
from shoal.sim.render.surroundings import add_surroundings
from shoal.tasks.gymnasium_v5 import kernels
from shoal.tasks.gymnasium_v5.config import GymnasiumConfig
from shoal.tasks.registry import require_extra

ConfigT = TypeVar("ConfigT", bound=GymnasiumConfig)

logger = logging.getLogger(__name__)

_MEMORY = 2**20
"""Memory of each simulation for contacts and constraints [bytes]. They took 51 kB at most in 45,000 random steps of
each humanoid. MuJoCo's default is 15 MB: with a few hundred persistent simulations Linux then refuses to fork, although
none of it is used."""


@dataclass(frozen=True, slots=True)
class Part:
    """Columns of the observation, from one field of `MjData`."""

    field: str
    first: int = 0
    count: int | None = None
    """Number of columns; None for all that follow `first`."""
    limit: float = math.inf
    """Values are clipped to ± this."""
    how: int = kernels.AS_IT_IS
    """Transformation, see `shoal.tasks.gymnasium_v5.kernels`."""


class GymnasiumTask(MujocoTask[ConfigT], Generic[ConfigT]):
    """A task with a model of Gymnasium's."""

    reward_per_step = True
    file: ClassVar[str]
    """File of the model in Gymnasium's assets."""
    layout: ClassVar[tuple[Part, ...]] = (Part("qpos"), Part("qvel"))
    """Parts of the observation, in order."""
    reward_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of `MjData` that rewards need, beside those of the observation."""
    vel_noise_is_normal: ClassVar[bool] = False
    """Whether first velocities are drawn from a normal distribution, and not uniformly."""

    @classmethod
    def build_model(cls, config: ConfigT) -> mujoco.MjModel:
        """Return Gymnasium's model. Two ask for the PGS solver, which MuJoCo Warp does not have; there they get Newton.

        Raises:
            UsageError: Gymnasium is not installed.
        """
        path = require_extra("gymnasium") / "envs" / "mujoco" / "assets" / cls.file
        # MuJoCo 4 calls an attribute of the half-cheetah deprecated: on the terminal, in a file MUJOCO_LOG.TXT, and as
        # a warning of Python's.
        mujoco.set_mju_user_warning(logger.debug)
        try:
            spec = mujoco.MjSpec.from_file(str(path))
            spec.memory = _MEMORY
            add_surroundings(spec)
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                model = spec.compile()
        finally:
            mujoco.set_mju_user_warning(None)
        if config.engine == "warp" and model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
            model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        return model

    def observation_parts(self) -> Sequence[Part]:
        """Return the parts of the observation, in order."""
        return self.layout

    def healthy_ranges(self) -> dict[int, tuple[float, float]]:
        """Return ranges of a healthy state, by index among positions and then velocities."""
        return {}

    def allocate(self) -> None:
        """Make the constants of the kernels."""
        model = self.model
        self.action_ranges = wp.array(model.actuator_ctrlrange, dtype=wp.vec2, device=self.device)
        healthy = [self.healthy_ranges().get(index, (-math.inf, math.inf)) for index in range(model.nq + model.nv)]
        self.healthy = wp.array(healthy, dtype=wp.vec2, device=self.device)
        self.noisy_joints = wp.vec2i(model.nq, model.nv)
        """Number of positions, and of velocities, that begin with noise, counted from the first."""
        for field in self.reward_fields:
            self.data(field)
        self.parts = [(self.rows(part.field), part) for part in self.observation_parts()]

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
                *(self.done, self.config.reset_position_noise, self.config.reset_speed_noise),
                *(self.vel_noise_is_normal, self.noisy_joints),
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

    # Reward terms.

    def column(self, term: str) -> int:
        """Return the column of a reward term."""
        return self.reward_terms.index(term)

    def reward_health(self, term: str) -> None:
        """Launch the kernel that rewards health, and terminates otherwise."""
        self.launch(
            kernels.reward_health,
            inputs=[self.qpos, self.qvel, self.healthy, self.column(term)],
            outputs=[self.terms, self.terminated],
        )

    def penalise_squares(self, term: str, field: wp.array, limit: float = math.inf, most: float = math.inf) -> None:
        """Launch the kernel that penalises the squares of a field, (num_envs, n), see `kernels.penalise_squares`."""
        self.launch(kernels.penalise_squares, inputs=[field, limit, most, self.column(term)], outputs=[self.terms])

    def penalise_distance(self, term: str, one: str, other: str) -> None:
        """Launch the kernel that penalises the distance between two bodies."""
        self.launch(
            kernels.penalise_distance,
            inputs=[self.data("xpos"), self.model.body(one).id, self.model.body(other).id, self.column(term)],
            outputs=[self.terms],
        )
