"""An environment of one's own as rsl_rl's `VecEnv`, with nothing of Shoal: points in the plane drive to the origin.

shoal check-env docs/examples/points_env.py:Points
train docs/examples/points_env.py:Points
"""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict


class Points(VecEnv):
    """Points whose velocity is the action, as long as they stay within 2 m of both axes; near the origin is good."""

    step_dt, largest = 0.1, 2.0

    def __init__(self, num_envs: int, device: str, seed: int) -> None:
        self.num_envs, self.device, self.cfg = num_envs, device, {}
        self.num_actions, self.max_episode_length = 2, 100
        self.random = torch.Generator(device).manual_seed(seed)
        self.position = self.draw()
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def draw(self) -> torch.Tensor:
        """Return positions at which episodes begin [m]. Shape (num_envs, 2)."""
        return 2.0 * torch.rand(self.num_envs, 2, generator=self.random, device=self.device) - 1.0

    def get_observations(self) -> TensorDict:
        """Return the positions."""
        return TensorDict({"policy": self.position}, batch_size=[self.num_envs], device=self.device)

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Move for `step_dt`, at most 1 m/s along each axis; points that left, or whose time is up, begin again."""
        self.position = self.position + self.step_dt * actions.clamp(-1.0, 1.0)
        self.episode_length_buf = self.episode_length_buf + 1
        distance = self.position.norm(dim=1)
        left = self.position.abs().amax(dim=1) > self.largest
        time_outs = (self.episode_length_buf >= self.max_episode_length) & ~left
        dones = left | time_outs
        self.position = torch.where(dones[:, None], self.draw(), self.position)
        self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf)
        return self.get_observations(), torch.exp(-distance), dones, {"time_outs": time_outs}
