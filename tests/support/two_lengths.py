"""Episodes of one step that earn nothing, and of fifty that earn 200: as many begin of one kind as of the other."""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict


class TwoLengths(VecEnv):
    """Environments whose actions do nothing. The mean return is 100."""

    def __init__(self, num_envs: int, device: str, seed: int) -> None:
        """Begin episodes."""
        self.num_envs, self.device, self.cfg = num_envs, device, {}
        self.num_actions, self.max_episode_length = 1, 50
        self.random = torch.Generator(device).manual_seed(seed)
        self.lengths = self.draw()
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def draw(self) -> torch.Tensor:
        """Return lengths of new episodes. Shape (num_envs,)."""
        return torch.where(torch.rand(self.num_envs, generator=self.random, device=self.device) < 1 / 2, 1, 50)

    def get_observations(self) -> TensorDict:
        """Return nothing of interest."""
        return TensorDict({"policy": torch.zeros(self.num_envs, 1)}, batch_size=[self.num_envs], device=self.device)

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Count a step."""
        del actions
        rewards = torch.where(self.lengths == 50, 4.0, 0.0)
        self.episode_length_buf = self.episode_length_buf + 1
        dones = self.episode_length_buf >= self.lengths
        self.lengths = torch.where(dones, self.draw(), self.lengths)
        self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf)
        return self.get_observations(), rewards, dones, {"time_outs": torch.zeros_like(dones)}
