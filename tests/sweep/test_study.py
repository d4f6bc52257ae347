"""The study: exactly as many trials as were asked for, which processes share, and pruning."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from shoal.config.plain import from_plain
from shoal.config.sweep import SweepFile
from shoal.errors import UsageError
from shoal.sweep.study import SweepStudy, Trial

if TYPE_CHECKING:
    from pathlib import Path

RATE = "agent.algorithm.learning_rate"
NETWORKS = [[16, 16], [32]]

CLAIMING = """
import sys
from pathlib import Path
from shoal.config.plain import from_plain
from shoal.config.sweep import SweepFile
from shoal.sweep.study import SweepStudy
sweep = from_plain(SweepFile, {sweep!r})
with SweepStudy(Path({folder!r}), sweep).claim() as trial:
    trial.report(1, 0.5)
    print(trial.run.path.name, flush=True)
    sys.stdin.read()
"""
"""Claims a trial, reports a score, and waits to be killed."""


def sweep_of(**keys: Any) -> SweepFile:
    parameters = {"num_envs": {"low": 8, "high": 64}, "agent.actor.hidden_dims": {"choices": NETWORKS}}
    whole = {"name": "first", "task": "Cartpole-Swingup", "trials": 3, "parameters": parameters, **keys}
    return from_plain(SweepFile, whole)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The directory of a sweep."""
    (tmp_path / "trials").mkdir()
    return tmp_path


def claimed(study: SweepStudy, stack: ExitStack) -> Trial:
    """Claim a trial until `stack` is closed."""
    trial = stack.enter_context(study.claim())
    assert trial is not None
    return trial


def finish(study: SweepStudy, *scores: float) -> bool:
    """Claim a trial, report scores, and end it; return whether it was to be pruned."""
    with study.claim() as trial:
        assert trial is not None
        decisions = [trial.report(number, score) for number, score in enumerate(scores, start=1)]
        pruned = any(decisions)
        trial.end("pruned" if pruned else "finished", len(scores))
    return pruned


def test_no_more_trials_are_made_than_were_asked_for(folder: Path) -> None:
    first, second = (SweepStudy(folder, sweep_of()) for _ in range(2))
    with ExitStack() as stack:
        trials = [claimed(study, stack) for study in (first, second, first)]
        assert [trial.run.path.name for trial in trials] == ["0000", "0001", "0002"]
        assert stack.enter_context(second.claim()) is None
    assert all(8 <= trial.parameters["num_envs"] <= 64 for trial in trials)
    assert len({trial.parameters["num_envs"] for trial in trials}) > 1, "each trial has random numbers of its own"
    assert all(trial.parameters["agent.actor.hidden_dims"] in NETWORKS for trial in trials)


def test_workers_at_the_same_time_propose_other_values(folder: Path) -> None:
    """Without a penalty for trials in training, ten of these twelve are within a tenth of the range."""
    study = SweepStudy(folder, sweep_of(trials=40, parameters={RATE: {"low": 0.0001, "high": 1.0}}))
    for _ in range(24):
        with study.claim() as trial:
            assert trial is not None
            trial.report(1, -abs(trial.parameters[RATE] - 0.5))
            trial.end("finished", 1)
    with ExitStack() as stack:
        values = sorted(claimed(study, stack).parameters[RATE] for _ in range(12))
    assert max(sum(low <= value <= low + 0.1 for value in values) for low in values) <= 5


def test_the_trial_of_a_killed_process_goes_on_with_its_parameters(folder: Path) -> None:
    sweep = {"name": "first", "task": "Cartpole-Swingup", "trials": 1, "parameters": {"seed": {"low": 0, "high": 99}}}
    words = [sys.executable, "-c", CLAIMING.format(sweep=sweep, folder=str(folder))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0000\n"
        study = SweepStudy(folder, from_plain(SweepFile, sweep))
        parameters = study.rows()[0]["parameters"]
        with study.claim() as trial:
            assert trial is None, "another process trains the only one"
        process.kill()
    with study.claim() as trial:
        assert trial is not None
        assert trial.parameters == parameters
        assert trial.report(1, 0.7) is False
        assert trial.report(2, 0.9) is False
        trial.end("finished", 2)
    (row,) = study.rows()
    assert (row["state"], row["score"], row["iterations"]) == ("finished", 0.9, 2)


def test_a_trial_that_a_process_began_without_all_parameters_gets_them(folder: Path) -> None:
    study = SweepStudy(folder, sweep_of())
    study._study.ask()
    with study.claim() as trial:
        assert trial is not None
        assert trial.run.path.name == "0000"
        assert set(trial.parameters) == {"num_envs", "agent.actor.hidden_dims"}


def test_an_incomplete_line_of_the_journal_does_no_harm(folder: Path) -> None:
    study = SweepStudy(folder, sweep_of())
    finish(study, 1.0)
    with (folder / "study.journal").open("a", encoding="utf-8") as journal:
        journal.write('{"op_code": 4, "wor')
    finish(study, 2.0)
    assert [row["trial"] for row in SweepStudy(folder, sweep_of()).rows()] == [1, 0]


def test_a_trial_below_the_median_is_pruned_and_comes_after_the_finished_ones(folder: Path) -> None:
    study = SweepStudy(folder, sweep_of(trials=8, fixed={"max_iterations": 20}))
    assert not any(finish(study, 1.0 + number, 2.0 + number) for number in range(5))
    assert finish(study, 0.5, 0.6)
    assert not finish(study, 0.5, 9.0), "the first tenth of its iterations does not count"
    rows = study.rows()
    assert [row["trial"] for row in rows] == [6, 4, 3, 2, 1, 0, 5]
    assert rows[-1]["state"] == "pruned"


def test_low_scores_come_first_where_they_are_good(folder: Path) -> None:
    study = SweepStudy(folder, sweep_of(direction="minimize"))
    for score in (2.0, 1.0, 3.0):
        finish(study, score)
    assert [row["score"] for row in study.rows()] == [1.0, 2.0, 3.0]


def test_a_grid_is_tried_in_order(folder: Path) -> None:
    parameters = {"num_envs": {"low": 8, "high": 16, "step": 8}, "agent.actor.hidden_dims": {"choices": NETWORKS}}
    study = SweepStudy(folder, sweep_of(sampler="grid", trials=None, parameters=parameters))
    with ExitStack() as stack:
        found = [tuple(claimed(study, stack).parameters.values()) for _ in range(4)]
        assert stack.enter_context(study.claim()) is None
    assert found == [(8, [16, 16]), (8, [32]), (16, [16, 16]), (16, [32])]


def test_a_grid_repeats_no_value_that_a_killed_process_had_enqueued(folder: Path) -> None:
    parameters = {"num_envs": {"low": 8, "high": 24, "step": 8}}
    study = SweepStudy(folder, sweep_of(sampler="grid", trials=None, parameters=parameters))
    study._study.enqueue_trial({"num_envs": 8})
    with ExitStack() as stack:
        assert [claimed(study, stack).parameters["num_envs"] for _ in range(3)] == [8, 16, 24]
        assert stack.enter_context(study.claim()) is None


@pytest.mark.parametrize("line", ["word", "[]", "{}", '{"op_code": 99}', '{"op_code": 4, "worker_id": 5}'])
def test_a_journal_of_nonsense_is_refused(folder: Path, line: str) -> None:
    (folder / "study.journal").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"study\.journal cannot be read \(.+\): give the sweep another name\."):
        SweepStudy(folder, sweep_of())


def test_a_link_or_a_pipe_in_place_of_the_journal_is_refused(folder: Path, tmp_path: Path) -> None:
    journal = folder / "study.journal"
    os.mkfifo(journal)
    with pytest.raises(UsageError, match=r"study\.journal cannot be read \(it is no regular file\)"):
        SweepStudy(folder, sweep_of())
    journal.unlink()
    (tmp_path / "another").touch()
    journal.symlink_to(tmp_path / "another")
    with pytest.raises(UsageError, match=r"study\.journal is a link, and nothing is written there"):
        SweepStudy(folder, sweep_of())
    (tmp_path / "another").unlink()
    with pytest.raises(UsageError, match=r"study\.journal is a link, and nothing is written there"):
        SweepStudy(folder, sweep_of())
    assert not (tmp_path / "another").exists()
