"""Inference: load a policy without exploration noise, or an untrained one, and run episodes.

Also the evaluation of a learner while it trains.
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.models import MLPModel, RNNModel
from tensordict import TensorDict

from shoal.checks.optional import choose_gl
from shoal.config import ExportConfig, PlayConfig
from shoal.config.commands import EPISODES
from shoal.envs.capabilities import capabilities_of
from shoal.envs.vec_env import WarpVecEnv, build_vec_env
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.episodes import Episode, run_episodes
from shoal.learn.groups import World
from shoal.learn.learner import Learner, Policy, build_learner
from shoal.learn.metrics import Row
from shoal.learn.rsl_rl.cnn import CNNModel, RecurrentCNNModel
from shoal.learn.running_evaluation import RunningEvaluation
from shoal.learn.state import kept_random_state
from shoal.learn.statistics import EVALUATION_RETURN
from shoal.plan.checkpoints import check_learner
from shoal.sim.graphs import torch_stream
from shoal.sim.isolation import isolated
from shoal.sim.render.recorder import Recorder
from shoal.sim.render.video import make_video
from shoal.tasks.registry import TaskSpec

EVALUATION_SEED = 1_000_000_007
"""Seed of evaluations during training, in every run: not that of `evaluate`, `play` or `compare`. The best of many
equal checkpoints is the one to which these episodes are kindest, and must be reported on others."""


@contextmanager
def open_policy(
    config: PlayConfig, spec: TaskSpec, model: Path | None, device: str, *, num_envs: int
) -> Iterator[tuple[VecEnv, Policy]]:
    """Build environments and a policy on `device`, the process's default during the body.

    Steps in the body must compute no gradients. An untrained policy has no checkpoint `model`.
    """
    with isolated(device):
        env = build_vec_env(spec, config.env, num_envs=num_envs, device=device, seed=config.seed)
        if model is None:
            spread = float(config.checkpoint == "random")
            yield env, UntrainedPolicy((env.num_envs, env.num_actions), env.device, spread=spread)
        else:
            policy = TrainedPolicy(env, config, env.device)
            policy.load(model)
            yield env, policy


def play_episodes(config: PlayConfig, spec: TaskSpec, model: Path | None, device: str) -> list[Episode]:
    """Run `config.episodes` episodes, or 10, each in an environment of its own; `--video-path` records the first one.

    Only the first episode of each environment counts, so that the mean has no bias towards short episodes.

    Raises:
        ShoalError: The task has no scene to draw, or the video could not be made.
    """
    with open_policy(config, spec, model, device, num_envs=config.episodes or EPISODES) as (env, policy):
        capabilities_of(env).take_warnings()
        if config.video_path is None:
            return first_episodes(env, policy)
        recorder = Recorder(
            capabilities_of(env).picture(), config.video_length or int(env.max_episode_length), config.video_size
        )
        episodes = first_episodes(env, policy, recorder)
        make_video(recorder.cut(), Path(config.video_path), choose_gl(device, os.environ))
        return episodes


def first_episodes(
    env: VecEnv, policy: Policy, recorder: Recorder | None = None, *, on_step: Callable[[], None] = lambda: None
) -> list[Episode]:
    """Run the first episode in each environment, with `recorder` on the first one; call `on_step` after each step."""
    episodes: dict[int, Episode] = {}

    def watch(_: object) -> None:
        if recorder is not None and not recorder.is_full:
            recorder.take()
        on_step()

    least_steps = len(recorder) if recorder is not None else 0
    run_episodes(env, policy, env.num_envs, episodes.__setitem__, least_steps=least_steps, on_step=watch)
    return [episodes[row] for row in range(env.num_envs)]


def evaluate_learner(learner: Learner, env: VecEnv, world: World, *, num_envs: int) -> Row:
    """Evaluate a learner between two iterations, which leaves its training as it was.

    It runs on rank 0, while the other ranks wait in their next collective, in environments of its own, whose episodes
    begin alike each time. Each step marks the heartbeat of `world`. The training has `num_envs` environments, of which
    the learner remembers something. Returns means over all episodes.
    """
    phase = world.beat.enter("evaluate")
    with kept_random_state(world.device):
        # Recurrent networks keep the memory of their running episodes in the policy itself.
        memory = {name: row.clone() for name, row in learner.env_rows().items()}
        policy = learner.policy()
        policy.reset()
        _restart(env)
        episodes = first_episodes(env, policy, on_step=world.beat.mark)
        policy.reset()
        learner.put_env_rows(memory, num_envs)
    world.beat.enter(phase)
    return _means(episodes)


def _restart(env: VecEnv) -> None:
    environments = capabilities_of(env)
    environments.restart(EVALUATION_SEED)
    environments.take_warnings()


def _means(episodes: Sequence[Episode]) -> Row:
    # As in `shoal.jobs.statistics`: what held at the beginning proves nothing.
    successes = [each["success"] for each in episodes if each["success"] is not None and not each["met_at_reset"]]
    return {
        EVALUATION_RETURN: fmean(each["return"] for each in episodes),
        "Eval/length": fmean(each["length"] for each in episodes),
        **({"Eval/success": fmean(successes)} if successes else {}),
    }


def evaluator_of(
    learner: Learner, env: VecEnv, world: World, *, num_envs: int
) -> Callable[[], Row | RunningEvaluation]:
    """Return what evaluates a learner between two iterations as `evaluate_learner` does: on a GPU beside the training.

    Not beside it run what may draw random numbers of the training's, or change what all threads share: Python code of
    a task's author in each step, and networks other than rsl_rl's. It must be called before the training begins.
    """
    if world.device != "cpu" and isinstance(env, WarpVecEnv) and env.steps_in_any_thread:
        with kept_random_state(world.device):
            policy = learner.policy()
        if type(policy) in {MLPModel, CNNModel, RNNModel, RecurrentCNNModel}:
            return _background_evaluator(learner, env, world)
    return partial(evaluate_learner, learner, env, world, num_envs=num_envs)


def _background_evaluator(learner: Learner, env: WarpVecEnv, world: World) -> Callable[[], RunningEvaluation]:
    """Return what evaluates copies of the policy in a thread and on a CUDA stream of their own.

    It begins to evaluate the present policy. The evaluation before must have ended.
    """
    policy: Any = copy.deepcopy(learner.policy())
    stream = torch.cuda.Stream(world.device)

    def begin() -> RunningEvaluation:
        phase = world.beat.enter("evaluate")
        with kept_random_state(world.device):
            _restart(env)
        learned: Any = learner.policy()
        for copied, tensor in zip(policy.state_dict().values(), learned.state_dict().values(), strict=True):
            copied.copy_(tensor)
        policy.reset()
        stream.wait_stream(torch.cuda.current_stream(world.device))
        with torch.cuda.stream(stream), torch_stream(env.task.device):
            pass  # Warp gets to know the stream here: its list of streams is not for two threads.
        world.beat.enter(phase)
        return RunningEvaluation(evaluate)

    def evaluate(on_step: Callable[[], None]) -> Row:
        # In the thread. All tensors that it makes are of its stream.
        with torch.cuda.device(world.device), torch.cuda.stream(stream):
            try:
                return _means(first_episodes(env, policy, on_step=on_step))
            finally:
                stream.synchronize()  # If it was cancelled, steps are still queued.

    return begin


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


class UntrainedPolicy(Policy):
    """Uniform random actions in [-spread, spread]."""

    def __init__(self, shape: tuple[int, int], device: torch.device | str, *, spread: float) -> None:
        self._actions = torch.zeros(shape, device=device)
        self._spread = spread

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        """Return new actions. Shape (num_envs, num_actions)."""
        del observations
        return self._actions.uniform_(-self._spread, self._spread)
