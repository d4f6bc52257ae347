"""Statistics of the whole job: sums and counts kept on the device, pooled over all ranks in one collective.

Printed and logged values are means over the episodes, terms and losses of all ranks. Nothing here reads a value back to
the host between two calls of `pool`.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch

from shoal.learn.groups import World

WINDOW_EPISODES = 100
"""Least number of episodes in a mean return, as in rsl_rl."""

WHOLE_REWARD = "Train/mean_whole_reward"
"""Default metric that scores checkpoints."""
EVALUATION_RETURN = "Eval/return"
"""Metric that scores checkpoints with `--eval-interval`: the mean return of the evaluation."""

_MEASURES = ("return", "length")
"""Sums over each episode, in the order of the rows below."""

_WHOLE = 2
"""Number of leading sums that are over whole episodes only: their returns, and their count."""


class Seconds(NamedTuple):
    """Time of one rank's iteration [s]."""

    collection: float
    """The rollout."""
    learning: float
    """The update."""
    collective: float
    """Collectives, since those of the previous iteration were counted."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """Pooled statistics of one iteration."""

    episodes: int
    """Episodes that ended in this iteration."""
    means: dict[str, float]
    """Pooled means by metric name."""
    losses: dict[str, float]
    """Pooled losses by the learner's names; also in `means`."""
    rank_seconds: list[float]
    """Collection time of each rank [s]."""
    counts: dict[str, int]
    """Sums of each rank's counts; for a flag, the number of ranks where it is set."""


@dataclass(slots=True)
class _Logged:
    """Values that this rank logged under one name since the last `pool`."""

    sums: list[torch.Tensor] = field(default_factory=list)
    """Sums of values on the device, one a step."""
    host_sum: float = 0.0
    """Sum of values on the host."""
    count: int = 0
    """Number of values in both, and of those left out."""
    left_out: list[torch.Tensor] = field(default_factory=list)
    """Number of values of diverged environments that are in no sum, one a step."""


class Statistics:
    """Collects one rank's statistics during an iteration and pools them over all ranks at its end.

    `episode_terms` are the names of the columns of `extras["episode_sums"]`, `terminations` those of
    `extras["done_terms"]`.
    """

    def __init__(
        self, world: World, num_envs: int, episode_terms: tuple[str, ...] = (), terminations: tuple[str, ...] = ()
    ) -> None:
        self._world = world
        self._device = torch.device(world.device)
        columns = {"episode_sums": ("Reward", episode_terms), "done_terms": ("Termination", terminations)}
        self._keys = [key for key, (_, names) in columns.items() if names]
        self._terms = [f"Episode_{kind}/{name}" for kind, names in columns.values() for name in names]
        # What a step adds to each measure of the running episode: the reward, and 1. Shape (2, num_envs).
        self._gains = torch.ones(len(_MEASURES), num_envs, device=self._device)
        self._rewards = self._gains[0]
        self.running = torch.zeros(len(_MEASURES), num_envs, dtype=torch.float64, device=self._device)
        """Return and length so far of each environment's running episode. Shape (2, num_envs)."""
        self._is_whole = torch.ones(num_envs, dtype=torch.bool, device=self._device)
        self._zero = torch.zeros((), dtype=torch.float64, device=self._device)  # A plain 0.0 is copied there each time.
        # One entry a step, reduced by `pool` all at once: a step costs five small operations and no more.
        self._ended: list[torch.Tensor] = []  # (num_envs,)
        self._measured: list[torch.Tensor] = []  # (2, num_envs), valid where ended
        self._sums: list[torch.Tensor] = []  # (num_envs, len(self._terms)), valid where ended
        self._log: dict[str, _Logged] = {}
        self._names: list[str] = []  # Logged by any rank; equal on all ranks, in the same order.
        self._window: deque[list[float]] = deque()

    def history(self) -> dict[str, Any]:
        """Return the window of episode sums and the logged names as plain values, equal on all ranks."""
        return {"window": [list(episode) for episode in self._window], "names": list(self._names)}

    def restore_history(self, history: Mapping[str, Any]) -> None:
        """Restore what `history` has returned; entries with other terms are dropped."""
        self._window = deque([*map(float, each)] for each in history.get("window", ()) if len(each) == self._size)
        self._names = [*map(str, history.get("names", ()))]

    def set_ages(self, ages: torch.Tensor) -> None:
        """Set the ages of the running episodes, (num_envs,). One whose age `running` does not have is not whole."""
        self._is_whole = ages == self.running[1]

    def begin_episodes(self) -> None:
        """Begin a new episode in every environment; the running ones count nowhere."""
        self.running.zero_()
        self._is_whole = torch.ones_like(self._is_whole)

    @property
    def _size(self) -> int:
        """Length of the episode sums of an iteration."""
        return _WHOLE + len(_MEASURES) * 2 + len(self._terms) + 1

    def add_step(self, rewards: torch.Tensor, dones: torch.Tensor, extras: Mapping[str, Any]) -> None:
        """Add one environment step. The tensors may be overwritten afterwards.

        Args:
            rewards: Shape (num_envs,).
            dones: Shape (num_envs,), of any type, not zero where an episode ended with this step.
            extras: May have `episode_sums` and `done_terms`, shapes (num_envs, number of them), valid where `dones`;
                and the arguments of `add_log`: `log` (`episode` in older environments), `diverged` and `log_weight`.
        """
        self._rewards.copy_(rewards)
        ended = dones.to(torch.bool, copy=True)
        measured = self.running + self._gains
        self.running = torch.where(ended, self._zero, measured)
        self._ended.append(ended)
        self._measured.append(measured)
        if self._terms:
            self._sums.append(torch.cat([extras[key] for key in self._keys], dim=1))
        logged = extras.get("episode") or extras.get("log") or {}
        self.add_log(logged, extras.get("diverged"), extras.get("log_weight"))

    def add_log(
        self, values: Mapping[str, Any], diverged: torch.Tensor | None = None, weight: torch.Tensor | None = None
    ) -> None:
        """Add values to log by name: numbers, or tensors of any shape and device. The mean is over all elements.

        A name without a slash belongs to the group `Episode`, as in rsl_rl. Where `diverged`, shape (num_envs,), is not
        zero, the environment's values are left out. A single number counts `weight` times, such as the number of
        environments that it is the mean of.
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
            if weight is not None and tensor.numel() == 1:
                total = total.to(weight.device) * weight
                logged.left_out.append(1 - weight)
            if tensor.device.type == self._device.type:
                logged.sums.append(total)
            else:
                logged.host_sum += float(total)
            logged.count += tensor.numel()

    def pool(self, losses: Mapping[str, float], seconds: Seconds, counts: Mapping[str, int]) -> Pooled:
        """Pool the iteration over all ranks, and reset. The names in `losses` and `counts` are the same on every rank.

        Usually this is one collective. An iteration in which a rank logs a name for the first time needs a few more, to
        exchange the names.

        Args:
            losses: Mean losses of this rank's update.
            seconds: This rank's times.
            counts: This rank's counts, or True for a flag, such as a signal received.
        """
        size, rank, names = self._world.size, self._world.rank, self._names
        each = len(seconds)
        by_rank = [0.0] * (each * size)
        by_rank[each * rank : each * (rank + 1)] = seconds
        num_new = float(len(self._log.keys() - set(names)))
        plain = [*losses.values(), *by_rank, *(float(count) for count in counts.values()), num_new]
        values = iter(self._sum_over_ranks([self._episode_sums()], names, plain))

        episode = list(islice(values, self._size))
        logged = {name: list(islice(values, 2)) for name in names}
        mean_losses = {name: next(values) / size for name in losses}
        all_seconds = list(islice(values, each * size))
        counted = {name: int(next(values)) for name in counts}
        if next(values):  # Some rank has new names.
            logged |= self._pool_new_names()
        self._log.clear()
        self._extend_window(episode)
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
        """Sum over the episodes that ended: whole ones, measures, squared measures, terms, and their number."""
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
        """Sum over all ranks in one collective, and read back: the only synchronisation with the device.

        Host numbers are copied to the device in one tensor, as each such copy waits for a GPU.

        Returns:
            Sums of `tensors`, then sum and count of the values logged under each of `names`, then `plain`.
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

    def _pool_new_names(self) -> dict[str, list[float]]:
        """Exchange the logged names between all ranks, and pool the values of the new ones."""
        everywhere = {name for names in self._world.gather_strings(sorted(self._log)) for name in names}
        new = sorted(everywhere - set(self._names))
        self._names += new
        values = iter(self._sum_over_ranks([], new, []))
        return {name: list(islice(values, 2)) for name in new}

    def _extend_window(self, episode: list[float]) -> None:
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
            **dict(zip(self._terms, terms, strict=True)),
        }
