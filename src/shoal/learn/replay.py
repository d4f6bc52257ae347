"""The newest steps of all environments, on their device, from which an off-policy learner draws."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from shoal.learn.graphs import TensorGraph
from shoal.learn.training_env import endings

Rows = Mapping[str, torch.Tensor]
"""Tensors by name, with as many rows each."""


class Batch(SimpleNamespace):
    """Sampled transitions; the first dimension of each tensor is their number."""

    observations: Rows
    following: Rows
    """Observations after the last of the rewards."""
    actions: torch.Tensor
    rewards: torch.Tensor
    """Discounted sum of the rewards up to the following observation."""
    discounts: torch.Tensor
    """Discount of what follows."""
    terminated: torch.Tensor


class Replay:
    """A ring of steps that stores each observation once: a step is followed by the observation of the next step.

    It has room for one step more than it keeps: of the present one only the observation is known. What follows a step
    with which an episode was cut off is in a second ring, of final observations. That has room for the time-outs that
    there can be in the steps that are kept, and for whatever an iteration may cut off; `reserve` enlarges it where more
    was cut off. So no final observation is overwritten while its step is kept.

    A row is a step of one environment, and the rows of a step are neighbours. Tensors stay where they are, unless a
    ring is enlarged: captured graphs read and write them.
    """

    def __init__(  # noqa: PLR0913  All by name.
        self,
        observations: Rows,
        num_actions: int,
        *,
        capacity: int,
        steps_per_iteration: int,
        max_episode_length: int,
        captures: bool = True,
    ) -> None:
        """Allocate room for `capacity` steps with such observations, of shape (num_envs, columns)."""
        first = next(iter(observations.values()))
        self.capacity, self.num_envs = capacity, len(first)
        self.steps = 0
        """Steps that were added so far."""
        self._num_slots, self._most_new = capacity + 1, steps_per_iteration * self.num_envs
        device, self._captures = first.device, captures
        flags = torch.zeros(self.num_envs, dtype=torch.bool, device=device)
        step = {
            "actions": torch.zeros(self.num_envs, num_actions, device=device),
            "rewards": torch.zeros(self.num_envs, device=device),
            "ended": flags,
            "terminated": flags,
        }
        num_rows, self._num_finals = self._num_slots * self.num_envs, self._most_new
        self._num_finals += self.num_envs * (capacity // max_episode_length + 1)
        self.observations = _zeros(observations, self.num_envs)
        """Those of the present step."""
        self._step, self._final = _zeros(step, self.num_envs), _zeros(observations, self.num_envs)
        self._steps, self._observations = _zeros(step, num_rows), _zeros(observations, num_rows)
        self._finals = _zeros(observations, self._num_finals + 1)  # The last row takes what is not to be kept.
        self._final_numbers = torch.full((num_rows,), -1, device=device)
        """Which final observation follows a row, counted from the first one ever; -1 where the next step follows."""
        self._next_number = torch.zeros((), dtype=torch.int64, device=device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        """Where the present step is stored."""
        self._make_graphs()

    def _make_graphs(self) -> None:
        device = str(self._slot.device)
        self._store_graph = TensorGraph(self._store, device, name="Storing a step", captures=self._captures)

    def begin(self, observations: Rows) -> None:
        """Take the observations with which the next step begins."""
        _copy(self.observations, observations)
        self._put(self._observations, self.observations)

    def add(
        self,
        actions: torch.Tensor,
        observations: Rows,
        rewards: torch.Tensor,
        dones: torch.Tensor,
        extras: Mapping[str, Any],
    ) -> None:
        """Store actions, and what `step` of a `VecEnv` returned for them, in the place of the oldest step."""
        ended, cut = endings(dones, extras)
        _copy(self._step, {"actions": actions, "rewards": rewards, "ended": ended, "terminated": ended & ~cut})
        _copy(self.observations, observations)
        _copy(self._final, extras.get("final_observation", observations))
        self._store_graph()
        self.steps += 1

    def _store(self) -> None:
        cut = self._step["ended"] & ~self._step["terminated"]
        numbers = self._next_number + cut.cumsum(0) - 1
        self._next_number += cut.sum()
        slots = torch.where(cut, numbers % self._num_finals, self._num_finals)
        for name, finals in self._finals.items():
            finals.index_copy_(0, slots, self._final[name])
        self._put({"": self._final_numbers}, {"": torch.where(cut, numbers, -1)})
        self._put(self._steps, self._step)
        self._slot.add_(1).remainder_(self._num_slots)
        self._put(self._observations, self.observations)

    def _put(self, stored: Rows, rows: Rows) -> None:
        """Store rows in the present slot."""
        for name, each in stored.items():
            each.unflatten(0, (-1, self.num_envs)).index_copy_(0, self._slot, rows[name].unsqueeze(0))

    def newest(self, number: int) -> tuple[Rows, Rows]:
        """Return copies of the newest steps: observations, and the rest. Shapes (number, num_envs, ...)."""
        slots = (self._slot - number + torch.arange(number, device=self._slot.device)) % self._num_slots
        observations, steps = (
            {name: each.unflatten(0, (-1, self.num_envs)).index_select(0, slots) for name, each in stored.items()}
            for stored in (self._observations, self._steps)
        )
        return observations, steps

    @property
    def finals_in_use(self) -> torch.Tensor:
        """Number of final observations that follow steps which are kept."""
        return (self._final_numbers >= 0).sum()

    def reserve(self, in_use: int) -> bool:
        """Make room for the next iteration's final observations beside those in use; whether it took other tensors."""
        if in_use + self._most_new <= self._num_finals:
            return False
        before, self._num_finals = self._num_finals, self._most_new + 2 * in_use
        numbers = self._next_number - in_use + torch.arange(in_use, device=self._slot.device)
        for name, finals in self._finals.items():
            self._finals[name] = finals.new_zeros(self._num_finals + 1, *finals.shape[1:])
            self._finals[name][numbers % self._num_finals] = finals[numbers % before]
        self._make_graphs()
        return True

    def draw(self, number: int, size: int, num_steps: int) -> torch.Tensor:
        """Return the first rows of batches over up to `num_steps` steps, drawn uniformly. Shape (number, size)."""
        stored = min(self.steps, self.capacity)
        shape, device = (number, size), self._slot.device
        starts = self.steps - stored + torch.randint(max(1, stored - num_steps + 1), shape, device=device)
        return starts % self._num_slots * self.num_envs + torch.randint(self.num_envs, shape, device=device)

    def observations_of(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the observations with which these rows begin."""
        return {name: each.index_select(0, rows) for name, each in self._observations.items()}

    def batch(self, rows: torch.Tensor, num_steps: int, gamma: float) -> Batch:
        """Return transitions from these rows on, over `num_steps` steps, or to the end of the episode or ring."""
        rewards, ended = self._steps["rewards"], self._steps["ended"]
        last, total = rows, rewards.index_select(0, rows)
        discounts = torch.full_like(total, gamma)
        newest = (self._slot - 1) % self._num_slots
        for _ in range(1, num_steps):
            goes_on = ~ended.index_select(0, last) & (last // self.num_envs != newest)
            last = torch.where(goes_on, self._next(last), last)
            total = total + torch.where(goes_on, discounts * rewards.index_select(0, last), 0.0)
            discounts = torch.where(goes_on, discounts * gamma, discounts)
        numbers = self._final_numbers.index_select(0, last)
        following = self.observations_of(self._next(last))
        for name, finals in self._finals.items():
            final = finals.index_select(0, numbers % self._num_finals)
            following[name] = torch.where((numbers >= 0).unsqueeze(1), final, following[name])
        return Batch(
            observations=self.observations_of(rows),
            following=following,
            actions=self._steps["actions"].index_select(0, rows),
            rewards=total,
            discounts=discounts,
            terminated=self._steps["terminated"].index_select(0, last),
        )

    def _next(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of the next step."""
        return (rows + self.num_envs) % (self._num_slots * self.num_envs)


def _zeros(rows: Rows, number: int) -> dict[str, torch.Tensor]:
    """Return tensors like these, with another number of rows."""
    return {name: each.new_zeros(number, *each.shape[1:]) for name, each in rows.items()}


def _copy(to: Rows, rows: Rows) -> None:
    """Copy rows by name, all at once where a GPU can."""
    torch._foreach_copy_([*to.values()], [rows[name] for name in to])
