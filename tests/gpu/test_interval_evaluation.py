"""Evaluations beside a training on emulated GPUs: the same numbers as one after the other, and the training goes on."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import emulated_gpu
from support.commands import SMALL, TRAIN, run
from support.emulated_gpu import Settings, environment
from support.learners import RslRlLoop, loop_on

from shoal.config import RslRlConfig, TrainConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.checkpoint_writer import CheckpointWriter
from shoal.learn.evaluation import EVALUATION_SEED, evaluate_learner, evaluator_of
from shoal.learn.groups import World
from shoal.learn.running_evaluation import RunningEvaluation
from shoal.plan.checkpoints import best_good, list_checkpoints
from shoal.plan.rundir import RunDir
from shoal.sim.isolation import isolated
from shoal.tasks import registry
from shoal.timing import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from support.commands import Ended

    from shoal.learn.metrics import Row

pytestmark = pytest.mark.emulated_gpu

GPU = "cuda:1"
STEPS, STEP_S = 25, 0.02
"""Number and length of the steps of an episode."""


@pytest.fixture
def on_gpu() -> Iterator[None]:
    """This process as rank of GPU 1."""
    with isolated(GPU):
        yield


def env_of(task: str, num_envs: int, seed: int, *, steps: int = STEPS) -> WarpVecEnv:
    """Environments of an evaluation, or like them."""
    spec = registry.resolve(task)
    config = dataclasses.replace(spec.env, episode_length_s=steps * STEP_S).in_play().undisturbed()
    return WarpVecEnv(spec.build(config, num_envs=num_envs, device=GPU, seed=seed))


def loop_of(task: str = "Cartpole-Swingup", *, eval_interval: int = 2, has_memory: bool = False) -> RslRlLoop:
    """A training of seven iterations that saves every fourth."""
    spec = registry.resolve(task)
    config = spec.defaults(task)
    assert isinstance(config.agent, RslRlConfig)
    algorithm = dataclasses.replace(config.agent.algorithm, num_learning_epochs=2, num_mini_batches=2)
    agent = dataclasses.replace(config.agent, num_steps_per_env=4, save_interval=4, algorithm=algorithm)
    if has_memory:
        actor, critic = (
            dataclasses.replace(
                each,
                class_name="CNNModel" if each.cnn.enabled else "RNNModel",
                rnn_type="gru",
                rnn_hidden_dim=8,
                hidden_dims=(8,),
            )
            for each in (agent.actor, agent.critic)
        )
        agent = dataclasses.replace(agent, actor=actor, critic=critic)
    config = dataclasses.replace(config, agent=agent, num_envs=8, max_iterations=7, eval_interval=eval_interval)
    return loop_on(env_of(task, 8, seed=0), config, World(device=GPU))


def train(
    loop: RslRlLoop, run_dir: RunDir, evaluate: Any, stop_requests: Callable[[], Mapping[str, bool]] = dict
) -> list[Row]:
    """Train to the end, with checkpoints, and return the rows."""
    rows: list[Row] = []
    writer = CheckpointWriter(run_dir, loop.world, TrainConfig(task="", keep_rank_files=None))
    loop.train(on_row=rows.append, save=writer.save, stop_requests=stop_requests, evaluate=evaluate)
    writer.wait()
    return rows


def evaluations_of(rows: list[Row]) -> dict[float, list[float]]:
    """What each evaluation measured, by the iteration that it is of."""
    measured = [row for row in rows if "Eval/return" in row]
    return {row["Eval/iteration"]: [row["Eval/return"], row["Eval/length"]] for row in measured}


def in_place(loop: RslRlLoop, env: WarpVecEnv) -> Callable[[], Row]:
    """Evaluates while the training waits."""
    return partial(evaluate_learner, loop.learner, env, loop.world, num_envs=8)


def beside(loop: RslRlLoop, env: WarpVecEnv) -> Callable[[], Row | RunningEvaluation]:
    """Evaluates beside the training."""
    evaluate = evaluator_of(loop.learner, env, loop.world, num_envs=8)
    assert not isinstance(evaluate, partial)
    return evaluate


def two_runs(run_dir: RunDir) -> list[RunDir]:
    """Two empty run directories."""
    runs = [RunDir(run_dir.path / name) for name in ("one", "other")]
    for each in runs:
        each.path.mkdir()
    return runs


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("task", ["Cartpole-Swingup", pytest.param("Quadruped-Velocity-Flat", marks=pytest.mark.slow)])
def test_evaluations_beside_the_training_have_the_numbers_of_those_in_place(task: str, run_dir: RunDir) -> None:
    rows, loops, bests = [], [], []
    for kind, run_of in zip((in_place, beside), two_runs(run_dir), strict=True):
        loop = loop_of(task)
        rows.append(train(loop, run_of, kind(loop, env_of(task, 5, EVALUATION_SEED))))
        loops.append(loop)
        checkpoints = list_checkpoints(run_of)
        scores = {each.iteration: each.score for each in checkpoints}
        assert scores == {iteration: evaluations_of(rows[-1])[iteration][0] for iteration in (4, 7)}
        bests.append(best_good(run_of))
    assert [*evaluations_of(rows[0])] == [2, 4, 6, 7]
    assert evaluations_of(rows[1]) == evaluations_of(rows[0])
    assert bests[0].iteration == bests[1].iteration
    weights = [{name: each.tolist() for name, each in loop.learner.replicated()} for loop in loops]
    assert weights[0] == weights[1]
    assert emulated_gpu.machine().violations == []


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("task", ["Cartpole-Swingup", "Cartpole-Swingup-Depth"])
def test_a_recurrent_policy_forgets_each_evaluation_and_nothing_of_the_training(task: str) -> None:
    loop, env = loop_of(task, has_memory=True), env_of(task, 5, EVALUATION_SEED)
    policy = loop.learner.policy()
    with torch.no_grad():
        policy(loop.env.get_observations())
    memory = {name: row.tolist() for name, row in loop.learner.env_rows().items()}
    evaluate = beside(loop, env)
    found: list[Row] = []
    for _ in range(2):
        running = evaluate()
        assert isinstance(running, RunningEvaluation)
        running.wait(loop.world.beat, lambda: False)
        found.append(running.metrics())
    assert {name: row.tolist() for name, row in loop.learner.env_rows().items()} == memory
    assert found[0] == found[1] == in_place(loop, env)()


@pytest.mark.usefixtures("on_gpu")
def test_the_last_iteration_before_the_next_evaluation_waits_for_one(run_dir: RunDir) -> None:
    loop, env = loop_of(eval_interval=4), env_of("Cartpole-Swingup", 5, EVALUATION_SEED)
    step = env.step

    def slow_step(actions: Any) -> Any:
        time.sleep(0.1)
        return step(actions)

    env.step = slow_step
    rows = train(loop, run_dir, beside(loop, env))
    found = [(row["iteration"], row["Eval/iteration"]) for row in rows if "Eval/return" in row]
    assert found == [(6, 4), (7, 7)]
    waited = {row["iteration"]: row["Perf/evaluation_time"] for row in rows if "Perf/evaluation_time" in row}
    assert [*waited] == [4, 6, 7]
    assert waited[4] < 0.1 * STEPS < waited[7]
    assert all(waited[row["iteration"]] < row["Perf/iteration_time"] for row in rows if row["iteration"] in waited)


@pytest.mark.usefixtures("on_gpu")
def test_the_training_waits_for_the_device_as_often_as_without_evaluations(run_dir: RunDir) -> None:
    """But for the look at the generator, whose state is the host's, when an evaluation begins."""
    waits: list[Counter[Any]] = []
    for has_evaluations, run_of in zip((False, True), two_runs(run_dir), strict=True):
        loop, env = loop_of(), env_of("Cartpole-Swingup", 5, EVALUATION_SEED)
        evaluate = beside(loop, env) if has_evaluations else None
        tensors: Any = emulated_gpu.machine().torch
        tensors.waits.clear()
        tensors.background_waits.clear()
        train(loop, run_of, evaluate)
        waits.append(Counter(tensors.waits))
        assert ("item", "learn/episodes.py:run_episodes") in {*tensors.background_waits} or not has_evaluations
    assert waits[1] - waits[0] == {("random state", "learn/state.py:random_state"): 4}


@pytest.mark.usefixtures("on_gpu")
def test_a_stop_ends_an_evaluation_at_once_and_its_checkpoint_has_no_score(run_dir: RunDir) -> None:
    loop, env = loop_of(eval_interval=4), env_of("Cartpole-Swingup", 5, EVALUATION_SEED, steps=1000)
    step, times = env.step, list[float]()

    def slow_step(actions: Any) -> Any:
        times.append(time.monotonic())
        time.sleep(0.05)
        return step(actions)

    env.step = slow_step

    def stop_within_the_evaluation() -> Mapping[str, bool]:
        if loop.iteration == 4:
            assert wait_for(lambda: len(times) > 5, timeout=30.0)
        return {"SIGTERM": loop.iteration == 4}

    rows = train(loop, run_dir, beside(loop, env), stop_within_the_evaluation)
    ended = time.monotonic()
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert evaluations_of(rows) == {}
    assert [(each.iteration, each.score) for each in list_checkpoints(run_dir)] == [(4, None), (5, None)]
    time.sleep(0.2)
    assert max(times) < ended
    assert len(times) < 1000


@pytest.mark.usefixtures("on_gpu")
def test_an_error_in_an_evaluation_ends_the_training_with_its_traceback(run_dir: RunDir) -> None:
    loop, env = loop_of(), env_of("Cartpole-Swingup", 5, EVALUATION_SEED)

    def broken_step(actions: Any) -> Any:
        del actions
        message = "The rail is broken."
        raise ValueError(message)

    env.step = broken_step
    with pytest.raises(ValueError, match="The rail is broken") as raised:
        train(loop, run_dir, beside(loop, env))
    assert "broken_step" in "".join(traceback.format_exception(raised.value))
    assert loop.iteration in (2, 3)


@pytest.mark.usefixtures("on_gpu")
def test_what_may_touch_the_training_is_evaluated_in_place() -> None:
    class Drawing(WarpVecEnv):
        """Environments of an author's own."""

    loop, spec = loop_of(), registry.resolve("Cartpole-Swingup")
    plain = spec.build(dataclasses.replace(spec.env, step_graph=False), num_envs=5, device=GPU, seed=1)
    task = env_of("Cartpole-Swingup", 5, 1).task
    own = env_of("Cartpole-Swingup", 5, 1).task

    class Stepping(type(own)):
        """A task with a step of an author's own."""

        def step(self) -> None:
            super().step()

    own.__class__ = Stepping
    for env in (WarpVecEnv(plain), WarpVecEnv(own), Drawing(task)):
        assert isinstance(evaluator_of(loop.learner, env, loop.world, num_envs=8), partial)

    class Network(type(loop.learner.policy())):
        """A network of an author's own."""

    loop.learner.policy().__class__ = Network
    assert isinstance(evaluator_of(loop.learner, WarpVecEnv(task), loop.world, num_envs=8), partial)


@pytest.mark.spawn
def test_a_training_with_evaluations_beside_it_ends_with_the_weights_of_one_without(tmp_path: Path) -> None:
    words = (*TRAIN, "Cartpole-Swingup", *SMALL[2:], "--gpu-ids", "1", "--logger", "none", "--max-iterations", "5")
    words = (*words, "--save-interval", "2", "--env.episode-length-s", "0.4")
    launches: list[Ended] = []
    for name, flags in {"silent": (), "evaluated": ("--eval-interval", "2", "--eval-episodes", "4")}.items():
        reports = tmp_path / f"reports {name}"
        reports.mkdir()
        ended = run((*words, *flags), tmp_path / name, environment(Settings(), reports))
        assert ended.code == 0, ended.stderr
        launches.append(ended)
    silent, ended = launches
    assert ended.record["ended"]["digests"] == silent.record["ended"]["digests"]
    found = {row["Eval/iteration"]: row["Eval/return"] for row in ended.rows if "Eval/return" in row}
    assert [*found] == [2, 4, 5]
    assert all(one < other for one, other in pairwise(row["iteration"] for row in ended.rows))
    assert {each.iteration: each.score for each in list_checkpoints(RunDir(ended.run))} == found


FAILING = """
from shoal.tasks.cartpole.task import Swingup

class Failing(Swingup):
    looks = 0

    def take_warnings(self):
        self.looks += self.num_envs == 16
        if self.looks == 3:
            raise ValueError("The rail is broken.")
        return super().take_warnings()
"""
"""A task whose training fails in its third iteration."""


@pytest.mark.spawn
def test_a_training_that_fails_leaves_the_checkpoint_whose_evaluation_it_ended(tmp_path: Path) -> None:
    task = tmp_path / "failing.py"
    task.write_text(FAILING, encoding="utf-8")
    words = (*TRAIN, f"{task}:Failing", *SMALL[2:], "--gpu-ids", "1", "--logger", "none", "--max-iterations", "6")
    flags = ("--save-interval", "2", "--eval-interval", "2", "--eval-episodes", "4")
    # No episode of the evaluation ends before the training fails, neither by time nor by the end of the rail.
    flags = (*flags, "--env.episode-length-s", "1000", "--env.rail-half-length", "1e6")
    ended = run((*words, *flags), tmp_path, environment(Settings()))
    assert (ended.code, len(ended.rows)) == (1, 2)
    assert "The rail is broken." in ended.last_line
    assert [(each.iteration, each.score) for each in list_checkpoints(RunDir(ended.run))] == [(2, None)]
    assert ended.left_processes == []
