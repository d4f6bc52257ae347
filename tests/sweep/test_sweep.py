"""Sweeps in the test's own process, through the functions that the command calls."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.commands import SURROUNDINGS
from support.stories import Listener, never_abort

from shoal.cli.launched import lines_of_sweep
from shoal.cli.parse import parse, parse_train
from shoal.commands import train
from shoal.commands.sweep import SweepPlan, make_plan, sweep
from shoal.errors import TrainingFailedError, UsageError
from shoal.plan.checkpoints import list_checkpoints
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = {"num_envs": 16, "max_iterations": 3, "agent.num_steps_per_env": 8, "agent.save_interval": 1}
SMALL |= {"env.episode_length_s": 0.4}  # So that episodes end, and there is a mean reward.
RATES = {"agent.algorithm.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


@pytest.fixture(autouse=True, scope="module")
def _surroundings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SURROUNDINGS.items():
            patch.setenv(name, value)
        yield


def plan_of(where: Path, *, fixed: dict[str, Any] | None = None, **keys: Any) -> SweepPlan:
    """Plan a sweep of small trainings on the CPU."""
    whole = {"name": "first", "task": "Cartpole-Swingup", "trials": 3, "parameters": RATES, **keys}
    file = where / "sweep.yaml"
    file.write_text(yaml.safe_dump(whole | {"fixed": SMALL | (fixed or {})}, sort_keys=False), encoding="utf-8")
    words = [str(file), "--gpu-ids", "None", "--log-root", str(where / "logs")]
    return make_plan(parse("sweep", words)[0])


def train_all(plan: SweepPlan, listener: Listener | None = None) -> list[dict[str, Any]]:
    return sweep(plan, listener or Listener(), never_abort)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], Listener]:
    """Where a sweep of three trials is, its rows, and what was shown."""
    where, listener = tmp_path_factory.mktemp("first"), Listener()
    return where, train_all(plan_of(where), listener), listener


First = tuple[Path, list[dict[str, Any]], Listener]


def test_every_trial_is_trained_to_its_end(first: First) -> None:
    _, rows, _ = first
    assert sorted(row["trial"] for row in rows) == [0, 1, 2]
    assert {(row["state"], row["iterations"]) for row in rows} == {("finished", 3)}
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    for row in rows:
        metrics = RunDir(Path(row["run"])).metrics_jsonl.read_text(encoding="utf-8").splitlines()
        assert row["score"] == json.loads(metrics[-1])["Eval/return"]


def test_the_directory_has_the_table_in_three_forms(first: First) -> None:
    where, rows, _ = first
    folder = where / "logs" / "sweeps" / "first"
    with (folder / "results.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["trial"]) for line in lines] == [row["trial"] for row in rows]
    rate = next(iter(RATES))
    assert [float(line[rate]) for line in lines] == [row["parameters"][rate] for row in rows]
    assert json.loads((folder / "results.json").read_text(encoding="utf-8"))["trials"] == rows
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert report.count("<svg") == 2, "in the order of the trials, and against the learning rate"
    assert report.count("<circle") == 6
    assert (folder / "sweep.yaml").read_text(encoding="utf-8") == (where / "sweep.yaml").read_text(encoding="utf-8")


def test_a_trial_is_shown_when_it_begins_and_when_it_ends(first: First) -> None:
    shown: list[Any] = [(row["trial"], row["state"]) for row in first[2].rows]
    assert shown == [(number, state) for number in range(3) for state in ("running", "finished")]


def test_a_trial_is_a_run_that_can_be_resumed(first: First) -> None:
    where, rows, _ = first
    run = rows[0]["run"]
    words = ("Cartpole-Swingup", "--resume", run, "--max-iterations", "5", "--log-root", str(where / "logs"))
    plan = train.make_plan(parse_train(words))
    assert (plan.start_iteration, plan.config.max_iterations) == (3, 5)
    (launch,) = json.loads(RunDir(Path(run)).run_json.read_text(encoding="utf-8"))["launches"]
    assert (launch["ended"]["exit_code"], launch["ended"]["last_line"]) == (0, "finished")


def test_the_last_line_names_the_best_trial(first: First) -> None:
    where, rows, _ = first
    *table, _report, last = lines_of_sweep(plan_of(where), rows)
    assert [line.split()[0] for line in table] == ["trial", *(str(row["trial"]) for row in rows)]
    checkpoint = list_checkpoints(RunDir(Path(rows[0]["run"])))[0].path.parent
    assert last.startswith(f"Best: trial {rows[0]['trial']}, Eval/return ")
    assert f"To play it: play Cartpole-Swingup --checkpoint {checkpoint}" in last


def test_more_trials_are_added_and_other_parameters_are_refused(first: First) -> None:
    where, rows, _ = first
    listener = Listener()
    more = train_all(plan_of(where, trials=4), listener)
    assert {row["trial"] for row in listener.rows} == {3}
    assert [row for row in more if row["trial"] != 3] == rows
    with pytest.raises(UsageError, match="has another 'fixed': give this one another name"):
        plan_of(where, fixed={"num_envs": 8})
    with pytest.raises(UsageError, match="has another 'parameters'"):
        plan_of(where, parameters={"seed": {"low": 1, "high": 9}})


@pytest.mark.soak
def test_a_bad_trial_is_pruned_after_its_first_score_with_a_checkpoint(tmp_path: Path) -> None:
    rates = {"agent.algorithm.learning_rate": {"choices": [9e-4, 8e-4, 7e-4, 6e-4, 5e-4, 1e-6]}}
    fixed = {"max_iterations": 6, "agent.algorithm.schedule": "fixed"}
    plan = plan_of(tmp_path, sampler="grid", parameters=rates, trials=6, fixed=fixed, metric="Loss/learning_rate")
    *finished, pruned = train_all(plan)
    assert {row["state"] for row in finished} == {"finished"}
    assert (pruned["trial"], pruned["state"]) == (5, "pruned")
    assert pruned["iterations"] < 6
    run = RunDir(Path(pruned["run"]))
    assert list_checkpoints(run)[-1].iteration == pruned["iterations"]
    assert json.loads(run.run_json.read_text(encoding="utf-8"))["launches"][0]["ended"]["last_line"] == "pruned"


@pytest.mark.soak
def test_the_score_is_the_evaluation_return_where_trials_are_evaluated(tmp_path: Path) -> None:
    evaluated = {"max_iterations": 4, "eval_interval": 2, "eval_episodes": 4, "agent.save_interval": 2}
    (row,) = train_all(plan_of(tmp_path, trials=1, fixed=evaluated))
    lines = RunDir(Path(row["run"])).metrics_jsonl.read_text(encoding="utf-8").splitlines()
    returns = {json.loads(line)["iteration"]: json.loads(line).get("Eval/return") for line in lines}
    assert [iteration for iteration, value in returns.items() if value is not None] == [2, 4]
    assert (row["score"], row["iterations"]) == (returns[4], 4)


def test_a_trial_that_raises_fails_alone(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, sampler="grid", parameters={"checkpoint": {"choices": ["nowhere.pt", None]}})
    rows = train_all(plan)
    assert [(row["trial"], row["state"]) for row in rows] == [(1, "finished"), (0, "failed")]
    with pytest.raises(TrainingFailedError, match=r"1 of 2 trials failed; .*nowhere\.pt does not exist"):
        list(lines_of_sweep(plan, rows))
    assert "UsageError" in (Path(rows[1]["run"]) / "traceback.txt").read_text(encoding="utf-8")
    assert [row["trial"] for row in train_all(plan)] == [1, 0], "a failed trial is not tried again"


def test_a_metric_that_no_iteration_has_fails_the_trial(tmp_path: Path) -> None:
    (row,) = train_all(plan_of(tmp_path, trials=1, metric="Train/mean_rewards"))
    assert row["state"] == "failed"
    assert row["error"].startswith("No iteration had a finite 'Train/mean_rewards', the score.")
    assert row["error"].endswith("Did you mean 'Train/mean_reward'?")


def test_a_base_that_cannot_be_trained_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        plan_of(tmp_path, fixed={"checkpoint": "nowhere.pt"})
    assert not (tmp_path / "logs").exists()
