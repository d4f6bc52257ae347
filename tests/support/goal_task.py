"""A task with a goal: episodes of three kinds never meet it, meet it at once, or meet it from the second step on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import warp as wp

from shoal.config.env import EnvConfig
from shoal.sim.kernel_task import KernelTask

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalConfig(EnvConfig):
    """Four steps of half a second make an episode."""

    episode_length_s: float = 2.0
    one_weight: float = 1.0


@wp.kernel(enable_backward=False)
def count(
    steps: wp.array[wp.float32],
    kind: wp.array[wp.float32],
    terms: wp.array2d[wp.float32],
    metrics: wp.array2d[wp.float32],
) -> None:
    """Count a step."""
    env = wp.tid()
    steps[env] = steps[env] + 1.0
    terms[env, 0] = 1.0
    met = kind[env] == 1.0 or (kind[env] == 2.0 and steps[env] != 1.0)
    metrics[env, 0] = wp.where(met, 1.0, 0.0)
    metrics[env, 1] = kind[env]


@wp.kernel(enable_backward=False)
def begin(
    done: wp.array[wp.bool], rng: wp.array[wp.uint32], steps: wp.array[wp.float32], kind: wp.array[wp.float32]
) -> None:
    """Count from zero, and draw the kind."""
    env = wp.tid()
    if not done[env]:
        return
    random = rng[env]
    kind[env] = wp.floor(3.0 * wp.randf(random))
    steps[env] = 0.0
    rng[env] = random


@wp.kernel(enable_backward=False)
def show(steps: wp.array[wp.float32], observation: wp.array2d[wp.float32]) -> None:
    """Show the steps counted."""
    env = wp.tid()
    observation[env, 0] = steps[env]


class Goal(KernelTask[GoalConfig]):
    """Counts steps."""

    config = GoalConfig()
    observations: ClassVar[Mapping[str, int]] = {"policy": 1}
    num_actions = 1
    reward_terms = ("one",)
    metrics = ("success", "kind")

    @property
    def step_dt(self) -> float:
        return 0.5

    built: ClassVar[list[int]] = []
    """The seed of each task that was built in this process."""

    def allocate(self) -> None:
        self.built.append(self.seed)
        self.steps = self.array("steps")
        self.kind = self.array("kind")

    def simulate(self) -> None:
        self.launch(count, inputs=[self.steps, self.kind], outputs=[self.terms, self.metric_values])

    def reset(self) -> None:
        self.launch(begin, inputs=[self.done, self.rng], outputs=[self.steps, self.kind])

    def observe(self) -> None:
        self.launch(show, inputs=[self.steps], outputs=[self.obs["policy"]])
