"""The host waits for the device only at these lines: the budget of a rollout, an update, a checkpoint and a resume."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import emulated_gpu
from support.learner_agents import AGENTS
from support.learners import RslRlLoop, loop_on

from shoal.config import RslRlConfig, TrainConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.checkpoint_writer import CheckpointWriter
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.groups import World
from shoal.learn.training_env import TrainingEnv
from shoal.sim.isolation import isolated
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.learn.checkpoints import Snapshot
    from shoal.plan.rundir import RunDir

pytestmark = pytest.mark.emulated_gpu

GPU = "cuda:1"
NUM_ENVS = 16

Waits = dict[tuple[str, str], int]

ROLLOUT: Waits = {("item", "learn/training_env.py:_refuse_non_finite"): 1}
"""Waits of one rollout: the look for NaN after its last step."""


UPDATE: Waits = {("copy to the host", "rsl_rl/ppo.py:update"): 1}
"""Waits of one update: the losses of all mini-batches at once."""
CAPTURE: Waits = {("device synchronize", "learn/graphs.py:_capture"): 1}
"""Once in a training, in its first iteration: torch waits before it captures a graph."""
FAST_SAC_UPDATE: Waits = {("copy to the host", "learn/fast_sac.py:iterate"): 1}
"""Waits of FastSAC's updates in an iteration: losses and the final observations in use, at once."""


STATISTICS: Waits = {
    ("copy to the device", "learn/statistics.py:_sum_over_ranks"): 1,
    ("copy to the host", "learn/statistics.py:_sum_over_ranks"): 1,
}
AFTER_UPDATE: Waits = {
    **STATISTICS,
    ("item", "learn/health.py:refuse_non_finite_update"): 1,
    ("item", "rsl_rl/learner.py:metrics"): 1,
}
"""Waits between an update and the next rollout."""

REPLICAS: Waits = {
    ("item", "learn/learner.py:<listcomp>"): 1,
    ("copy to the host", "learn/replicas.py:fingerprints"): 1,
    ("copy to the device", "learn/replicas.py:compare_replicas"): 1,
    ("equal", "learn/replicas.py:compare_replicas"): 1,
}
"""Waits of a comparison of replicas: one every `--check-replicas-every` iterations, and one after the last."""

SAVE: Waits = {("random state", "learn/state.py:random_state"): 1}
"""Waits of the training for one checkpoint."""


class Budget:
    """Counts the waits of each part of a training."""

    def __init__(self, loop: RslRlLoop) -> None:
        self.parts: dict[str, list[Waits]] = {"rollout": [], "update": [], "save": [], "between": []}
        self._counted: Counter[Any] = Counter()
        iterate, save = loop.learner.iterate, loop._save_when_due

        def iterate_counted(env: TrainingEnv) -> dict[str, float]:
            self.close("between")
            end_rollout = env.end_rollout

            def end_counted() -> None:
                end_rollout()
                self.close("rollout")

            env.end_rollout = end_counted
            losses = iterate(env)
            env.end_rollout = end_rollout
            self.close("update")
            return losses

        def save_counted(*arguments: Any, **named: Any) -> None:
            self.close("between")
            save(*arguments, **named)
            self.close("save")

        loop.learner.iterate, loop._save_when_due = iterate_counted, save_counted

    def close(self, part: str) -> None:
        """Book all waits since the last call on a part."""
        tensors = emulated_gpu.machine().torch
        assert tensors is not None
        now = Counter(tensors.waits)
        self.parts[part].append(dict(now - self._counted))
        self._counted = now


@pytest.fixture
def on_gpu() -> Iterator[None]:
    """This process as rank of GPU 1."""
    with isolated(GPU):
        yield


def loop_of(name: str, max_iterations: int, **changes: Any) -> RslRlLoop:
    """A learner of a shipped task."""
    spec = registry.resolve(name)
    config = dataclasses.replace(spec.defaults(name), num_envs=NUM_ENVS, max_iterations=max_iterations)
    assert isinstance(config.agent, RslRlConfig)
    algorithm = dataclasses.replace(config.agent.algorithm, num_learning_epochs=2, num_mini_batches=2)
    agent = dataclasses.replace(config.agent, num_steps_per_env=4, save_interval=2, algorithm=algorithm, **changes)
    env = WarpVecEnv(spec.load_builder()(config.env, num_envs=NUM_ENVS, device=GPU, seed=0))
    return loop_on(env, dataclasses.replace(config, agent=agent), World(device=GPU))


def train(loop: RslRlLoop, run_dir: RunDir) -> Budget:
    """Train to the end, with checkpoints."""
    writer = CheckpointWriter(run_dir, loop.world, TrainConfig(task="", keep_rank_files=None))

    def save(snapshot: Snapshot) -> None:
        writer.save(snapshot)

    budget = Budget(loop)
    budget.close("between")
    budget.parts["between"].clear()
    loop.train(on_row=lambda _: None, save=save, stop_requests=dict)
    writer.wait()
    return budget


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("name", ["Cartpole-Swingup", "Quadruped-Velocity-Flat"])
def test_a_training_waits_for_the_device_only_where_it_may(name: str, run_dir: RunDir) -> None:
    loop = loop_of(name, max_iterations=4)
    parts = train(loop, run_dir).parts
    assert parts["rollout"] == [ROLLOUT | CAPTURE, *[ROLLOUT] * 3]
    assert parts["update"] == [UPDATE | CAPTURE, *[UPDATE] * 3]
    assert [each for each in parts["save"] if each] == [SAVE] * 2
    # The names of what a task logs are new in the first iteration, which sums them apart.
    env: Any = loop.env
    first = dict(Counter(AFTER_UPDATE) + Counter(STATISTICS)) if env.task.metrics else AFTER_UPDATE
    expected = [first, AFTER_UPDATE, AFTER_UPDATE, AFTER_UPDATE | REPLICAS]
    assert [each for each in parts["between"] if each] == expected
    assert emulated_gpu.machine().violations == []


@pytest.mark.usefixtures("on_gpu")
def test_fast_sac_waits_once_for_all_updates_of_an_iteration(run_dir: RunDir) -> None:
    agent = dataclasses.replace(AGENTS["fast_sac"], num_steps_per_env=6, replay_steps=32)
    spec = registry.resolve("Cartpole-Swingup")
    env = WarpVecEnv(spec.load_builder()(spec.env, num_envs=NUM_ENVS, device=GPU, seed=0))
    env.keep_final_observations()
    config = TrainConfig(task=spec.name, learner="fast_sac", agent=agent, num_envs=NUM_ENVS, max_iterations=4)
    parts = train(loop_on(env, config, World(device=GPU)), run_dir).parts
    twice = {what: 2 * number for what, number in CAPTURE.items()}
    assert parts["rollout"] == [ROLLOUT | CAPTURE, ROLLOUT | CAPTURE, ROLLOUT, ROLLOUT]
    assert parts["update"] == [FAST_SAC_UPDATE | twice, *[FAST_SAC_UPDATE] * 3]
    metrics = {("copy to the host", "learn/fast_sac.py:metrics"): 1}
    after = {name: number for name, number in AFTER_UPDATE.items() if "metrics" not in name[1]} | metrics
    assert [each for each in parts["between"] if each][1:3] == [after, after]
    assert emulated_gpu.machine().violations == []


@pytest.mark.usefixtures("on_gpu")
def test_the_time_of_a_rollout_is_the_device_s_also_without_the_look_for_nan(run_dir: RunDir) -> None:
    loop = loop_of("Cartpole-Swingup", max_iterations=1, check_for_nan=False)
    assert train(loop, run_dir).parts["rollout"] == [
        {("device synchronize", "learn/training_env.py:end_rollout"): 1} | CAPTURE
    ]


@pytest.mark.usefixtures("on_gpu")
def test_a_resumed_training_waits_no_more_than_before(run_dir: RunDir) -> None:
    train(loop_of("Cartpole-Swingup", max_iterations=2), run_dir)
    loop = loop_of("Cartpole-Swingup", max_iterations=4)
    loop.restore(read_checkpoint(run_dir.checkpoint_dir(2) / "model.pt"))
    assert train(loop, run_dir).parts["update"] == [UPDATE | CAPTURE, UPDATE]


@pytest.mark.usefixtures("on_gpu")
def test_a_gpu_out_of_memory_is_no_checkpoint_that_does_not_fit(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of("Cartpole-Swingup", max_iterations=2)
    train(loop, run_dir)

    def refuse(*_: Any, **__: Any) -> None:
        message = "CUDA out of memory. Tried to allocate 2.00 GiB."
        raise torch.cuda.OutOfMemoryError(message)

    monkeypatch.setattr(loop.learner.alg, "load", refuse)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        loop.restore(read_checkpoint(run_dir.checkpoint_dir(2) / "model.pt"))
