"""Inference: load a policy without exploration noise, or an untrained one, and run episodes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from tensordict import TensorDict

from shoal.checks.film import choose_gl
from shoal.config import ExportConfig, PlayConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.groups import World
from shoal.learn.learner import Learner, Policy
from shoal.learn.learners import build_learner
from shoal.plan.checkpoints import check_learner
from shoal.sim.isolation import isolated
from shoal.sim.kernel_cache import exclusive_kernel_cache
from shoal.sim.render.film import make_film
from shoal.sim.render.reel import Reel
from shoal.tasks.registry import TaskSpec


@contextmanager
def open_policy(
    config: PlayConfig, spec: TaskSpec, model: Path | None, device: str
) -> Iterator[tuple[WarpVecEnv, Policy]]:
    """Build `config.episodes` environments and a policy on `device`, the process's default during the body.

    Steps in the body must run in torch's inference mode. An untrained agent has no checkpoint `model`.
    """
    with isolated(device):
        env = build_env(config, spec, device, num_envs=config.episodes, seed=config.seed)
        if model is None:
            spread = float(config.agent_kind == "random")
            yield env, UntrainedPolicy((env.num_envs, env.num_actions), env.device, spread=spread)
        else:
            policy = TrainedPolicy(build_learner(env, config, World(device=str(env.device))), config.learner)
            policy.load(model)
            yield env, policy


def build_env(
    config: PlayConfig | ExportConfig, spec: TaskSpec, device: str, *, num_envs: int, seed: int
) -> WarpVecEnv:
    """Build environments as in training, inside `isolated(device)`."""
    torch.manual_seed(seed)
    with exclusive_kernel_cache():
        return WarpVecEnv(spec.build(config.env, num_envs=num_envs, device=device, seed=seed))


def run_episodes(config: PlayConfig, spec: TaskSpec, model: Path | None, device: str) -> tuple[list[float], list[int]]:
    """Run one episode in each of `config.episodes` environments, and film the first one with `--video`.

    Only the first episode of each environment counts, so that the mean has no bias towards short episodes.

    Returns:
        The return, and the length in environment steps, of each episode.

    Raises:
        ShoalError: The task has no scene to film, or the film could not be made.
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
        # Up to the time limit of an episode: checking in each step whether all have ended would synchronise.
        for _ in range(max(int(env.max_episode_length), len(reel) if reel is not None else 0)):
            observations, rewards, dones, _ = env.step(policy(observations))
            policy.reset(dones)
            returns += torch.where(running, rewards, 0.0)
            lengths += running
            running &= dones == 0
            if reel is not None and not reel.is_full:
                reel.take()
    return returns.tolist(), lengths.tolist()


class TrainedPolicy:
    """The policy of a learner, whose weights may be exchanged for those of another checkpoint."""

    def __init__(self, learner: Learner, name: str) -> None:
        self._learner, self._policy, self._name = learner, learner.policy(), name

    def load(self, model: Path) -> None:
        """Load the weights and normalisers of a checkpoint. Episodes go on, with their memory."""
        state = read_checkpoint(model)
        check_learner(state, self._name)
        self._learner.restore(state, weights_only=True)
        self._policy = self._learner.policy()

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        """Return actions of shape (num_envs, num_actions)."""
        return self._policy(observations)

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Reset the memory of the episodes that ended. Shape (num_envs,)."""
        self._policy.reset(dones)


class UntrainedPolicy:
    """Uniform random actions in [-spread, spread]."""

    def __init__(self, shape: tuple[int, int], device: torch.device | str, *, spread: float) -> None:
        self._actions = torch.zeros(shape, device=device)
        self._spread = spread

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        """Return new actions. Shape (num_envs, num_actions)."""
        del observations
        return self._actions.uniform_(-self._spread, self._spread)

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Do nothing: there is no memory."""
