"""How the body of a rank fails: its exit record and the error that it raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.stories import never_abort

from shoal.errors import InterruptedRunError, ShoalError, TrainingFailedError, UsageError, WorkerLostError
from shoal.launch.exit_records import ExitRecord, read_exit_records
from shoal.launch.rank import run_rank
from shoal.launch.status_store import StatusStore
from shoal.plan.ranks import Rank
from shoal.signals import StopRequests

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.launch import Plan
    from shoal.plan.rundir import RunDir

RANK = Rank(rank=1, local_rank=1, world_size=2, local_world_size=2)


@pytest.fixture
def run(run_dir: RunDir) -> RunDir:
    run_dir.ranks_dir.mkdir()
    return run_dir


def failure(error: BaseException, run: RunDir, scratch: Path | None = None, **more: Any) -> tuple[Any, ExitRecord]:
    """The error that rank 1 raises when its plan cannot be loaded because of `error`, and its exit record."""

    def load() -> Plan:
        raise error

    with pytest.raises(ShoalError) as caught:
        run_rank(load, StatusStore(run, RANK, scratch), (0, 0), stop=StopRequests(), abort=never_abort, **more)
    left = sorted(path.name for path in run.ranks_dir.iterdir())
    assert left == ["rank_00001.json"]  # No heartbeat, no empty stack dump.
    return caught.value, read_exit_records(run)[1]


def test_an_exception_of_user_code_is_raised_with_rank_phase_and_traceback(run: RunDir) -> None:
    error, record = failure(ValueError("wrong"), run)
    assert isinstance(error, TrainingFailedError)
    assert str(error) == f"Rank 1 on {record.host} failed in startup: ValueError: wrong"
    assert error.details == record.traceback
    assert (record.place, record.exit_code, record.log_bytes) == ("startup", 1, None)


def test_an_error_of_shoal_is_raised_as_it_is(run: RunDir) -> None:
    error, record = failure(UsageError("Pass another one."), run)
    assert (str(error), record.error, record.exit_code) == ("Pass another one.", "Pass another one.", 2)


def test_a_second_ctrl_c_ends_the_run_at_once(run: RunDir) -> None:
    error, record = failure(KeyboardInterrupt(), run)
    assert isinstance(error, InterruptedRunError)
    assert record.exit_code == 130
    assert str(error) == record.error == "SIGINT ended the run at once. It has no checkpoint yet: start it again."


def test_a_secondary_failure_is_recorded_and_its_cause_is_raised(run: RunDir) -> None:
    cause = WorkerLostError("Lost rank 0.")
    seen: list[ExitRecord] = []
    error, record = failure(
        RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer"),
        run,
        cause_of=lambda record: seen.append(record) or cause,
    )
    assert error is cause
    assert seen == [record]
    assert record.is_secondary


def test_a_supervised_rank_records_the_size_of_its_output(run: RunDir, tmp_path: Path) -> None:
    _, record = failure(ValueError("wrong"), run, scratch=tmp_path)
    assert record.log_bytes is not None
