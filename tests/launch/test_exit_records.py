"""Exit records: what they hold, the first cause among them, and its error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from shoal.errors import InterruptedRunError, TrainingFailedError, UsageError
from shoal.launch.exit_records import (
    ExitRecord,
    failure_of,
    first_failure,
    read_exit_records,
    resume_hint,
    was_requested,
    write_exit_record,
)
from shoal.plan.ranks import Rank
from shoal.run_record import clear_exit_records

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.rundir import RunDir

RANK_1 = Rank(rank=1, local_rank=1, world_size=2, local_world_size=2)


@pytest.fixture
def run(run_dir: RunDir) -> RunDir:
    run_dir.ranks_dir.mkdir()
    return run_dir


def failed(rank: int, time: float, **more: Any) -> ExitRecord:
    return ExitRecord(rank=rank, host="here", ending="failed", time=time, exit_code=more.pop("exit_code", 1), **more)


def raised(error: Exception) -> ExitRecord:
    """The record of rank 1 that raised `error`."""
    try:
        raise error
    except type(error) as caught:
        return ExitRecord.of_error(caught, RANK_1)


def test_a_record_comes_back_as_it_was_written(run: RunDir) -> None:
    record = raised(ValueError("wrong"))
    write_exit_record(run, record)
    assert read_exit_records(run) == {1: record}


def test_notes_of_an_exception_do_not_hide_what_it_says(run: RunDir) -> None:
    """As PEP 678 has them: JAX adds some to everything that it raises."""
    error = ValueError("wrong")
    error.add_note("For simplicity, frames were removed.\nIn two lines.")
    record = raised(error)
    assert record.error == "ValueError: wrong"
    assert "In two lines." in record.traceback
    write_exit_record(run, record)
    assert str(failure_of(read_exit_records(run)[1])) == "Rank 1 on " + record.host + " failed: ValueError: wrong"


def test_a_record_appears_whole(run: RunDir) -> None:
    write_exit_record(run, raised(ValueError("wrong")))
    assert [path.name for path in run.ranks_dir.iterdir()] == ["rank_00001.json"]
    assert json.loads((run.ranks_dir / "rank_00001.json").read_text(encoding="utf-8"))["error"] == "ValueError: wrong"


def test_a_record_that_finds_no_room_in_the_run_directory_is_found_elsewhere(run: RunDir, tmp_path: Path) -> None:
    spare = tmp_path / "spare"
    spare.mkdir()
    run.ranks_dir.rmdir()
    run.ranks_dir.touch()  # A file in the place of the directory is as good as a full disk.
    record = raised(ValueError("wrong"))
    write_exit_record(run, record, spare=spare)
    assert read_exit_records(run, spare=spare) == {1: record}


def test_records_of_an_earlier_launch_are_removed(run: RunDir) -> None:
    write_exit_record(run, raised(ValueError("wrong")))
    clear_exit_records(run)
    assert read_exit_records(run) == {}


@pytest.mark.parametrize("name", ["rank_00001.stacks.txt", "rank_00001.diverged.npz"])
def test_stacks_and_lost_environments_of_earlier_launches_are_kept_beside_each_other(run: RunDir, name: str) -> None:
    for launch in ("first", "second"):
        (run.ranks_dir / name).write_text(launch, encoding="utf-8")
        clear_exit_records(run)
    kept = {path.name: path.read_text(encoding="utf-8") for path in run.ranks_dir.iterdir()}
    assert kept == {f"launch_1_{name}": "first", f"launch_2_{name}": "second"}


def test_an_exception_of_the_users_is_noted_with_its_traceback() -> None:
    record = raised(ValueError("wrong"))
    assert record.traceback.splitlines()[-1] == record.error == "ValueError: wrong"
    assert record.exit_code == 1


def test_an_error_of_our_own_is_noted_by_its_message_alone() -> None:
    record = raised(UsageError("Pass another one."))
    assert (record.error, record.traceback, record.exit_code) == ("Pass another one.", "", 2)


@pytest.mark.parametrize(
    "words",
    [
        "[/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711",
        "NCCL Error 2: DistBackendError",
    ],
)
def test_a_broken_connection_is_an_secondary_failure(words: str) -> None:
    assert raised(RuntimeError(words)).is_secondary


def test_a_users_exception_is_no_secondary_failure() -> None:
    assert not raised(RuntimeError("the gripper lost its connection")).is_secondary


def test_the_first_failure_is_the_earliest_that_is_no_secondary_failure() -> None:
    records = [failed(0, 1.0, is_secondary=True), failed(1, 3.0), failed(2, 2.0)]
    assert first_failure(records) == records[2]


def test_secondary_failurees_alone_have_no_first_failure() -> None:
    done = ExitRecord(rank=1, host="here", ending="done", time=0.0)
    assert first_failure([failed(0, 1.0, is_secondary=True), done]) is None


def test_a_failure_is_told_with_rank_and_host_and_its_own_traceback() -> None:
    record = raised(ValueError("wrong"))
    error = failure_of(record)
    assert isinstance(error, TrainingFailedError)
    assert str(error) == f"Rank 1 on {record.host} failed: ValueError: wrong"
    assert error.details == record.traceback


def test_a_refusal_stays_one() -> None:
    assert isinstance(failure_of(failed(1, 0.0, exit_code=2, error="No.")), UsageError)


def test_an_ending_that_was_asked_for_blames_no_rank() -> None:
    record = failed(1, 0.0, exit_code=130, error="SIGINT ended the run.")
    assert was_requested(record)
    assert isinstance(failure_of(record), InterruptedRunError)
    assert str(failure_of(record)) == "SIGINT ended the run."


def test_the_way_on_is_the_newest_checkpoint(run: RunDir) -> None:
    assert resume_hint(run) == "It has no checkpoint yet: start it again."
    for iteration in (50, 100):
        run.checkpoint_dir(iteration).mkdir(parents=True)
    assert resume_hint(run) == "Pass --resume to go on from iteration 100."
