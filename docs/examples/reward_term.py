"""A reward of your own for a task that ships: see docs/guide/add_a_reward_term.md."""

# ruff: noqa: ANN401

from typing import Any

import torch
import warp as wp

from shoal import mdp, registered

FlatVelocity: Any = registered()["Quadruped-Velocity-Flat"].load_builder()


@wp.func
def base_height(state: Any, env: int, target: float, std: float) -> float:
    """Return 1 where the base is at the height `target` [m], and less within some `std` of it."""
    error = (state.qpos[env, 2] - target) / std
    return wp.exp(-error * error)


class TallWalk(FlatVelocity):
    """Walk on flat ground, upright."""

    config = FlatVelocity.config.change(rewards={"height": mdp.Reward(base_height, weight=0.5, target=0.3, std=0.05)})


def base_height_torch(state: Any, target: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Return the same for all environments, (num_envs,)."""
    return (-((state.qpos[:, 2] - target) / std).square()).exp()


class TallWalkTorch(FlatVelocity):
    """The same as a prototype on torch tensors."""

    config = FlatVelocity.config.change(
        rewards={"height": mdp.Reward(base_height_torch, weight=0.5, target=0.3, std=0.05)}
    )
