"""Replay buffer of off-policy learners, on the device of the environments."""

from collections.abc import Mapping
from types import SimpleNamespace

import torch


class Batch(SimpleNamespace):
    """Sampled transitions; the first dimension of each tensor is their number."""

    actor: torch.Tensor
    critic: torch.Tensor
    next_actor: torch.Tensor
    next_critic: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    """Discounted sum of the rewards up to the next observation."""
    discounts: torch.Tensor
    """Discount of what follows the next observation."""
    terminated: torch.Tensor


class Replay:
    """The newest steps of all environments, on the device. Shapes (num_steps, num_envs, ...)."""

    def __init__(
        self, capacity: int, num_envs: int, num_actions: int, sizes: Mapping[str, int], device: torch.device | str
    ) -> None:
        self.capacity, self.num_envs = capacity, num_envs
        self.steps = 0
        """Steps that were added so far."""

        def zeros(*columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(capacity, num_envs, *columns, dtype=dtype, device=device)

        self._data = {name: zeros(size) for name, size in sizes.items()}
        self._data |= {f"next_{name}": zeros(size) for name, size in sizes.items()}
        self._data |= {"actions": zeros(num_actions), "rewards": zeros()}
        self._data |= {"ended": zeros(dtype=torch.bool), "terminated": zeros(dtype=torch.bool)}

    def add(self, transition: Mapping[str, torch.Tensor]) -> None:
        """Store one step of all environments, in the place of the oldest."""
        for name, values in transition.items():
            self._data[name][self.steps % self.capacity].copy_(values)
        self.steps += 1

    def since(self, step: int) -> dict[str, torch.Tensor]:
        """Return copies of the steps from `step` on."""
        rows = torch.arange(step, self.steps, device=self._data["rewards"].device) % self.capacity
        return {name: values[rows] for name, values in self._data.items()}

    def sample(self, size: int, num_steps: int, gamma: float) -> Batch:
        """Return `size` transitions over up to `num_steps` steps, drawn uniformly."""
        device = self._data["rewards"].device
        stored = min(self.steps, self.capacity)
        oldest = self.steps - stored
        starts = oldest + torch.randint(max(1, stored - num_steps + 1), (size,), device=device)
        envs = torch.randint(self.num_envs, (size,), device=device)

        def rows(name: str, steps: torch.Tensor) -> torch.Tensor:
            return self._data[name].flatten(0, 1)[steps % self.capacity * self.num_envs + envs]

        rewards, discounts = rows("rewards", starts), torch.full((size,), gamma, device=device)
        last = starts
        for _ in range(1, min(num_steps, stored)):
            goes_on = ~rows("ended", last)
            last = last + goes_on
            rewards = rewards + torch.where(goes_on, discounts * rows("rewards", last), 0.0)
            discounts = torch.where(goes_on, discounts * gamma, discounts)
        return Batch(
            actor=rows("actor", starts),
            critic=rows("critic", starts),
            next_actor=rows("next_actor", last),
            next_critic=rows("next_critic", last),
            actions=rows("actions", starts),
            rewards=rewards,
            discounts=discounts,
            terminated=rows("terminated", last),
        )
