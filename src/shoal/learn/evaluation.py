"""Inference: load a policy without exploration noise, or an untrained one, and run episodes.

Also the evaluation of a learner while it trains.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.checks.film import choose_gl
from shoal.config import ExportConfig, PlayConfig
from shoal.envs.building import build_vec_env
from shoal.envs.capabilities import capabilities_of
from shoal.heartbeat import Heartbeat
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.episodes import Episode, run_episodes
from shoal.learn.groups import World
from shoal.learn.learner import Learner, Policy
from shoal.learn.learners import build_learner
from shoal.learn.metrics import Row
from shoal.learn.state import random_state, set_random_state
from shoal.learn.statistics import EVALUATION_RETURN
from shoal.plan.checkpoints import check_learner
from shoal.sim.isolation import isolated
from shoal.sim.render.film import make_film
from shoal.sim.render.reel import Reel
from shoal.tasks.registry import TaskSpec

EVALUATION_SEED = 1_000_000_007
"""Seed of evaluations during training, in every run: not that of `evaluate`, `play` or `compare`. The best of many
equal checkpoints is the one to which these episodes are kindest, and must be reported on others."""


@contextmanager
def open_policy(config: PlayConfig, spec: TaskSpec, model: Path | None, device: str) -> Iterator[tuple[VecEnv, Policy]]:
    """Build `config.episodes` environments and a policy on `device`, the process's default during the body.

    Steps in the body must compute no gradients. An untrained agent has no checkpoint `model`.
    """
    with isolated(device):
        env = build_env(config, spec, device, num_envs=config.episodes, seed=config.seed)
        if model is None:
            spread = float(config.agent_kind == "random")
            yield env, UntrainedPolicy((env.num_envs, env.num_actions), env.device, spread=spread)
        else:
            policy = TrainedPolicy(env, config, env.device)
            policy.load(model)
            yield env, policy


def build_env(config: PlayConfig | ExportConfig, spec: TaskSpec, device: str, *, num_envs: int, seed: int) -> VecEnv:
    """Build environments as in training, inside `isolated(device)`."""
    torch.manual_seed(seed)
    return build_vec_env(spec, config.env, num_envs=num_envs, device=device, seed=seed, beat=Heartbeat())


def play_episodes(config: PlayConfig, spec: TaskSpec, model: Path | None, device: str) -> list[Episode]:
    """Run one episode in each of `config.episodes` environments, and film the first one with `--video`.

    Only the first episode of each environment counts, so that the mean has no bias towards short episodes.

    Raises:
        ShoalError: The task has no scene to film, or the film could not be made.
    """
    with open_policy(config, spec, model, device) as (env, policy):
        if config.video_path is None:
            return first_episodes(env, policy)
        reel = Reel(
            capabilities_of(env).picture(), config.video_length or int(env.max_episode_length), config.video_size
        )
        episodes = first_episodes(env, policy, reel)
        make_film(reel.cut(), Path(config.video_path), choose_gl(device, os.environ))
        return episodes


def first_episodes(
    env: VecEnv, policy: Policy, reel: Reel | None = None, *, on_step: Callable[[], None] = lambda: None
) -> list[Episode]:
    """Run the first episode in each environment, film the first one on `reel`, and call `on_step` after each step."""
    episodes: dict[int, Episode] = {}

    def watch(_: object) -> None:
        if reel is not None and not reel.is_full:
            reel.take()
        on_step()

    least_steps = len(reel) if reel is not None else 0
    run_episodes(env, policy, env.num_envs, episodes.__setitem__, least_steps=least_steps, on_step=watch)
    return [episodes[row] for row in range(env.num_envs)]


def evaluate_learner(learner: Learner, env: VecEnv, world: World, *, num_envs: int) -> Row:
    """Evaluate a learner between two iterations, which leaves its training as it was.

    It runs on rank 0, while the other ranks wait in their next collective, in environments of its own, whose episodes
    begin alike each time. Each step marks the heartbeat of `world`. The training has `num_envs` environments, of which
    the learner remembers something.

    Returns:
        Means over all episodes, and the time that it took [s].
    """
    started, phase = time.perf_counter(), world.beat.enter("evaluate")
    random_states = random_state(world.device)
    # Recurrent networks keep the memory of their running episodes in the policy itself.
    memory = {name: row.clone() for name, row in learner.env_rows().items()}
    policy = learner.policy()
    policy.reset()
    capabilities_of(env).restart(EVALUATION_SEED)
    episodes = first_episodes(env, policy, on_step=world.beat.mark)
    successes = [each["success"] for each in episodes if each["success"] is not None]
    policy.reset()
    learner.put_env_rows(memory, num_envs)
    set_random_state(world.device, random_states)
    world.beat.enter(phase)
    return {
        EVALUATION_RETURN: fmean(each["return"] for each in episodes),
        "Eval/length": fmean(each["length"] for each in episodes),
        **({"Eval/success": fmean(successes)} if successes else {}),
        "Perf/evaluation_time": time.perf_counter() - started,
    }


class TrainedPolicy:
    """The policy of a learner, whose weights may be exchanged for those of another checkpoint."""

    def __init__(self, env: VecEnv, config: PlayConfig | ExportConfig, device: torch.device | str) -> None:
        self.learner = build_learner(env, config, World(device=str(device)))
        self._policy, self._name = self.learner.policy(), config.learner

    def load(self, model: Path) -> int:
        """Load the weights and normalisers of a checkpoint, and return its iteration. Episodes go on, with memory."""
        state = read_checkpoint(model)
        check_learner(state, self._name)
        self.learner.restore(state, weights_only=True)
        self._policy = self.learner.policy()
        return int(state.get("iter", -1)) + 1

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
