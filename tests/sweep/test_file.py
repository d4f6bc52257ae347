"""The file of a sweep: what it may say, what is refused before anything starts, and the configuration of a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.bombs import YAML
from support.fake_devices import seen

from shoal.config import LaunchConfig
from shoal.config.sweep import SweepFile
from shoal.errors import UsageError
from shoal.plan.training import plan_training
from shoal.sweep.file import (
    cast_to,
    config_of,
    grid_of,
    is_whole,
    metric_of,
    number_of_trials,
    read_sweep,
    training_of,
)

if TYPE_CHECKING:
    from pathlib import Path

RATE = "agent.algorithm.learning_rate"
SWEEP: dict[str, Any] = {
    "name": "first",
    "task": "Cartpole-Swingup",
    "trials": 4,
    "parameters": {RATE: {"low": "1e-4", "high": 0.01, "log": True}},
}


def read(tmp_path: Path, **keys: Any) -> SweepFile:
    """Read a sweep with these keys; None leaves a key out."""
    file = tmp_path / "sweep.yaml"
    whole = {name: value for name, value in (SWEEP | keys).items() if value is not None}
    file.write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")
    return read_sweep(file)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"task": None}, "the key 'task' is missing. Give it a value."),
        ({"task": None, "tassk": "a"}, "the key 'task' is missing. Did you mean 'tassk'? Give it a value."),
        ({"task": "Cartpole-Swingupp"}, "There is no task 'Cartpole-Swingupp'. Did you mean 'Cartpole-Swingup'?"),
        ({"trial": 3}, "trial is given, but SweepFile has no such field. Did you mean 'trials'?"),
        ({"trials": 0}, "trials is 0, but must be at least 1"),
        ({"trials": None}, "the key 'trials' is missing"),
        ({"name": "a/b"}, "name 'a/b' has a slash in it"),
        ({"sampler": "tpo"}, "Did you mean 'tpe'?"),
        ({"learner": "rsl_rk"}, "Did you mean 'rsl_rl'?"),
        ({"parameters": {}}, "parameters is {}, but must not be empty"),
        ({"parameters": {"env.decimatoin": {"low": 1, "high": 2}}}, "Did you mean 'decimation'?"),
        ({"parameters": {"env.decimation": {"lo": 1, "high": 2}}}, "Did you mean 'low'?"),
        ({"parameters": {"env.decimation": {"low": 1}}}, "parameters.env.decimation: it needs low and high"),
        ({"parameters": {"env.decimation": {"low": 3, "high": 2}}}, "low is 3, but high is 2"),
        ({"parameters": {"env.decimation": {"low": 1.5, "high": 3}}}, "env.decimation is 1.5, but must be a whole"),
        ({"parameters": {"env.decimation": {"low": 0, "high": 3}}}, "env.decimation is 0, but must be at least 1"),
        ({"parameters": {"env.decimation": {"choices": [1, "two"]}}}, "env.decimation is 'two', but must be a whole"),
        ({"parameters": {"num_envs": {"low": 1, "high": 8, "choices": [1]}}}, "they exclude each other"),
        ({"parameters": {"num_envs": {"low": 1, "high": 8, "step": 2}}}, "from low 1 no number of steps 2 leads to"),
        ({"parameters": {RATE: {"low": 0, "high": 1, "log": True}}}, "low is not above 0"),
        ({"parameters": {"gpu_ids": {"choices": ["0", "1"]}}}, "'gpu_ids' is no flag of a single trial"),
        ({"fixed": {"max_iteration": 3}}, "Did you mean 'max_iterations'?"),
        ({"fixed": {RATE: 0.1}}, f"'{RATE}' is given under parameters and under fixed"),
        ({"sampler": "grid"}, f"'{RATE}' has a range without steps"),
    ],
)
def test_what_no_trial_could_be_trained_with_is_refused(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, **keys)
    assert str(refused.value).startswith(f"In {tmp_path / 'sweep.yaml'}: ")
    assert sentence in str(refused.value)


def test_flags_may_be_written_with_dashes(tmp_path: Path) -> None:
    sweep = read(tmp_path, fixed={"max-iterations": 7, "agent.num-steps-per-env": 8})
    config = config_of(sweep, {RATE: 0.002})
    assert (config.max_iterations, config.agent.num_steps_per_env, config.export) == (7, 8, False)
    assert config.agent.algorithm.learning_rate == 0.002  # pyright: ignore[reportAttributeAccessIssue]


def test_a_range_has_whole_numbers_where_the_flag_takes_no_others(tmp_path: Path) -> None:
    ranges = {"num_envs": {"low": 1, "high": 8}, "env.force_limit": {"low": 5, "high": 10}}
    sweep = read(tmp_path, parameters=ranges)
    assert (is_whole(sweep, "num_envs"), is_whole(sweep, "env.force_limit")) == (True, False)
    assert type(cast_to(sweep, "num_envs", 8.0)) is int


def test_a_grid_has_every_combination_once_and_no_more_trials(tmp_path: Path) -> None:
    values = {"num_envs": {"low": 16, "high": 48, "step": 16}, "env.force_limit": {"choices": [5.0, 10.0]}}
    sweep = read(tmp_path, sampler="grid", trials=None, parameters=values)
    grid = grid_of(sweep)
    assert [tuple(each.values()) for each in grid] == [(n, limit) for n in (16, 32, 48) for limit in (5.0, 10.0)]
    assert number_of_trials(sweep) == 6
    assert number_of_trials(read(tmp_path, sampler="grid", trials=100, parameters=values)) == 6
    assert number_of_trials(read(tmp_path, sampler="grid", trials=4, parameters=values)) == 4


def test_steps_of_a_tenth_do_not_drift(tmp_path: Path) -> None:
    sweep = read(tmp_path, sampler="grid", parameters={"env.force_limit": {"low": 0.1, "high": 0.4, "step": 0.1}})
    assert [each["env.force_limit"] for each in grid_of(sweep)] == [0.1, 0.2, 0.3, 0.4]


def test_a_trial_is_planned_on_the_gpu_of_its_worker(tmp_path: Path) -> None:
    launch = LaunchConfig(task="Cartpole-Swingup", gpu_ids=("all",), log_root=str(tmp_path))
    config = training_of(read(tmp_path), {RATE: 0.001}, launch, "cuda:1")
    plan = plan_training(config, {}, seen(2))
    assert (plan.devices, plan.launch_mode) == (("cuda:1",), "in process")


@pytest.mark.parametrize(
    ("keys", "metric", "eval_interval"),
    [
        ({}, "Eval/return", 10),
        ({"fixed": {"max_iterations": 10}}, "Eval/return", 1),
        ({"fixed": {"agent.save_interval": 25, "max_iterations": 110}}, "Eval/return", 5),  # 11 does not divide 25.
        ({"fixed": {"eval_interval": 5}}, "Eval/return", 5),
        ({"fixed": {"eval_interval": 0}}, "Train/mean_reward", 0),
        ({"metric": "Eval/length"}, "Eval/length", 10),
        ({"metric": "Loss/value"}, "Loss/value", 0),
    ],
)
def test_the_score_is_of_evaluations_unless_the_file_says_otherwise(
    tmp_path: Path, keys: dict[str, Any], metric: str, eval_interval: int
) -> None:
    keys["fixed"] = {"agent.save_interval": 50, "max_iterations": 100} | keys.get("fixed", {})
    sweep = read(tmp_path, **keys)
    assert (metric_of(sweep), config_of(sweep, {RATE: 0.001}).eval_interval) == (metric, eval_interval)


@pytest.mark.parametrize("metric", [None, "Eval/return", "Train/mean_reward"])
@pytest.mark.parametrize(
    ("task", "field"),
    [
        ("Cartpole-Swingup", "env.swung_up_weight"),
        ("Cartpole-Swingup", "env.episode_length_s"),
        ("Quadruped-Velocity-Flat", "env.rewards.feet_slip.weight"),
    ],
)
def test_no_return_ranks_trials_that_count_other_rewards(
    tmp_path: Path, task: str, field: str, metric: str | None
) -> None:
    keys = {"task": task, "parameters": {field: {"low": 1.0, "high": 2.0}}}
    with pytest.raises(UsageError, match=f"'{field}' decides what a return counts"):
        read(tmp_path, metric=metric, **keys)
    assert metric_of(read(tmp_path, metric="Eval/length", **keys)) == "Eval/length"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", YAML.values(), ids=YAML)
def test_a_file_that_multiplies_or_nests_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"sweep\.yaml"):
        read_sweep(tmp_path / "sweep.yaml")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "parameters",
    [
        {RATE: {"low": 0.0, "high": 1.0, "step": 1e-12}},
        {"num_envs": {"low": 1, "high": 10**12}},
        {"num_envs": {"low": 1, "high": 1000}, "seed": {"low": 1, "high": 1000}},
        {RATE: {"low": float("-inf"), "high": 1.0, "step": 0.1}},
        {RATE: {"low": 0.0, "high": float("inf"), "step": 0.1}},
        {RATE: {"low": float("nan"), "high": 1.0, "step": 0.1}},
    ],
)
def test_a_grid_without_an_end_is_refused_at_once(tmp_path: Path, parameters: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"sweep\.yaml"):
        read(tmp_path, sampler="grid", parameters=parameters)
