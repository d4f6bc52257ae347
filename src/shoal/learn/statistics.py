"""Statistics of the whole job: sums and counts kept on the device, pooled over all ranks in one collective.

What is printed and logged is a mean over every rank's episodes, terms and losses, never rank 0's alone. Nothing here
reads a value back to the host between two calls of `pool`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.learn.groups import World

WINDOW_EPISODES = 100
"""Episodes that a mean return covers at least, once there were as many; rsl_rl's own window."""

WHOLE_REWARD = "Train/mean_whole_reward"
"""The metric by which checkpoints are scored, unless the task names one."""

_MEASURES = ("return", "length")
"""What is added up over each episode, in the order of the rows below."""

_WHOLE = 2
"""Sums over whole episodes alone, before all others: of their returns, and how many there were."""


class Seconds(NamedTuple):
    """Where the time of one rank's iteration went [s]."""

    collection: float
    """The rollout."""
    learning: float
    """The update."""
    collective: float
    """Collectives, since those of the iteration before were counted."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """One iteration of the whole job."""

    episodes: int
    """Episodes that ended in this iteration."""
    means: dict[str, float]
    """Pooled means by metric name."""
    losses: dict[str, float]
    """Those of them that are losses, by the learner's names."""
    rank_seconds: list[float]
    """Collection time of each rank [s]."""
    counts: dict[str, int]
    """Sums over all ranks of what each counted: of a flag, how many ranks raised it."""


@dataclass(slots=True)
class _Logged:
    """What this rank logged under one name since the last `pool`."""

    sums: list[torch.Tensor] = field(default_factory=list)
    """Sums of values on the device, one a step."""
    host_sum: float = 0.0
    """Sum of values that were on the host already."""
    count: int = 0
    """Values in both, and those left out."""
    left_out: list[torch.Tensor] = field(default_factory=list)
    """How many values of lost environments are in no sum, one a step."""


class Statistics:
    """Collects one rank's share during an iteration and pools it with all other ranks' at its end."""

    def __init__(self, world: World, num_envs: int, episode_terms: tuple[str, ...] = ()) -> None:
        """Prepare for the first step.

        Args:
            world: All ranks.
            num_envs: Environments on this rank.
            episode_terms: Names of the columns of `extras["episode_sums"]`.
        """
        self._world = world
        self._device = torch.device(world.device)
        self._terms = episode_terms
        # What a step adds to each measure of the episode that runs: the reward, and 1. Shape (2, num_envs).
        self._gains = torch.ones(len(_MEASURES), num_envs, device=self._device)
        self._rewards = self._gains[0]
        self.running = torch.zeros(len(_MEASURES), num_envs, dtype=torch.float64, device=self._device)
        """Return and length so far of the episode that runs in each environment. Shape (2, num_envs)."""
        self._is_whole = torch.ones(num_envs, dtype=torch.bool, device=self._device)
        self._zero = torch.zeros((), dtype=torch.float64, device=self._device)  # A plain 0.0 is sent there each time.
        # One entry a step, reduced by `pool` all at once: a step costs five small operations and no more.
        self._ended: list[torch.Tensor] = []  # (num_envs,)
        self._measured: list[torch.Tensor] = []  # (2, num_envs), valid where ended
        self._sums: list[torch.Tensor] = []  # (num_envs, num_terms), valid where ended
        self._log: dict[str, _Logged] = {}
        self._names: list[str] = []  # All that any rank has logged, the same on all ranks and in the same order.
        self._window: deque[list[float]] = deque()

    def history(self) -> dict[str, Any]:
        """Return what means over a window of iterations are made of, the same on all ranks, as plain values."""
        return {"window": [list(episode) for episode in self._window], "names": list(self._names)}

    def take_history(self, history: Mapping[str, Any]) -> None:
        """Go on with what `history` has returned, if it is of the same terms."""
        self._window = deque(episode for episode in history.get("window", ()) if len(episode) == self._size)
        self._names = list(history.get("names", ()))

    def set_ages(self, ages: torch.Tensor) -> None:
        """Take in the ages of the running episodes, (num_envs,). Where `running` has seen less, it is not whole."""
        self._is_whole = ages == self.running[1]

    @property
    def _size(self) -> int:
        """How many numbers stand for the episodes of an iteration."""
        return _WHOLE + len(_MEASURES) * 2 + len(self._terms) + 1

    def add_step(self, rewards: torch.Tensor, dones: torch.Tensor, extras: Mapping[str, Any]) -> None:
        """Take in one environment step. The tensors may be overwritten afterwards.

        Args:
            rewards: Shape (num_envs,).
            dones: Shape (num_envs,), of any type, not zero where an episode ended with this step.
            extras: May hold `episode_sums`, shape (num_envs, num_terms), valid where `dones`; and `log`, or
                `episode` as older environments call it, for `add_log`, with `diverged`.
        """
        self._rewards.copy_(rewards)
        ended = dones.to(torch.bool, copy=True)
        measured = self.running + self._gains
        self.running = torch.where(ended, self._zero, measured)
        self._ended.append(ended)
        self._measured.append(measured)
        if self._terms:
            self._sums.append(extras["episode_sums"].clone())
        self.add_log(extras.get("episode") or extras.get("log") or {}, extras.get("diverged"))

    def add_log(self, values: Mapping[str, Any], diverged: torch.Tensor | None = None) -> None:
        """Take in values to log by name: numbers, or tensors of any shape and device. The mean is over them all.

        A name without a slash belongs to the group `Episode`, as in rsl_rl.

        Args:
            values: By name.
            diverged: Not zero where an environment's values are left out of the means. Shape (num_envs,).
        """
        kept = None if diverged is None else diverged == 0
        left_out = None if kept is None else (~kept).sum()
        for name, value in values.items():
            logged = self._log.setdefault(name if "/" in name else f"Episode/{name}", _Logged())
            tensor = torch.as_tensor(value)
            if kept is not None and left_out is not None and tensor.shape == kept.shape:
                tensor = torch.where(kept, tensor, self._zero)
                logged.left_out.append(left_out)
            total = tensor.sum(dtype=torch.float64)
            if tensor.device.type == self._device.type:
                logged.sums.append(total)
            else:
                logged.host_sum += float(total)
            logged.count += tensor.numel()

    def pool(self, losses: Mapping[str, float], seconds: Seconds, counts: Mapping[str, int]) -> Pooled:
        """Close the iteration: pool every rank's share and start anew.

        In the steady state this is one collective. An iteration in which some rank logs a name for the first time
        needs a few more, by which all ranks learn the names.

        Args:
            losses: Mean losses of this rank's update; the same names on every rank.
            seconds: Where this rank's time went.
            counts: What this rank has counted, or True for a flag, such as a signal received; the same names on every
                rank.
        """
        size, rank, names = self._world.size, self._world.rank, self._names
        each = len(seconds)
        own_seconds = [0.0] * (each * size)
        own_seconds[each * rank : each * (rank + 1)] = seconds
        news = float(len(self._log.keys() - set(names)))
        plain = [*losses.values(), *own_seconds, *(float(count) for count in counts.values()), news]
        values = self._sum_over_ranks([self._episode_sums()], names, plain)

        episode = _take(values, self._size)
        logged = {name: _take(values, 2) for name in names}
        mean_losses = {name: _take(values, 1)[0] / size for name in losses}
        all_seconds = _take(values, each * size)
        counted = {name: int(_take(values, 1)[0]) for name in counts}
        if values[0]:  # Some rank has news.
            logged |= self._learn_names()
        self._log.clear()
        self._remember(episode)
        return Pooled(
            episodes=int(episode[-1]),
            means={name: total / count for name, (total, count) in logged.items() if count}
            | self._episode_means()
            | {f"Loss/{name}": loss for name, loss in mean_losses.items()}
            | {f"Perf/{name}_time": sum(all_seconds[at::each]) / size for at, name in enumerate(Seconds._fields)},
            losses=mean_losses,
            rank_seconds=all_seconds[0::each],
            counts=counted,
        )

    def _episode_sums(self) -> torch.Tensor:
        """Sum over the episodes that ended: whole ones, measures, their squares, terms, and at last their number."""
        if not self._ended:
            return torch.zeros(self._size, dtype=torch.float64, device=self._device)
        ended = torch.stack(self._ended)  # (num_steps, num_envs)
        measured = torch.where(ended.unsqueeze(1), torch.stack(self._measured), self._zero)
        whole = ended & (self._is_whole | (ended.cumsum(dim=0) > 1))
        self._is_whole = self._is_whole | ended.any(dim=0)
        parts = [torch.where(whole, measured[:, 0], self._zero).sum().view(1), whole.sum(dtype=torch.float64).view(1)]
        parts += [measured.sum(dim=(0, 2)), measured.square().sum(dim=(0, 2))]
        if self._terms:
            sums = torch.where(ended.unsqueeze(2), torch.stack(self._sums), self._zero)
            parts.append(sums.sum(dim=(0, 1), dtype=torch.float64))
        parts.append(ended.sum(dtype=torch.float64).unsqueeze(0))
        for steps in (self._ended, self._measured, self._sums):
            steps.clear()
        return torch.cat(parts)

    def _sum_over_ranks(self, tensors: list[torch.Tensor], names: list[str], plain: list[float]) -> list[float]:
        """Add up over all ranks, in one collective, and read back: the iteration's one wait for the device.

        Host numbers are sent to the device in one tensor, since each such copy waits for a GPU.

        Returns:
            Sums of `tensors`, then the sum and count of what was logged under each of `names`, then `plain`.
        """
        logged = [self._log.get(name, _Logged()) for name in names]
        on_host = [number for each in logged for number in (each.host_sum, each.count)]
        tail = torch.tensor([*on_host, *plain], dtype=torch.float64, device=self._device)
        for at, each in enumerate(logged):
            if each.sums:
                tail[2 * at].add_(torch.stack(each.sums).sum())
            if each.left_out:
                tail[2 * at + 1].sub_(torch.stack(each.left_out).sum())
        return self._world.sum_(torch.cat([*tensors, tail])).tolist()

    def _learn_names(self) -> dict[str, list[float]]:
        """Make every rank know every name that any rank logs, and pool the shares of the new ones."""
        known = set(self._names)
        everywhere = {name for names in self._world.gather_strings(sorted(self._log)) for name in names}
        new = sorted(everywhere - known)
        self._names += new
        values = self._sum_over_ranks([], new, [])
        return {name: _take(values, 2) for name in new}

    def _remember(self, episode: list[float]) -> None:
        """Keep the newest iterations that together hold at least `WINDOW_EPISODES` episodes."""
        if episode[-1]:
            self._window.append(episode)
        held = sum(kept[-1] for kept in self._window)
        while self._window and held - self._window[0][-1] >= WINDOW_EPISODES:
            held -= self._window.popleft()[-1]

    def _episode_means(self) -> dict[str, float]:
        """Return means and spreads over the window; empty until a first episode has ended."""
        if not self._window:
            return {}
        whole_return, whole_count, *sums, count = (sum(column) for column in zip(*self._window, strict=True))
        mean_return, mean_length, mean_square, mean_square_length, *terms = (total / count for total in sums)
        return {
            "Train/mean_reward": mean_return,
            "Train/std_reward": math.sqrt(max(0.0, mean_square - mean_return**2)),
            "Train/mean_episode_length": mean_length,
            "Train/std_episode_length": math.sqrt(max(0.0, mean_square_length - mean_length**2)),
            **({WHOLE_REWARD: whole_return / whole_count} if whole_count else {}),
            **{f"Episode_Reward/{name}": mean for name, mean in zip(self._terms, terms, strict=True)},
        }


def _take(values: list[float], count: int) -> list[float]:
    """Remove and return the first `count` values."""
    taken = values[:count]
    del values[:count]
    return taken
