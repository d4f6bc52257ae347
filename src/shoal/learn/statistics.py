"""Statistics of the whole job: sums and counts kept on the device, pooled over all ranks in one collective.

What is printed and logged is a mean over every rank's episodes, terms and losses, never rank 0's alone. Nothing here
reads a value back to the host between two calls of `pool`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.learn.groups import World

WINDOW_EPISODES = 100
"""Episodes that a mean return covers at least, once there were as many; rsl_rl's own window."""

_EPISODE = ("return", "return_squared", "length", "length_squared")


@dataclass(frozen=True, slots=True)
class Pooled:
    """One iteration of the whole job."""

    episodes: int
    """Episodes that ended in this iteration."""
    means: dict[str, float]
    """Pooled means by metric name."""
    rank_seconds: list[float]
    """Collection time of each rank [s]."""
    flags: dict[str, int]
    """How many ranks raised each flag."""


class Statistics:
    """Collects one rank's share during an iteration and pools it with all other ranks' at its end."""

    def __init__(self, world: World, num_envs: int, episode_terms: tuple[str, ...] = ()) -> None:
        """Prepare accumulators.

        Args:
            world: All ranks.
            num_envs: Environments on this rank.
            episode_terms: Names of the columns of `extras["episode_sums"]`.
        """
        self._world = world
        self._columns = (*_EPISODE, *episode_terms)
        self._terms = episode_terms
        self._return = torch.zeros(num_envs, device=world.device)
        self._length = torch.zeros(num_envs, device=world.device)
        self._sums = torch.zeros(len(self._columns) + 1, dtype=torch.float64, device=world.device)
        self._log: dict[str, torch.Tensor] = {}
        self._names: list[str] = []  # Names of `extras["log"]`, the same on all ranks and in the same order.
        self._window: deque[list[float]] = deque()

    def add_step(self, rewards: torch.Tensor, dones: torch.Tensor, extras: Mapping[str, Any]) -> None:
        """Take in one environment step.

        Args:
            rewards: Shape (num_envs,).
            dones: Shape (num_envs,), non-zero where an episode ended with this step.
            extras: May hold `episode_sums`, shape (num_envs, num_terms), valid where `dones`; and `log`, whose
                values are scalars or tensors of any shape.
        """
        self._return += rewards
        self._length += 1
        ended = dones > 0
        columns = [self._return, self._return.square(), self._length, self._length.square()]
        if self._terms:
            columns += extras["episode_sums"].unbind(dim=1)
        columns.append(torch.ones_like(self._return))
        self._sums += torch.where(ended, torch.stack(columns), 0.0).sum(dim=1, dtype=torch.float64)
        self._return.masked_fill_(ended, 0.0)
        self._length.masked_fill_(ended, 0.0)
        for name, value in (extras.get("log") or extras.get("episode") or {}).items():
            values = torch.as_tensor(value, device=self._world.device).to(torch.float64)
            share = torch.stack([values.sum(), values.new_tensor(float(values.numel()))])
            self._log[name] = self._log[name] + share if name in self._log else share

    def pool(self, losses: Mapping[str, float], collect_s: float, learn_s: float, flags: Mapping[str, bool]) -> Pooled:
        """Close the iteration: pool every rank's share and start anew.

        In the steady state this is one collective. An iteration in which some rank logs a name for the first time
        needs a second one, by which all ranks learn the names.

        Args:
            losses: Mean losses of this rank's update; the same names on every rank.
            collect_s: Time that this rank's rollout took [s].
            learn_s: Time that this rank's update took [s].
            flags: What this rank wants the others to know, such as a signal received.
        """
        size, rank = self._world.size, self._world.rank
        own_seconds = [0.0] * (2 * size)
        own_seconds[2 * rank : 2 * rank + 2] = [collect_s, learn_s]
        news = float(len(self._log.keys() - set(self._names)))
        plain = [*losses.values(), *own_seconds, *(float(flag) for flag in flags.values()), news]
        values = self._sum_over_ranks([self._sums, *self._shares(self._names)], plain)
        self._sums.zero_()

        episode = _take(values, len(self._columns) + 1)
        shares = {name: _take(values, 2) for name in self._names}
        mean_losses = {f"Loss/{name}": _take(values, 1)[0] / size for name in losses}
        seconds = _take(values, 2 * size)
        raised = {name: int(_take(values, 1)[0]) for name in flags}
        if values[0]:  # Some rank has news.
            shares |= self._learn_names()
        self._log.clear()
        self._remember(episode)
        means = self._episode_means()
        means |= {name: total / count for name, (total, count) in shares.items() if count}
        means |= mean_losses
        means["Perf/collection_time"] = sum(seconds[0::2]) / size
        means["Perf/learning_time"] = sum(seconds[1::2]) / size
        return Pooled(episodes=int(episode[-1]), means=means, rank_seconds=seconds[0::2], flags=raised)

    def _shares(self, names: list[str]) -> list[torch.Tensor]:
        """Return this rank's sum and count, shape (2,), for each of `names`."""
        nothing = torch.zeros(2, dtype=torch.float64, device=self._world.device)
        return [self._log.get(name, nothing) for name in names]

    def _sum_over_ranks(self, tensors: list[torch.Tensor], plain: list[float]) -> list[float]:
        """Add up over all ranks, in one collective, and read back: the step's one meeting of device and host."""
        tail = torch.tensor(plain, dtype=torch.float64, device=self._world.device)
        return self._world.sum_(torch.cat([*tensors, tail])).tolist()

    def _learn_names(self) -> dict[str, list[float]]:
        """Make every rank know every name that any rank logs, and pool the shares of the new ones."""
        known = set(self._names)
        everywhere = {name for names in self._world.gather_strings(sorted(self._log)) for name in names}
        new = sorted(everywhere - known)
        self._names += new
        values = self._sum_over_ranks(self._shares(new), [])
        return {name: _take(values, 2) for name in new}

    def _remember(self, episode: list[float]) -> None:
        """Keep the newest iterations that together hold at least `WINDOW_EPISODES` episodes."""
        if episode[-1]:
            self._window.append(episode)
        while sum(kept[-1] for kept in self._window) - (self._window[0][-1] if self._window else 0) >= WINDOW_EPISODES:
            self._window.popleft()

    def _episode_means(self) -> dict[str, float]:
        """Return means and spreads over the window; empty until a first episode has ended."""
        count = sum(kept[-1] for kept in self._window)
        if not count:
            return {}
        mean = {name: sum(kept[i] for kept in self._window) / count for i, name in enumerate(self._columns)}
        spread = {name: math.sqrt(max(0.0, mean[f"{name}_squared"] - mean[name] ** 2)) for name in ("return", "length")}
        terms = {f"Episode_Reward/{name}": mean[name] for name in self._terms}
        return {
            "Train/mean_reward": mean["return"],
            "Train/std_reward": spread["return"],
            "Train/mean_episode_length": mean["length"],
            "Train/std_episode_length": spread["length"],
            **terms,
        }


def _take(values: list[float], count: int) -> list[float]:
    """Remove and return the first `count` values."""
    taken = values[:count]
    del values[:count]
    return taken
