"""A policy that acts step by step, and what its episodes have come to so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shoal.sim.bridge import to_torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from shoal.envs.vec_env import WarpVecEnv
    from shoal.learn.evaluation import Policy


@dataclass(frozen=True, slots=True)
class Facts:
    """What is told of one environment."""

    reward: float
    """Of the last step."""
    length: int
    """Steps since the episode began."""
    episode_return: float
    """Sum of the rewards since the episode began."""
    last_return: float | None
    """Of the episode before; None in the first one."""
    commands: list[float]
    """What the policy is told to follow now."""


class Player:
    """Environments and what acts in them."""

    def __init__(self, env: WarpVecEnv, policy: Policy) -> None:
        """Begin where the environments stand."""
        self.env = env
        self.policy = policy
        self._positions = to_torch(env.task.positions())
        self._commands = to_torch(env.task.command_array) if env.task.commands else None
        self._observations = env.get_observations()
        self._rewards = torch.zeros(env.num_envs, device=env.device)
        self._returns = torch.zeros(env.num_envs, device=env.device)
        self._last_returns = torch.full_like(self._returns, torch.nan)

    def step(self, commands: Sequence[float] | None = None) -> None:
        """Let the policy act once in all environments.

        Args:
            commands: What all environments are told to follow; None leaves that to the task.
        """
        with torch.inference_mode():
            if commands is not None and self._commands is not None:
                self._commands[:] = torch.tensor(commands, device=self._commands.device)
            self._observations, self._rewards, dones, _ = self.env.step(self.policy(self._observations))
            self.policy.reset(dones)
            self._returns += self._rewards
            self._last_returns = torch.where(dones, self._returns, self._last_returns)
            self._returns.masked_fill_(dones, 0.0)

    def restart(self) -> None:
        """Begin a new episode in every environment, and forget those before."""
        with torch.inference_mode():
            self._observations = self.env.reset()
            self.policy.reset(torch.ones(self.env.num_envs, dtype=torch.bool, device=self.env.device))
            self._rewards = torch.zeros_like(self._returns)
            self._returns.zero_()
            self._last_returns.fill_(torch.nan)

    def positions(self) -> np.ndarray:
        """Return the joint positions of the task's scene in every environment. Shape (num_envs, nq)."""
        return self._positions.cpu().numpy()

    def facts(self, env: int) -> Facts:
        """Return what is told of one environment."""
        last = float(self._last_returns[env])
        return Facts(
            reward=float(self._rewards[env]),
            length=int(self.env.episode_length_buf[env]),
            episode_return=float(self._returns[env]),
            last_return=None if last != last else last,  # noqa: PLR0124  NaN is no return yet.
            commands=[] if self._commands is None else self._commands[env].tolist(),
        )
