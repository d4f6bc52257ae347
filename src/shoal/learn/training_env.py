"""The environments of one rank as a learner steps them: each step is counted, recorded, and marked as progress."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.config import TrainConfig
from shoal.envs.capabilities import capabilities_of
from shoal.errors import TrainingFailedError, shown
from shoal.learn.groups import World
from shoal.learn.statistics import Statistics

_NO_DUMP = "Look at that task's dynamics, or lower its time step"


class TrainingEnv:
    """Environments whose `step` any library's loop may call. Other attributes are those of the `VecEnv` within."""

    def __init__(self, env: VecEnv, world: World, statistics: Statistics, config: TrainConfig) -> None:
        self.env, self.world, self.statistics = env, world, statistics
        self.check_for_nan, self.max_iterations = config.agent.check_for_nan, config.max_iterations
        self._needs_final = config.agent.needs_final_observations
        self.iteration = 0
        """Present iteration, counted from 1."""
        self.on_step: Callable[[int], None] | None = None
        """Called after each step with its number, counted from 0 over the whole run."""
        self.dump_diverged: Callable[[int], str | None] | None = None
        """Writes the history of diverged environments in an iteration; returns how to replay it, or None."""
        self.num_steps = 0
        self.observations: TensorDict = env.get_observations()
        """The newest observations."""
        self._magnitudes: list[tuple[str, torch.Tensor]] = []  # By name, (num_envs,), in order since the last check.
        self._collection_seconds = 0.0  # Until the rollout was ended last.
        self._began_at: float | None = None  # None outside a rollout.

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  Any attribute of the environment.
        return getattr(self.env, name)

    def begin_iteration(self, iteration: int, steps_per_iteration: int) -> None:
        """Begin an iteration, counted from 1."""
        self.iteration, self._collection_seconds, self._began_at = iteration, 0.0, None
        self.num_steps = (iteration - 1) * steps_per_iteration
        self.world.beat.begin_iteration(iteration)
        self._magnitudes.clear()
        self._take_magnitudes(self.observations)
        self.begin_rollout()

    @property
    def collection_seconds(self) -> float:
        """Time of this iteration that was spent in rollouts [s]."""
        return self._collection_seconds + (time.perf_counter() - self._began_at if self._began_at else 0.0)

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment by one action, as rsl_rl's `VecEnv` does."""
        self.begin_rollout()
        self.observations, rewards, dones, extras = self.env.step(actions)
        self.statistics.add_step(rewards, dones, extras)
        if self.check_for_nan:
            if self._needs_final and "time_outs" in extras:
                self._take_magnitudes(extras["final_observation"], where=endings(dones, extras)[1])
            self._take_magnitudes(self.observations)
            self._magnitudes.append(("The rewards", rewards.abs()))
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
        self._take_magnitudes(self.observations)

    def begin_rollout(self) -> None:
        """Mark that an iteration collects again after an update; `step` does so at the latest."""
        if self._began_at is None:
            self._began_at = time.perf_counter()
            self.world.beat.enter("rollout")

    def end_rollout(self) -> None:
        """Mark the end of the rollout: what follows counts as learning. Waits for the device.

        Raises:
            TrainingFailedError: Rewards or observations since the last call are not finite.
        """
        if self.check_for_nan:
            self._refuse_non_finite()
            self._magnitudes.clear()
        elif self.world.device != "cpu":
            torch.cuda.synchronize(self.world.device)  # Or only the time to queue it is measured.
        self._collection_seconds, self._began_at = self.collection_seconds, None
        self.world.beat.enter("update")

    def _take_magnitudes(self, observations: Any, where: torch.Tensor | None = None) -> None:  # noqa: ANN401
        """Keep the largest magnitude in each observation group of each environment; 0 where it does not count.

        Not finite where any number is not; and unlike a sum it is finite where all numbers are.
        """
        for name, rows in observations.items() if self.check_for_nan else ():
            if rows.is_floating_point():
                largest = rows.abs().reshape(len(rows), -1).amax(dim=1)
                kept = largest if where is None else torch.where(where, largest, 0.0)
                self._magnitudes.append((f"The observation group '{name}'", kept))

    def _refuse_non_finite(self) -> None:
        """Stop before a rollout with NaN or infinity in it reaches the gradients, and name the first such value.

        It is the cause of others, and of two in one step the observations are: rewards follow from states.
        """
        magnitudes = [rows for _, rows in self._magnitudes]
        if not magnitudes or bool(torch.cat(magnitudes).isfinite().all()):
            return
        what, rows = next((what, rows) for what, rows in self._magnitudes if not rows.isfinite().all())
        envs: list[int] = (~rows.isfinite()).nonzero().flatten().tolist()
        remedy = self.dump_diverged(self.iteration) if self.dump_diverged else None
        raise TrainingFailedError(
            f"{what} of environments {shown(envs)} on rank {self.world.rank} held NaN or infinity in iteration "
            f"{self.iteration}, and no gradient step was taken from it. {remedy or _NO_DUMP}; --resume goes on from "
            "the last checkpoint, if there is one."
        )


def endings(dones: torch.Tensor, extras: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where an episode ended with a step, and where it was cut off. Shapes (num_envs,)."""
    ended = dones.to(torch.bool)
    return ended, ended & extras["time_outs"].to(torch.bool) if "time_outs" in extras else torch.zeros_like(ended)
