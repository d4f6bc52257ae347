"""Running episodes of a trained policy: deterministic actions, no learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.config import TrainConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.groups import World
from shoal.learn.runner import Runner
from shoal.sim.isolation import isolated
from shoal.sim.kernel_cache import exclusive_kernel_cache

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.config import PlayConfig
    from shoal.tasks.registry import TaskSpec


def run_episodes(config: PlayConfig, spec: TaskSpec, model: Path, device: str) -> tuple[list[float], list[int]]:
    """Run one episode in each of `config.episodes` environments.

    Taking the first episode of each environment, and no second one of those that ended early, keeps the mean free
    of a bias towards short episodes.

    Returns:
        The return, and the length in environment steps, of each episode.
    """
    with isolated(device):
        torch.manual_seed(config.seed)
        with exclusive_kernel_cache():
            task = spec.load_builder()(config.env, num_envs=config.episodes, device=device, seed=config.seed)
            env = WarpVecEnv(task)
        training = TrainConfig(task=config.task, num_envs=config.episodes, env=config.env, agent=config.agent)
        runner = Runner(env, training, World(device=device))
        runner.restore(read_checkpoint(model, device), weights_only=True)
        return _first_episodes(env, runner)


def _first_episodes(env: WarpVecEnv, runner: Runner) -> tuple[list[float], list[int]]:
    policy = runner.get_inference_policy(device=runner.device)
    returns = torch.zeros(env.num_envs, dtype=torch.float64, device=runner.device)
    lengths = torch.zeros(env.num_envs, dtype=torch.int64, device=runner.device)
    running = torch.ones(env.num_envs, dtype=torch.bool, device=runner.device)
    observations = env.get_observations()
    with torch.inference_mode():
        # An episode ends by its time limit at the latest; asking each step whether all have ended would be a sync.
        for _ in range(int(env.max_episode_length)):
            observations, rewards, dones, _ = env.step(policy(observations))
            policy.reset(dones)
            returns += torch.where(running, rewards, 0.0)
            lengths += running
            running &= dones == 0
    return returns.tolist(), lengths.tolist()
