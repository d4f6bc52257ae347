"""The policy of learners whose networks are not rsl_rl's: played, evaluated and exported as rsl_rl's models are."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rsl_rl.env import VecEnv
from rsl_rl.utils import resolve_obs_groups
from tensordict import TensorDict
from torch import nn

from shoal.config import AgentConfig
from shoal.learn.episodes import Policy
from shoal.learn.learner import prints_to_log

_IMAGE_DIMS = 4
"""Of images: environments, channels, height and width. Rows of vectors may be those of several steps."""


class InferencePolicy(nn.Module, Policy):
    """A network that maps concatenated observation groups to actions, without exploration noise."""

    def __init__(self, network: nn.Module, obs_groups: Sequence[str], num_observations: int) -> None:
        super().__init__()
        self.network, self.obs_groups, self.num_observations = network, list(obs_groups), num_observations

    def forward(self, observations: TensorDict) -> torch.Tensor:
        """Return actions of shape (num_envs, num_actions)."""
        return self.network(concatenated(observations, self.obs_groups))

    def as_onnx(self, *, verbose: bool) -> nn.Module:
        """Return a copy that takes a plain tensor."""
        del verbose
        return _Exportable(copy.deepcopy(self.network), self.num_observations)


class _Exportable(nn.Sequential):
    """The network with what rsl_rl's exportable models tell about themselves."""

    input_names = ("obs",)
    output_names = ("actions",)

    def __init__(self, network: nn.Module, num_observations: int) -> None:
        super().__init__(network)
        self.num_observations = num_observations

    def get_dummy_inputs(self) -> tuple[torch.Tensor]:
        """Return an input of one row."""
        return (torch.zeros(1, self.num_observations),)


def observation_sets(observations: TensorDict, config: AgentConfig, *sets: str) -> Mapping[str, list[str]]:
    """Return the observation groups of each of `sets`, by rsl_rl's rule."""
    names = {name: list(groups) for name, groups in config.obs_groups.items()}
    with prints_to_log():
        return resolve_obs_groups(observations, names, list(sets))


def concatenated(observations: Mapping[str, torch.Tensor] | TensorDict, groups: Sequence[str]) -> torch.Tensor:
    """Return observation groups side by side, images row by row. Shape (..., columns)."""
    rows = [
        each.flatten(1) if each.dim() == _IMAGE_DIMS else each for each in (observations[group] for group in groups)
    ]
    return torch.cat(rows, dim=-1)


class FlatObservations:
    """The inputs of networks that take plain tensors: the observation groups of each set side by side."""

    def __init__(self, env: VecEnv, config: AgentConfig, *sets: str) -> None:
        observations = env.get_observations()
        resolved = observation_sets(observations, config, *sets)
        self._groups = {name: resolved[name] for name in sets}
        self.sizes = {name: rows.shape[1] for name, rows in self(observations).items()}
        """Columns of each set."""

    def __call__(self, observations: Mapping[str, torch.Tensor] | TensorDict) -> dict[str, torch.Tensor]:
        """Return the input of each set. Shapes (num_envs, columns)."""
        return {name: concatenated(observations, groups) for name, groups in self._groups.items()}

    def select(self, observations: Mapping[str, torch.Tensor] | TensorDict) -> dict[str, torch.Tensor]:
        """Return the groups of all sets."""
        return {name: observations[name] for groups in self._groups.values() for name in groups}

    def after_step(
        self, observations: TensorDict, cut: torch.Tensor, extras: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Return the inputs after a step: where an episode was `cut` off its last ones, if `extras` has them.

        After a failure nothing follows, and the last observations of an environment that diverged are not finite.
        """
        inputs = self(observations)
        if "final_observation" not in extras:
            return inputs
        final = self(extras["final_observation"])
        return {name: torch.where(cut.unsqueeze(1), final[name], rows) for name, rows in inputs.items()}

    def spaces(self, num_actions: int, limit: float) -> dict[str, Any]:
        """Return the spaces of Gymnasium of an agent, by name. `limit` is the largest magnitude of an action."""
        from gymnasium.spaces import Box

        names = {"actor": "observation_space", "critic": "state_space"}
        inputs = {names[name]: Box(-np.inf, np.inf, (size,), np.float32) for name, size in self.sizes.items()}
        return inputs | {"action_space": Box(-limit, limit, (num_actions,), np.float32)}

    def policy(self, network: nn.Module) -> InferencePolicy:
        """Return a policy of the set `actor`, whose `network` has no exploration noise."""
        return InferencePolicy(network.eval(), self._groups["actor"], self.sizes["actor"])
