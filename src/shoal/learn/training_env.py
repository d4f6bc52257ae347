"""The environments of one rank as a learner steps them: each step is counted, filmed, and marked as progress."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.envs.capabilities import capabilities_of
from shoal.learn.groups import World
from shoal.learn.statistics import Statistics


class TrainingEnv:
    """Environments whose `step` any library's loop may call. Other attributes are those of the `VecEnv` within."""

    def __init__(self, env: VecEnv, world: World, statistics: Statistics) -> None:
        self.env, self.world, self.statistics = env, world, statistics
        self.iteration = 0
        """Present iteration, counted from 1."""
        self.on_step: Callable[[int], None] | None = None
        """Called after each step with its number, counted from 0 over the whole run."""
        self.dump_diverged: Callable[[int], str | None] | None = None
        """Writes the history of diverged environments in an iteration; returns how to replay it, or None."""
        self.num_steps = 0
        self.observations: TensorDict = env.get_observations()
        """The newest observations."""
        self.collected_at: float | None = None
        """When the rollout of this iteration ended; None before."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  Any attribute of the environment.
        return getattr(self.env, name)

    def begin_iteration(self, iteration: int, steps_per_iteration: int) -> None:
        """Begin an iteration, counted from 1."""
        self.iteration, self.collected_at = iteration, None
        self.num_steps = (iteration - 1) * steps_per_iteration
        self.world.beat.begin_iteration(iteration)
        self.world.beat.enter("rollout")

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment by one action, as rsl_rl's `VecEnv` does."""
        self.observations, rewards, dones, extras = self.env.step(actions)
        self.statistics.add_step(rewards, dones, extras)
        self.world.beat.mark()
        if self.on_step is not None:
            self.on_step(self.num_steps)
        self.num_steps += 1
        return self.observations, rewards, dones, extras

    def begin_episodes(self, group_size: int) -> None:
        """Begin new episodes everywhere, the same in each `group_size` neighbours, random numbers included."""
        environments = capabilities_of(self.env)
        leaders = {name: row[::group_size] for name, row in environments.rows().items()}
        environments.put_rows({name: row.repeat_interleave(group_size, dim=0) for name, row in leaders.items()})
        environments.restart()
        self.statistics.begin_episodes()
        self.observations = self.env.get_observations()

    def log(self, values: Mapping[str, torch.Tensor | float]) -> None:
        """Pool further values of this step over all environments and ranks."""
        self.statistics.add_log(values)

    def end_rollout(self) -> None:
        """Mark the end of the rollout: what follows counts as learning."""
        self.collected_at = time.perf_counter()
        self.world.beat.enter("update")
