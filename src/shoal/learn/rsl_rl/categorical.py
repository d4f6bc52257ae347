"""A distribution of rsl_rl for discrete actions."""

from __future__ import annotations

import torch
from rsl_rl.modules.distribution import Distribution
from torch import nn
from torch.distributions import Categorical, kl_divergence


class CategoricalDistribution(Distribution):
    """One of `output_dim` actions, whose logits the network returns. Environments take the largest column.

    A sample is a one-hot row, so that actions have the shape (num_envs, output_dim) as all others of rsl_rl. The
    deterministic output are the logits themselves.
    """

    def update(self, mlp_output: torch.Tensor) -> None:
        """Set the logits. Shape (num_envs, output_dim)."""
        self._categorical = Categorical(logits=mlp_output, validate_args=False)

    def sample(self) -> torch.Tensor:
        """Return a one-hot row for each environment."""
        return nn.functional.one_hot(self._categorical.sample(), self.output_dim).to(self.mean.dtype)

    def deterministic_output(self, mlp_output: torch.Tensor) -> torch.Tensor:
        """Return the logits, whose largest is that of the most likely action."""
        return mlp_output

    def as_deterministic_output_module(self) -> nn.Module:
        """Return a module that does the same."""
        return nn.Identity()

    @property
    def input_dim(self) -> int:
        """One logit for each action."""
        return self.output_dim

    @property
    def mean(self) -> torch.Tensor:
        """Probability of each action."""
        return self._categorical.probs

    @property
    def std(self) -> torch.Tensor:
        """Standard deviation of each column of a sample."""
        return (self.mean * (1.0 - self.mean)).sqrt()

    @property
    def entropy(self) -> torch.Tensor:
        """Shape (num_envs,) [nat]."""
        return self._categorical.entropy()

    @property
    def params(self) -> tuple[torch.Tensor, ...]:
        """The normalised logits."""
        return (self._categorical.logits,)

    def log_prob(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the log probability of one-hot rows. Shape (num_envs,)."""
        return (outputs * self._categorical.logits).sum(dim=-1)

    def kl_divergence(self, old_params: tuple[torch.Tensor, ...], new_params: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return KL(old || new). Shape (num_envs,)."""
        old, new = (Categorical(logits=params[0], validate_args=False) for params in (old_params, new_params))
        return kl_divergence(old, new)
