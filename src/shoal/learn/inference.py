"""The policy of learners whose networks are not rsl_rl's: played, evaluated and exported as rsl_rl's models are."""

import copy
from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import nn


class InferencePolicy(nn.Module):
    """A network that maps concatenated observation groups to actions, without exploration noise."""

    def __init__(self, network: nn.Module, obs_groups: Sequence[str], num_observations: int) -> None:
        super().__init__()
        self.network, self.obs_groups, self.num_observations = network, list(obs_groups), num_observations

    def forward(self, observations: TensorDict) -> torch.Tensor:
        """Return actions of shape (num_envs, num_actions)."""
        return self.network(concatenated(observations, self.obs_groups))

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Do nothing: there is no memory."""

    def as_onnx(self, *, verbose: bool) -> nn.Module:
        """Return a copy that takes a plain tensor."""
        del verbose
        return _Exportable(copy.deepcopy(self.network), self.num_observations)


class _Exportable(nn.Module):
    """The network with what rsl_rl's exportable models tell about themselves."""

    is_recurrent = False
    input_names = ("obs",)
    output_names = ("actions",)

    def __init__(self, network: nn.Module, num_observations: int) -> None:
        super().__init__()
        self.network, self.num_observations = network, num_observations

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return actions of shape (num_envs, num_actions)."""
        return self.network(observations)

    def get_dummy_inputs(self) -> tuple[torch.Tensor]:
        """Return an input of one row."""
        return (torch.zeros(1, self.num_observations),)


def concatenated(observations: TensorDict, groups: Sequence[str]) -> torch.Tensor:
    """Return observation groups side by side. Shape (num_envs, columns)."""
    return torch.cat([observations[group] for group in groups], dim=-1)
