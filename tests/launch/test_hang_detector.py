"""Hang detection: by hand-written heartbeats, and by real processes that get stuck."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.commands import wait_until

from shoal.errors import WorkerLostError
from shoal.heartbeat import Beat, beat_file, read_beat
from shoal.launch.exit_records import read_exit_records
from shoal.launch.hang_detector import (
    PauseDetector,
    find_stuck_rank,
    is_that_process,
    read_beats,
    stack_file,
    stall_error,
)
from shoal.plan.rundir import RunDir
from shoal.timing import HANG_GRACE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 10_000.0


def beat(rank: int, phase: str, idle: float, **more: Any) -> Beat:
    fields = {"iteration": 2, "marks": 9, "silent": 0.0, "limit": 60.0, "pid": 0, "started": 0, "host": "elsewhere"}
    return Beat(rank=rank, phase=phase, idle=idle, **(fields | more))


@pytest.fixture
def run(run_dir: RunDir) -> RunDir:
    run_dir.ranks_dir.mkdir()
    return run_dir


def culprit(*beats: Beat, watched: float = LONG) -> int | None:
    found = find_stuck_rank(RunDir(Path("a run")), beats, watched, [])
    return None if found is None else found.rank


def test_nobody_is_blamed_within_the_limit() -> None:
    assert culprit(beat(0, "collective", 59), beat(1, "rollout", 60 + HANG_GRACE_S)) is None


def test_the_one_that_works_is_blamed_and_not_those_that_wait_for_it() -> None:
    assert culprit(beat(0, "collective", 500), beat(1, "rollout", 70), beat(2, "queue", 500)) == 1


def test_of_two_the_first_is_blamed() -> None:
    assert culprit(beat(0, "metrics", 70), beat(1, "rollout", 80), beat(2, "collective", 90)) == 1


def test_no_rank_is_blamed_while_the_slow_one_makes_progress(run: RunDir) -> None:
    assert find_stuck_rank(run, [beat(0, "collective", 5000), beat(1, "rollout", 3)], LONG, []) is None


def test_a_rank_that_stopped_beating_is_blamed_wherever_it_was() -> None:
    assert culprit(beat(0, "collective", 500), beat(1, "collective", 400, silent=400)) == 1


def test_each_rank_has_its_own_limit() -> None:
    assert culprit(beat(0, "collective", 500), beat(1, "compile", 500, limit=900)) is None


def test_a_rank_without_a_limit_is_never_blamed() -> None:
    assert culprit(beat(0, "rollout", 1e9, limit=float("inf"))) is None


def test_nobody_is_blamed_for_a_time_in_which_nobody_looked() -> None:
    assert culprit(beat(0, "rollout", 5000), watched=10) is None


def test_ranks_that_all_wait_are_a_deadlock_that_blames_none(run: RunDir) -> None:
    waiting = [beat(0, "collective", 100), beat(1, "collective", 90)]
    assert culprit(*waiting) is None
    assert find_stuck_rank(run, waiting, 10, []) is None
    assert find_stuck_rank(run, [], LONG, []) is None
    error = find_stuck_rank(run, waiting, LONG, [])
    assert str(error).startswith("No progress for 90 s: all 2 ranks only wait, rank 0 on elsewhere")


def test_a_stall_is_told_with_rank_host_phase_and_the_way_on(run: RunDir) -> None:
    assert str(stall_error(run, beat(1, "rollout", 71.4))) == (
        "Rank 1 on elsewhere: no progress for 71 s in rollout (iteration 2). It has no checkpoint yet: start it again."
    )
    stack_file(run, 1).write_text("Thread", encoding="utf-8")
    assert f"(iteration 2). Its stacks are in {stack_file(run, 1)}. It has" in str(
        stall_error(run, beat(1, "rollout", 71))
    )


def test_a_rank_that_never_came_is_named(run: RunDir) -> None:
    error = find_stuck_rank(run, [beat(0, "collective", 100)], LONG, [1, 3])
    assert str(error).startswith("Rank 1, 3 has shown no heartbeat while the others waited for 100 s, rank 0 on")


def test_a_process_that_was_stopped_forgives_others_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("shoal.launch.hang_detector.time.monotonic", lambda: now)
    pauses = PauseDetector()
    now = 104.0
    assert pauses.look() == 4
    now = 1104.0
    assert pauses.look() == 0
    now = 1105.0
    assert pauses.look() == 1


def test_a_second_break_without_progress_is_not_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("shoal.launch.hang_detector.time.monotonic", lambda: now)
    pauses = PauseDetector()
    now = 110.0
    assert pauses.look(marks=7) == 0
    now = 120.0
    assert pauses.look(marks=7) == 10
    now = 130.0
    assert pauses.look(marks=8) == 0


# Real processes -------------------------------------------------------------------------------------------------

LIMIT_S = 0.5
RANK = """
import ctypes, os, sys, threading, time
from pathlib import Path
from shoal.launch.rank import Watchdog
from shoal.launch.status_store import StatusStore
from shoal.plan.ranks import Rank
from shoal.plan.rundir import RunDir

def give_up(error):
    print(error, flush=True)
    os._exit(error.exit_code)

def never_come_back():
    threading.Event().wait()

rank = Rank(rank=int(sys.argv[2]), local_rank=0, world_size=2, local_world_size=2)
statuses = StatusStore(RunDir(Path(sys.argv[1])), rank)
with Watchdog(statuses, (60, float(sys.argv[3])), give_up) as beat:
    beat.begin_iteration(1)
    beat.begin_iteration(2)
    beat.enter("rollout")
    print("ready", flush=True)
"""


@contextmanager
def rank_that(does: str, run: RunDir, rank: int = 1, limit: float = LIMIT_S) -> Iterator[subprocess.Popen[str]]:
    """A process that enters the rollout of iteration 2 under a watchdog, and then does something."""
    words = [sys.executable, "-c", RANK + "".join(f"    {line}\n" for line in does.splitlines())]
    process = subprocess.Popen([*words, str(run.path), str(rank), str(limit)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def blamed(run: RunDir) -> str:
    """What is printed of rank 1 once others would blame it."""

    def found() -> WorkerLostError | None:
        return find_stuck_rank(run, read_beats(run.ranks_dir, range(2)), LONG, [])

    assert wait_until(lambda: found() is not None, timeout=20)
    error = found()
    assert error is not None
    assert error.rank == 1
    return str(error)


def test_a_rank_that_sleeps_dumps_its_stacks_leaves_a_note_and_ends(run: RunDir) -> None:
    with rank_that("never_come_back()", run) as process:
        printed = process.communicate(timeout=20)[0].strip()
        assert process.returncode == 75
    assert " s in rollout (iteration 2). Its stacks are in " in printed
    stacks = stack_file(run, 1).read_text(encoding="utf-8")
    assert stacks.startswith("Rank 1: no progress for ")
    assert "in never_come_back" in stacks
    record = read_exit_records(run)[1]
    assert (record.exit_code, record.error) == (75, printed)


def test_a_rank_that_holds_pythons_lock_is_named_by_others_with_its_stacks(run: RunDir) -> None:
    with rank_that("time.sleep(0.3)\nctypes.PyDLL(None).sleep(1000)", run):
        assert wait_until(lambda: stack_file(run, 1).stat().st_size > 0, timeout=20)
        printed = blamed(run)
    assert "rollout (iteration 2): its process does not let Python run, so native code holds its lock. Its" in printed
    assert 'File "<string>", line' in stack_file(run, 1).read_text(encoding="utf-8")


def test_a_rank_that_is_stopped_is_named_by_others(run: RunDir) -> None:
    with rank_that("never_come_back()", run, limit=2) as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert "rollout (iteration 2): its process is stopped, by a signal or a debugger." in blamed(run)


def test_a_rank_that_waits_does_not_end_itself_but_names_and_ends_the_one_that_is_stopped(run: RunDir) -> None:
    waits = 'beat.enter("collective")\nnever_come_back()'
    with rank_that("never_come_back()", run, limit=2) as stopped, rank_that(waits, run, rank=0) as waiting:
        os.kill(stopped.pid, signal.SIGSTOP)
        printed = waiting.communicate(timeout=30)[0].strip()
        assert waiting.returncode == 75
        assert stopped.wait(timeout=10) == -signal.SIGKILL
    assert printed.startswith("Rank 1 on ")
    assert "its process is stopped" in printed
    assert read_exit_records(run)[0].error == printed


def test_ranks_that_wait_for_each_other_end_without_blame(run: RunDir) -> None:
    waits = 'beat.enter("collective")\nnever_come_back()'
    with rank_that(waits, run, rank=0) as first, rank_that(waits, run, rank=1):
        printed = first.communicate(timeout=30)[0]
        assert first.returncode == 75
    assert "s: all 2 ranks only wait, rank 0 on " in printed


def test_a_rank_that_gets_on_is_left_alone_and_leaves_nothing(run: RunDir) -> None:
    gets_on = f"for _ in range(20):\n    time.sleep({LIMIT_S / 5})\n    beat.mark()"
    with rank_that(gets_on, run) as process:
        assert process.wait(timeout=20) == 0
    assert list(run.ranks_dir.iterdir()) == []


def test_a_crash_in_native_code_leaves_its_stacks(run: RunDir) -> None:
    with rank_that("ctypes.string_at(0)", run) as process:
        assert process.wait(timeout=20) == -signal.SIGSEGV
    assert "Segmentation fault" in stack_file(run, 1).read_text(encoding="utf-8")
    assert beat_file(run.ranks_dir, 1).exists()


def test_only_the_very_process_of_a_heartbeat_is_known_as_it(run: RunDir) -> None:
    with rank_that("never_come_back()", run, limit=1000) as process:
        read = read_beat(run.ranks_dir, 1)
        assert read is not None
        assert is_that_process(read)
        assert not is_that_process(beat(1, "rollout", 0, pid=read.pid, started=read.started + 1, host=read.host))
        assert not is_that_process(beat(1, "rollout", 0, pid=read.pid, started=read.started))
        process.kill()
        assert wait_until(lambda: not is_that_process(read), timeout=10)
