"""Policies that act and do not learn: trained ones without noise, and those that need no training."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import torch

from shoal.checks.film import choose_gl
from shoal.config import TrainConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.groups import World
from shoal.learn.runner import Runner
from shoal.sim.film_process import make_film
from shoal.sim.isolation import isolated
from shoal.sim.kernel_cache import exclusive_kernel_cache
from shoal.sim.reel import Reel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict import TensorDict

    from shoal.config import ExportConfig, PlayConfig
    from shoal.tasks.registry import TaskSpec


class Policy(Protocol):
    """What acts. rsl_rl's models are such."""

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        """Return actions of shape (num_envs, num_actions)."""
        ...

    def reset(self, dones: torch.Tensor) -> None:
        """Forget the episodes that ended. Shape (num_envs,)."""
        ...


@contextmanager
def open_policy(
    config: PlayConfig, spec: TaskSpec, model: Path | None, device: str
) -> Iterator[tuple[WarpVecEnv, Policy]]:
    """Build `config.episodes` environments on `device`, and what acts in them.

    The device is the process's default for the time of the body. A body that steps does so in torch's inference mode.

    Args:
        config: What is played.
        spec: Its task.
        model: The checkpoint of a trained policy; None where `config.agent_kind` needs none.
        device: Where everything runs.
    """
    with isolated(device):
        env = _build_env(config, spec, device, num_envs=config.episodes, seed=config.seed)
        yield env, _untrained(env, config) if model is None else _trained(env, config, model)


def rebuild(
    config: PlayConfig | ExportConfig, spec: TaskSpec, device: str, *, num_envs: int, seed: int
) -> tuple[WarpVecEnv, Runner]:
    """Build environments and networks as in training, inside `isolated(device)`. The weights are new ones."""
    env = _build_env(config, spec, device, num_envs=num_envs, seed=seed)
    return env, _build_runner(env, config)


def _build_env(
    config: PlayConfig | ExportConfig, spec: TaskSpec, device: str, *, num_envs: int, seed: int
) -> WarpVecEnv:
    torch.manual_seed(seed)
    with exclusive_kernel_cache():
        return WarpVecEnv(spec.build(config.env, num_envs=num_envs, device=device, seed=seed))


def _build_runner(env: WarpVecEnv, config: PlayConfig | ExportConfig) -> Runner:
    training = TrainConfig(task=config.task, num_envs=env.num_envs, env=config.env, agent=config.agent)
    return Runner(env, training, World(device=str(env.device)))


def load_weights(policy: Policy, model: Path) -> None:
    """Give a trained policy the weights and normalisers of another checkpoint of its run, while it plays.

    Raises:
        UsageError: That file is no checkpoint, or is gone.
    """
    # Only what `_trained` returns has weights; it stays the same object, with the state of its episodes.
    cast("torch.nn.Module", policy).load_state_dict(read_checkpoint(model)["actor_state_dict"])


def run_episodes(config: PlayConfig, spec: TaskSpec, model: Path | None, device: str) -> tuple[list[float], list[int]]:
    """Run one episode in each of `config.episodes` environments, and film the first of these if that was asked for.

    Taking the first episode of each environment, and no second one of those that ended early, keeps the mean free
    of a bias towards short episodes.

    Returns:
        The return, and the length in environment steps, of each episode.

    Raises:
        UsageError: A film was asked for, and the task has no picture.
        ShoalError: The film could not be made.
    """
    with open_policy(config, spec, model, device) as (env, policy):
        if config.video_path is None:
            return _first_episodes(env, policy)
        reel = Reel(env.task, config.video_length or int(env.max_episode_length), config.video_size)
        episodes = _first_episodes(env, policy, reel)
        make_film(reel.cut(), Path(config.video_path), choose_gl(device, os.environ))
        return episodes


def _first_episodes(env: WarpVecEnv, policy: Policy, reel: Reel | None = None) -> tuple[list[float], list[int]]:
    returns = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
    lengths = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
    running = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    observations = env.get_observations()
    with torch.inference_mode():
        # An episode ends by its time limit at the latest; asking each step whether all have ended would be a sync.
        for _ in range(max(int(env.max_episode_length), len(reel) if reel is not None else 0)):
            observations, rewards, dones, _ = env.step(policy(observations))
            policy.reset(dones)
            returns += torch.where(running, rewards, 0.0)
            lengths += running
            running &= dones == 0
            if reel is not None and not reel.is_full:
                reel.take()
    return returns.tolist(), lengths.tolist()


def _trained(env: WarpVecEnv, config: PlayConfig, model: Path) -> Policy:
    """Return the policy of a checkpoint, without exploration noise."""
    runner = _build_runner(env, config)
    runner.restore(read_checkpoint(model), weights_only=True)
    return runner.get_inference_policy(device=str(env.device))


def _untrained(env: WarpVecEnv, config: PlayConfig) -> Policy:
    return _Untrained((env.num_envs, env.num_actions), env.device, spread=float(config.agent_kind == "random"))


class _Untrained:
    """Actions that ask nothing: even in [-spread, spread]."""

    def __init__(self, shape: tuple[int, int], device: torch.device | str, *, spread: float) -> None:
        self._actions = torch.zeros(shape, device=device)
        self._spread = spread

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        del observations
        return self._actions.uniform_(-self._spread, self._spread)

    def reset(self, dones: torch.Tensor) -> None:
        del dones
