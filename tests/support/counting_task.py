"""A kernel task whose every number can be worked out by hand, and kernels that get one thing wrong each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import warp as wp

from shoal.config.env import EnvConfig
from shoal.sim.kernel_task import KernelTask


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingConfig(EnvConfig):
    """Four steps of half a second make an episode."""

    episode_length_s: float = 2.0
    one_weight: float = 2.0
    index_weight: float = -1.0


@wp.kernel(enable_backward=False)
def count(
    actions: wp.array2d[wp.float32],
    steps: wp.array[wp.float32],
    terms: wp.array2d[wp.float32],
    terminated: wp.array[wp.bool],
) -> None:
    """Count a step; fail where the action is above one half."""
    env = wp.tid()
    steps[env] = steps[env] + 1.0
    terms[env, 0] = 1.0
    terms[env, 1] = float(env)
    if actions[env, 0] > 0.5:
        terminated[env] = True


@wp.kernel(enable_backward=False)
def begin(
    done: wp.array[wp.bool], rng: wp.array[wp.uint32], steps: wp.array[wp.float32], start: wp.array[wp.float32]
) -> None:
    """Count from zero, and draw a number that tells one episode from another."""
    env = wp.tid()
    if not done[env]:
        return
    random = rng[env]
    start[env] = wp.randf(random)
    steps[env] = 0.0
    rng[env] = random


@wp.kernel(enable_backward=False)
def begin_everywhere(steps: wp.array[wp.float32]) -> None:
    """Forget the mask."""
    steps[wp.tid()] = 0.0


@wp.kernel(enable_backward=False)
def show(steps: wp.array[wp.float32], start: wp.array[wp.float32], observation: wp.array2d[wp.float32]) -> None:
    """Show the steps counted and the episode's number."""
    env = wp.tid()
    observation[env, 0] = steps[env]
    observation[env, 1] = start[env]


@wp.kernel(enable_backward=False)
def show_half(steps: wp.array[wp.float32], observation: wp.array2d[wp.float32]) -> None:
    """Forget the second column."""
    env = wp.tid()
    observation[env, 0] = steps[env]


@wp.kernel(enable_backward=False)
def half_the_terms(terms: wp.array2d[wp.float32]) -> None:
    """Forget the second term."""
    terms[wp.tid(), 0] = 1.0


@wp.kernel(enable_backward=False)
def add(amount: wp.float32, steps: wp.array[wp.float32]) -> None:
    """Add the same to every environment's steps."""
    env = wp.tid()
    steps[env] = steps[env] + amount


class CountingTask(KernelTask[CountingConfig]):
    """Counts steps."""

    config = CountingConfig()
    observations: ClassVar = {"policy": 2}
    num_actions = 1
    reward_terms = ("one", "index")

    @property
    def step_dt(self) -> float:
        return 0.5

    def allocate(self) -> None:
        self.steps = self.array("steps")
        self.start = self.array("start")

    def simulate(self) -> None:
        self.launch(count, inputs=[self.actions], outputs=[self.steps, self.terms, self.terminated])

    def reset(self) -> None:
        self.launch(begin, inputs=[self.done], outputs=[self.rng, self.steps, self.start])

    def observe(self) -> None:
        self.launch(show, inputs=[self.steps, self.start], outputs=[self.obs["policy"]])
