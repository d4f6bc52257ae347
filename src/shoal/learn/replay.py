"""The newest steps of all environments, on their device: a replay buffer, or the rollout of one iteration."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict


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
    """The newest steps of all environments, on their device. Shapes (num_steps, num_envs, ...)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.steps = 0
        """Steps that were added so far."""
        self.data: Any = None
        """A TensorDict of the stored steps; None before the first, as play and export need none."""

    def add(self, transition: Mapping[str, torch.Tensor | TensorDict]) -> None:
        """Store one step of all environments, in the place of the oldest."""
        if self.data is None:
            step = TensorDict({**transition}, batch_size=transition["rewards"].shape)
            with torch.inference_mode(mode=False):
                self.data = step.expand(self.capacity, *step.shape).clone()
        self.data[self.steps % self.capacity].update_(transition)
        self.steps += 1

    def since(self, step: int) -> TensorDict:
        """Return copies of the steps from `step` on."""
        return self.data[torch.arange(step, self.steps, device=self.data["rewards"].device) % self.capacity]

    def sample(self, size: int, num_steps: int, gamma: float) -> Batch:
        """Return `size` transitions over up to `num_steps` steps, drawn uniformly."""
        rewards = self.data["rewards"]
        device = rewards.device
        stored = min(self.steps, self.capacity)
        oldest = self.steps - stored
        starts = oldest + torch.randint(max(1, stored - num_steps + 1), (size,), device=device)
        envs = torch.randint(rewards.shape[1], (size,), device=device)

        def rows(name: str, steps: torch.Tensor) -> torch.Tensor:
            return self.data[name][steps % self.capacity, envs]

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
