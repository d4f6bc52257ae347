"""Evaluations during a training: comparable with each other and with `evaluate`, and the training does not notice."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.learner_agents import AGENTS, SPEC, new_loop
from support.learners import ALONE, loop_on, tiny_agent, tiny_config
from support.saved import write_checkpoint

from shoal.config import ModelConfig, PlayConfig, PpoConfig, RndConfig
from shoal.config.evaluate import ComparePoliciesConfig, EvaluateConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.heartbeat import Heartbeat
from shoal.learn.evaluation import EVALUATION_SEED, evaluate_learner, play_episodes
from shoal.learn.groups import World
from shoal.learn.replicas import compare_replicas
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.learn.checkpoints import Snapshot
    from shoal.learn.loop import TrainingLoop
    from shoal.learn.metrics import Row
    from shoal.plan.rundir import RunDir

SHORT = replace(SPEC.env, episode_length_s=0.4)
RECURRENT = partial(ModelConfig, class_name="RNNModel", rnn_type="gru", rnn_hidden_dim=8, hidden_dims=(8,))
ACTOR = {"obs_normalization": True, "distribution": tiny_agent().actor.distribution}
ALL = {"actor": ("policy",), "critic": ("policy",)}
RSL_RL: dict[str, Any] = {
    "rsl_rl": tiny_agent(obs_groups=ALL),
    "rsl_rl GRU": tiny_agent(obs_groups=ALL, actor=RECURRENT(**ACTOR), critic=RECURRENT()),
    "rsl_rl RND": tiny_agent(
        obs_groups={**ALL, "rnd_state": ("policy",)},
        algorithm=PpoConfig(num_mini_batches=2, rnd=RndConfig(enabled=True, reward_normalization=True)),
    ),
}


EACH = [pytest.param(agent, marks=[pytest.mark.soak] * (agent == "skrl_jax")) for agent in AGENTS]
"""All other learners; JAX compiles for seconds."""


def digest_of(loop: TrainingLoop) -> str:
    return compare_replicas(loop.learner, ALONE, when="in a test")


def loop_of(agent: str, /, **changes: Any) -> TrainingLoop:
    """A training of four iterations on the cart-pole."""
    if agent in AGENTS:
        return new_loop(agent, **changes)
    env = WarpVecEnv(SPEC.build(SHORT, num_envs=8, device="cpu", seed=1))
    return loop_on(env, tiny_config(**({"agent": RSL_RL[agent], "max_iterations": 4} | changes)))


class Drawing(WarpVecEnv):
    """A task whose author draws random numbers wherever they come from."""

    def step(self, actions: torch.Tensor) -> Any:
        """Step as ever."""
        _ = torch.rand(()), np.random.rand(), random.random()  # noqa: NPY002, S311
        return super().step(actions)


def evaluation_env(num_envs: int = 5) -> WarpVecEnv:
    """Environments of the evaluation; another number than those of the training."""
    return Drawing(SPEC.build(SHORT, num_envs=num_envs, device="cpu", seed=EVALUATION_SEED))


def train(
    loop: TrainingLoop, env: WarpVecEnv | None, requests: Mapping[str, bool] | None = None
) -> tuple[list[Row], list[Snapshot]]:
    """Train with evaluations in `env`, or without; return the rows, and what was saved."""
    rows: list[Row] = []
    saved: list[Snapshot] = []
    loop.train(
        on_row=rows.append,
        save=saved.append,
        stop_requests=lambda: requests or {},
        evaluate=env and partial(evaluate_learner, loop.learner, env, loop.world, num_envs=loop.env.num_envs),
    )
    return rows, saved


@pytest.mark.parametrize("agent", [*RSL_RL, *EACH])
def test_a_training_learns_the_same_with_evaluations(agent: str) -> None:
    env = evaluation_env()
    silent = loop_of(agent)
    train(silent, None)
    evaluated = loop_of(agent, eval_interval=1)  # Seeds the random states again.
    rows, _ = train(evaluated, env)
    assert len({row["Eval/return"] for row in rows}) > 1, "the policy changes"
    assert digest_of(evaluated) == digest_of(silent)


def test_evaluations_come_at_each_interval_and_at_the_end() -> None:
    agent = replace(RSL_RL["rsl_rl"], save_interval=4)
    rows, saved = train(loop_of("rsl_rl", eval_interval=2, max_iterations=5, agent=agent), evaluation_env())
    measured = {"Eval/return", "Eval/length", "Perf/evaluation_time"}
    assert [row["iteration"] for row in rows if "Eval/return" in row] == [2, 4, 5]
    assert all(measured <= row.keys() or not measured & row.keys() for row in rows)
    assert all(row["Perf/evaluation_time"] < row["Perf/iteration_time"] for row in rows if "Eval/return" in row)
    told = [(each.iteration, each.metadata["metric"], each.metadata["score"]) for each in saved]
    assert told == [(iteration, "Eval/return", rows[iteration - 1]["Eval/return"]) for iteration in (4, 5)]


def test_a_training_that_a_signal_ends_saves_at_once() -> None:
    (row,), (snapshot,) = train(loop_of("rsl_rl", eval_interval=1), evaluation_env(), {"SIGTERM": True})
    assert "Eval/return" not in row
    assert (snapshot.metadata["metric"], snapshot.metadata["score"]) == ("Eval/return", None)


def test_without_evaluations_checkpoints_have_the_score_of_the_training() -> None:
    _, saved = train(loop_of("rsl_rl"), None)
    assert {each.metadata["metric"] for each in saved} == {"Train/mean_whole_reward"}


@pytest.mark.parametrize("task", ["Cartpole-Swingup", pytest.param("Quadruped-Velocity-Rough", marks=pytest.mark.soak)])
def test_an_unchanged_policy_earns_the_same_again(task: str) -> None:
    spec = registry.resolve(task)
    config = replace(spec.env, episode_length_s=0.4)
    loop = loop_on(WarpVecEnv(spec.build(config, num_envs=2, device="cpu", seed=1)), spec.defaults(), ALONE)
    env = WarpVecEnv(spec.build(config.in_play().undisturbed(), num_envs=6, device="cpu", seed=EVALUATION_SEED))
    weights = copy.deepcopy(loop.learner.state())

    def evaluated() -> Row:
        row = evaluate_learner(loop.learner, env, ALONE, num_envs=2)
        return {name: value for name, value in row.items() if name.startswith("Eval/")}

    first = evaluated()
    other = loop_on(loop.env, spec.defaults(), ALONE, seed=1)  # Other weights leave other states behind.
    loop.learner.restore(other.learner.state(), weights_only=True)
    assert evaluated() != first
    loop.learner.restore(weights, weights_only=True)
    assert evaluated() == first


def test_evaluate_repeats_the_episodes_of_an_evaluation(run_dir: RunDir) -> None:
    loop = loop_of("rsl_rl", eval_interval=2)
    rows, saved = train(loop, evaluation_env(num_envs=12))
    model = write_checkpoint(run_dir, 4, loop.state(), world_size=1) / "model.pt"
    config = PlayConfig(task=SPEC.name, episodes=12, env=SHORT, agent=loop.config.agent, seed=EVALUATION_SEED)
    episodes = play_episodes(config, SPEC, model, "cpu")
    assert saved[-1].metadata["score"] == sum(each["return"] for each in episodes) / 12
    assert rows[-1]["Eval/length"] == sum(each["length"] for each in episodes) / 12


def test_the_episodes_that_choose_the_best_checkpoint_are_not_those_that_report_it() -> None:
    play, compare = PlayConfig(task=SPEC.name), ComparePoliciesConfig(task=SPEC.name)
    assert EVALUATION_SEED not in {play.seed, compare.seed, *EvaluateConfig().seeds}


def test_each_step_of_an_evaluation_is_progress() -> None:
    beat, loop, env = Heartbeat(), loop_of("rsl_rl"), evaluation_env()
    phases: list[tuple[str, int]] = []
    beat.enter("update")
    beat.on_enter = lambda phase: phases.append((phase, beat.marks))
    evaluate_learner(loop.learner, env, World(beat=beat), num_envs=8)
    (first, before), (second, after) = phases
    assert (first, second) == ("evaluate", "update")
    assert after - before == env.max_episode_length + 1


@pytest.mark.parametrize(("interval", "save_interval", "proposed"), [(20, 50, 10), (100, 50, 50)])
def test_checkpoints_without_an_evaluation_are_refused(interval: int, save_interval: int, proposed: int) -> None:
    with pytest.raises(UsageError) as refused:
        tiny_config(eval_interval=interval, agent=tiny_agent(save_interval=save_interval))
    assert f"--eval-interval is {interval}, but --save-interval is {save_interval}" in str(refused.value)
    tiny_config(eval_interval=proposed, agent=tiny_agent(save_interval=save_interval))
    assert f"pass --eval-interval {proposed}, or" in str(refused.value)
