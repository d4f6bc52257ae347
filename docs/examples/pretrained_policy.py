"""A policy of one's own for `evaluate --jobs`: a pretrained network in bfloat16, on the device that Shoal hands over.

- name: pretrained
  task: Cartpole-Swingup
  policy: docs/examples/pretrained_policy.py:PretrainedPolicy
  config: {folder: path/to/folder}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

if TYPE_CHECKING:
    from tensordict import TensorDict


class PretrainedNetwork(nn.Module, PyTorchModelHubMixin):
    """A network that `save_pretrained(folder)` writes: its arguments as JSON, its weights as safetensors."""

    def __init__(self, num_observations: int, num_actions: int, hidden_dim: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_observations, hidden_dim), nn.ELU(), nn.Linear(hidden_dim, num_actions), nn.Tanh()
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return actions of shape (num_envs, num_actions)."""
        return self.layers(observations)


class PretrainedPolicy:
    """Maps the observation group `policy` to actions. A policy with a memory would have `reset(dones)`, too."""

    def __init__(self, device: torch.device, folder: str) -> None:
        network = PretrainedNetwork.from_pretrained(folder)
        self.network = network.to(device, torch.bfloat16)

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        """Return actions of shape (num_envs, num_actions); Shoal casts them to float32."""
        return self.network(observations["policy"].to(torch.bfloat16))
