"""Running episodes of a policy side by side, each counted once: of `evaluate`, of `play`, and during a training."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.envs.capabilities import capabilities_of
from shoal.learn.training_env import endings

_FLUSH_STEPS = 16
"""Steps between looks at which episodes have ended, for which the host waits for the device."""

Episode = dict[str, Any]
"""What is known of an episode: an object of `episodes.jsonl` without its seed, and `number` in place of its index."""


class Policy(Protocol):
    """Maps observations to actions, as rsl_rl's models do."""

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        """Return actions of shape (num_envs, num_actions)."""
        ...

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Reset the memory of episodes that ended, of shape (num_envs,); of all with None. By default there is none."""


class Step(NamedTuple):
    """A step of all environments: what the policy saw and did, and what came of it. Shapes (num_envs, ...)."""

    observations: TensorDict
    """Valid until the step after next."""
    actions: torch.Tensor
    rewards: torch.Tensor
    dones: torch.Tensor
    time_outs: torch.Tensor
    running: torch.Tensor
    """Where the step belongs to an episode that counts."""


def run_episodes(  # noqa: PLR0913  By name.
    env: VecEnv,
    policy: Policy,
    count: int,
    on_episode: Callable[[int, Episode], None],
    *,
    within: int = 0,
    least_steps: int = 0,
    on_step: Callable[[Step], None] = lambda _: None,
) -> None:
    """Run an episode in each of the first `count` environments, or with `within` those that begin within so many steps.

    All of them run to their end, so that none is left out for its length: the number that begin is a stopping time, and
    by Wald's identity the mean over all of them has no bias. What has not ended after `max_episode_length` steps is
    unfinished, and counts with what it has earned.

    Args:
        env: Environments, of which those beyond `count` run along. Their earlier warnings have been taken.
        policy: The policy.
        count: Environments whose episodes count.
        on_episode: Takes the environment and the statistics of each episode, some time after its end.
        within: Steps within which further episodes begin.
        least_steps: Go on for so many steps, also when all episodes have ended.
        on_step: Called after each step. May raise, to stop.
    """
    counter = _Counter(env, count)
    observations = env.get_observations()
    steps = max(within + int(env.max_episode_length), least_steps)
    every = 1 if within else _FLUSH_STEPS
    with torch.no_grad():  # Inference tensors could not be written in place by a later `restart`.
        for step in range(1, steps + 1):
            actions, seen, running = policy(observations), observations, counter.running
            observations, rewards, dones, extras = env.step(actions)
            policy.reset(dones)
            counter.add(rewards, dones, extras)
            on_step(Step(seen, actions, rewards, dones, endings(dones, extras)[1], running))
            if step % every == 0 or step == steps:
                for row, episode in counter.take_ended(again=step < within):
                    on_episode(row, episode)
                if step >= least_steps and not counter.running.any():  # Waits for the device.
                    return
        for row in counter.running.nonzero().flatten().tolist():
            on_episode(row, counter.episode(row, "unfinished"))


class _Counter:
    """Returns, lengths and other statistics of the running episode of each environment, on the device."""

    def __init__(self, env: VecEnv, count: int) -> None:
        """Count the first `count` environments."""
        environments = capabilities_of(env)
        self._terms, self._metrics = environments.episode_terms, environments.metrics
        zeros = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
        self._returns, self._lengths = zeros.clone(), torch.zeros_like(zeros, dtype=torch.int64)
        self._metric_sums = zeros.new_zeros(env.num_envs, len(self._metrics))
        self._first_metrics, self._last_metrics = self._metric_sums.clone(), self._metric_sums.clone()
        self._term_sums = zeros.new_zeros(env.num_envs, len(self._terms))
        self._divergences, self._divergences_before = zeros.clone(), zeros.clone()
        self._time_out = torch.zeros_like(zeros, dtype=torch.bool)
        self.running = torch.arange(env.num_envs, device=env.device) < count
        """Environments whose episode counts and has not ended. Shape (num_envs,)."""
        self._ended = torch.zeros_like(self.running)
        self._numbers = torch.zeros(env.num_envs, dtype=torch.int64)

    def add(self, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]) -> None:
        """Count one step. Shapes (num_envs,)."""
        running, (done, cut) = self.running, endings(dones, extras)
        ended = running & done
        self._returns += torch.where(running, rewards, 0.0)
        self._lengths += running
        self._time_out = torch.where(ended, cut, self._time_out)
        if self._terms:
            self._term_sums = torch.where(ended[:, None], extras["episode_sums"], self._term_sums)
        if "diverged" in extras:
            self._divergences = torch.where(running, extras["diverged"], self._divergences)
        if not self._metrics and "Metrics/success" in extras.get("log", {}):  # Of an environment that lists no metrics.
            self._metrics = ("success",)
            self._metric_sums = self._returns.new_zeros(len(running), 1)
            self._first_metrics, self._last_metrics = self._metric_sums.clone(), self._metric_sums.clone()
        if self._metrics:
            values = torch.stack([extras["log"][f"Metrics/{name}"] for name in self._metrics], dim=1)
            is_first = (running & (self._lengths == 1))[:, None]
            self._first_metrics = torch.where(is_first, values, self._first_metrics)
            self._last_metrics = torch.where(running[:, None], values, self._last_metrics)
            self._metric_sums += torch.where(running[:, None], values, 0.0)
        self._ended |= ended
        self.running = running & ~ended

    def take_ended(self, *, again: bool) -> list[tuple[int, dict[str, Any]]]:
        """Return the environment and the statistics of each episode that has ended since the last call.

        With `again` the environment's next episode counts, too.
        """
        ended = self._ended.to("cpu", copy=True)
        rows = ended.nonzero().flatten().tolist()
        episodes = [(row, self.episode(row)) for row in rows]
        self._ended.zero_()
        if again and rows:
            mask = ended.to(self._returns.device)
            for sums in (self._returns, self._lengths, self._metric_sums):
                sums[mask] = 0
            self._divergences_before = torch.where(mask, self._divergences, self._divergences_before)
            self._numbers += ended
            self.running = self.running | mask
        return episodes

    def episode(self, row: int, how: str | None = None) -> dict[str, Any]:
        """Return the statistics of an episode. Its reward terms are known only when it has ended."""
        length = int(self._lengths[row])
        terms = [math.nan] * len(self._terms) if how else self._term_sums[row].tolist()
        if self._divergences[row] > self._divergences_before[row]:
            how = "diverged"
        how = how or ("time out" if bool(self._time_out[row]) else "terminated")
        means = dict(zip(self._metrics, (self._metric_sums[row] / length).tolist(), strict=True))
        success, met = None, False
        if "success" in means:
            column = self._metrics.index("success")
            success = bool(self._last_metrics[row, column] > 0.5)  # noqa: PLR2004  It is 0 or 1.
            met = bool(self._first_metrics[row, column] > 0.5)  # noqa: PLR2004
        return {
            "number": int(self._numbers[row]),
            "return": float(self._returns[row]),
            "length": length,
            "ended": how,
            "success": success,
            "met_at_reset": met,
            "terms": dict(zip(self._terms, terms, strict=True)),
            "metrics": means,
        }
