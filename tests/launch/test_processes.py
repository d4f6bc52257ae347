"""Signs of life, and how processes ended, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from support.commands import wait_until

from shoal.launch.node import RankWatch
from shoal.launch.reaper import signal_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANK = """
import sys
from pathlib import Path
from shoal.launch.reaper import life_file
from shoal.launch.reaper import lock_with_pid
lock_with_pid(life_file(Path(sys.argv[1]), int(sys.argv[2])))
print("alive", flush=True)
"""


@contextmanager
def rank_that(last_words: str, scratch: Path, rank: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that shows a sign of life, waits for a word on its standard input, and then ends by `last_words`."""
    command = [sys.executable, "-c", f"{RANK}\ninput()\n{last_words}", str(scratch), str(rank)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "alive\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def go(process: subprocess.Popen[str]) -> None:
    """Let a rank end. It stays a zombie: nobody waits for it, as in a launch, where its parent is busy."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def ended(watch: RankWatch) -> bool:
    watch.look()
    return bool(watch.ended)


def test_ranks_that_have_not_started_are_unseen(tmp_path: Path) -> None:
    watch = RankWatch(tmp_path, range(2))
    watch.look()
    assert (watch.unseen, watch.alive, watch.ended) == ([0, 1], {}, {})


def test_a_rank_that_lives_is_seen_with_its_process(tmp_path: Path) -> None:
    watch = RankWatch(tmp_path, range(2))
    with rank_that("", tmp_path, rank=1) as process:
        watch.look()
        assert (watch.unseen, watch.alive) == ([0], {1: process.pid})
    watch.close()


@pytest.mark.parametrize(
    ("last_words", "how"),
    [
        ("import os; os._exit(3)", "it left with exit code 3"),
        ("import os; os._exit(0)", "it left with exit code 0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    ],
)
def test_how_a_rank_ended_is_known(tmp_path: Path, last_words: str, how: str) -> None:
    watch = RankWatch(tmp_path, range(1))
    with rank_that(last_words, tmp_path) as process:
        watch.look()
        go(process)
        assert wait_until(lambda: ended(watch), timeout=20)
        assert (watch.alive, watch.ended) == ({}, {0: how})
    watch.close()


def test_of_a_rank_that_its_parent_has_waited_for_only_the_end_is_known(tmp_path: Path) -> None:
    watch = RankWatch(tmp_path, range(1))
    with rank_that("", tmp_path) as process:
        watch.look()
        go(process)
        process.wait()
        watch.look()
        assert (watch.alive, watch.ended) == ({}, {0: ""})
    watch.close()


def test_where_there_are_no_process_handles_the_lock_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    watch = RankWatch(tmp_path, range(1))
    with rank_that("", tmp_path) as process:
        watch.look()
        assert watch.alive == {0: process.pid}
        go(process)
        assert wait_until(lambda: ended(watch), timeout=20)


def test_waiting_ends_with_the_rank(tmp_path: Path) -> None:
    watch = RankWatch(tmp_path, range(1))
    with rank_that("", tmp_path) as process:
        watch.look()
        go(process)
        watch.wait(60)  # pytest's own time-out would tell.
        watch.look()
        assert list(watch.ended) == [0]
    watch.close()


def test_ranks_are_told_a_signal_together(tmp_path: Path) -> None:
    watch = RankWatch(tmp_path, range(2))
    with rank_that("", tmp_path, rank=0) as first, rank_that("", tmp_path, rank=1) as second:
        watch.look()
        watch.signal(signal.SIGKILL)
        assert (first.wait(20), second.wait(20)) == (-signal.SIGKILL, -signal.SIGKILL)
    watch.close()


def test_a_process_that_has_got_the_number_of_a_rank_is_told_nothing(tmp_path: Path) -> None:
    watch = RankWatch(tmp_path, [0])
    with rank_that("", tmp_path) as rank, rank_that("", tmp_path, rank=1) as other:
        watch.look()
        watch.alive[0] = other.pid  # As if the rank's own had been given away.
        watch.signal(signal.SIGKILL)
        assert rank.wait(20) == -signal.SIGKILL
        go(other)
        assert other.wait(20) == 0
    watch.close()


AS_A_STRANGER = """
import os, signal, sys
from shoal.launch.reaper import signal_all
if os.geteuid() == 0:
    os.setuid(65534)
signal_all([1, os.getpid()], signal.SIGKILL)
"""


def test_a_process_that_may_not_be_told_keeps_no_other_from_being_told() -> None:
    assert subprocess.run([sys.executable, "-c", AS_A_STRANGER], check=False).returncode == -signal.SIGKILL


def test_a_process_that_is_gone_cannot_be_told_and_does_no_harm() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    signal_all([process.pid], signal.SIGKILL)
