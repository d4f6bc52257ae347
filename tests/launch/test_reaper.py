"""The reaper of a launch, with real processes that it has to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import wait_until

from shoal.launch.reaper import OWNER, marked, reaped_scratch, sweep_abandoned
from shoal.timing import REAPER_SAVE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
LAUNCHER = """
import os, subprocess, sys
from shoal.launch.reaper import MARK, reaped_scratch
with reaped_scratch() as scratch:
    marked = {**os.environ, MARK: str(scratch)}
    rank = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(scratch)], env=marked, stdout=subprocess.PIPE)
    rank.stdout.readline()
    print(scratch, flush=True)
    input()
"""
"""A launching process with one rank, which has shown its sign of life when the scratch directory is told."""

RANK = """
import signal, sys, time
from pathlib import Path
from shoal.launch.reaper import life_file
from shoal.launch.reaper import lock_with_pid
scratch = Path(sys.argv[1])
def save(*_):
    {save}
signal.signal(signal.SIGTERM, save)
lock_with_pid(life_file(scratch, 0))
print("alive", flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the test's own, in which launches are looked for."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr("tempfile.tempdir", None)
    return directory


@pytest.fixture
def launchers() -> Iterator[list[subprocess.Popen[str]]]:
    """Launching processes; ended at last."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def killed_launcher(save: str, launchers: list[subprocess.Popen[str]]) -> tuple[Path, float]:
    """Start a launch whose rank saves so, kill its launching process, and return its scratch directory and when."""
    command = [sys.executable, "-c", LAUNCHER, RANK.format(save=save)]
    launchers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert launchers[-1].stdout is not None
    scratch = Path(launchers[-1].stdout.readline().strip())
    assert len(marked(scratch)) == 1
    launchers[-1].send_signal(signal.SIGKILL)
    return scratch, time.monotonic()


def test_a_rank_whose_launcher_was_killed_gets_to_save(temporary: Path, launchers: list[subprocess.Popen[str]]) -> None:
    saved = temporary / "saved"
    scratch, killed = killed_launcher(f"Path({str(saved)!r}).touch(); sys.exit()", launchers)
    assert wait_until(lambda: not scratch.exists(), timeout=20)
    assert time.monotonic() - killed < REAPER_SAVE_S
    assert list(temporary.iterdir()) == [saved]


def test_a_rank_that_does_not_go_is_killed(temporary: Path, launchers: list[subprocess.Popen[str]]) -> None:
    scratch, killed = killed_launcher("pass", launchers)
    assert wait_until(lambda: not scratch.exists(), timeout=20)
    assert REAPER_SAVE_S <= time.monotonic() - killed < REAPER_SAVE_S + 2
    assert marked(scratch) == []
    assert list(temporary.iterdir()) == []


def test_after_an_orderly_end_neither_reaper_nor_directory_is_left(temporary: Path) -> None:
    others = children()  # such as multiprocessing's tracker
    with reaped_scratch() as scratch:
        assert list(temporary.iterdir()) == [scratch]
        (reaper,) = children() - others
        os.kill(reaper, signal.SIGTERM)  # Meant for every process of a job, but not for this one.
    assert list(temporary.iterdir()) == []
    assert reaper not in children()


def test_what_launches_left_that_were_killed_with_their_reapers_is_swept_by_the_next(temporary: Path) -> None:
    abandoned, notes = temporary / "shoal-abandoned", temporary / "shoal-notes"
    for directory in (abandoned, notes):
        directory.mkdir()
    (abandoned / OWNER).touch()
    (notes / "owner").touch()  # A user's own.
    with reaped_scratch() as scratch:
        assert sorted(temporary.iterdir()) == sorted([notes, scratch])
        sweep_abandoned(temporary)
        assert scratch.exists()


def children() -> set[int]:
    """Living children of this process."""
    threads = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for thread in threads for pid in thread.read_text().split()}
