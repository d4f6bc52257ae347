"""Actor and critic as rsl_rl 1 to 3 kept them: one module, whose `state_dict()` their checkpoints hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

OBSERVATIONS, PRIVILEGED, ACTIONS = 3, 5, 2
"""Columns of `TinyEnv`'s groups, and of its actions."""
HIDDEN = 8
MEMORY = 6


class OldNormaliser(nn.Module):
    """Moments of observations. `count` was no buffer in the oldest versions."""

    _mean: torch.Tensor
    _std: torch.Tensor

    def __init__(self, columns: int, *, with_count: bool = True) -> None:
        """Draw moments, so that they do something."""
        super().__init__()
        self.register_buffer("_mean", torch.randn(1, columns))
        variance = torch.rand(1, columns) + 0.5
        self.register_buffer("_var", variance)
        self.register_buffer("_std", variance.sqrt())
        if with_count:
            self.register_buffer("count", torch.tensor(4321))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise observations of shape (num_envs, columns)."""
        return (x - self._mean) / (self._std + 1e-2)


class OldActorCritic(nn.Module):
    """Both networks, with normalisers or a memory if asked."""

    def __init__(self, *, deviation: str = "std", normalised: bool = False, recurrent: bool = False) -> None:
        """Draw all weights.

        Args:
            deviation: `std`, `log_std`, or `actor` where the actor's last layer gives it.
            normalised: Whether normalisers are part of it, as in rsl_rl 3.
            recurrent: Whether an LSTM comes before each network.
        """
        super().__init__()
        self.heads = 2 if deviation == "actor" else 1
        if deviation != "actor":
            setattr(self, deviation, nn.Parameter(torch.rand(ACTIONS) + 0.1))
        self.actor = perceptron(MEMORY if recurrent else OBSERVATIONS, ACTIONS * self.heads)
        self.critic = perceptron(MEMORY if recurrent else PRIVILEGED, 1)
        self.actor_obs_normalizer = OldNormaliser(OBSERVATIONS) if normalised else nn.Identity()
        self.critic_obs_normalizer = OldNormaliser(PRIVILEGED) if normalised else nn.Identity()
        if recurrent:
            self.memory_a, self.memory_c = OldMemory(OBSERVATIONS), OldMemory(PRIVILEGED)

    def means(self, x: torch.Tensor) -> torch.Tensor:
        """Actions of a sequence of observations, (steps, num_envs, 3); the mean comes before the deviation."""
        x = self.actor_obs_normalizer(x)
        return self.actor(self.memory_a(x) if hasattr(self, "memory_a") else x)[..., :ACTIONS]

    def values(self, x: torch.Tensor) -> torch.Tensor:
        """Values of a sequence of observations, (steps, num_envs, 5)."""
        x = self.critic_obs_normalizer(x)
        return self.critic(self.memory_c(x) if hasattr(self, "memory_c") else x)

    def saved(self, **beside: Any) -> dict[str, Any]:
        """What the runner of that time gives to `torch.save`, with what stands beside it."""
        optimizer = torch.optim.Adam(self.parameters())
        return {
            "model_state_dict": self.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "iter": 1499,
            "infos": None,
            **beside,
        }


class OldMemory(nn.Module):
    """An LSTM, one level deeper than it need be, as it was."""

    def __init__(self, columns: int) -> None:
        """Draw all weights."""
        super().__init__()
        self.rnn = nn.LSTM(columns, MEMORY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Remember a sequence from its beginning."""
        return self.rnn(x)[0]


def perceptron(columns: int, outputs: int) -> nn.Sequential:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(columns, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, outputs))
