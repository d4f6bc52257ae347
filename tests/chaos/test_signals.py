"""Signals at random moments of a start: the command ends soon, says why without a traceback, and leaves nothing."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN, command_line, outliving, start, torchrun, wait_until

if TYPE_CHECKING:
    from support.commands import Ended, Running

pytestmark = [pytest.mark.chaos, pytest.mark.spawn]

ENDLESS = ("Cartpole-Swingup", *SMALL, "--logger", "none", "--max-iterations", "100000")
SPAWNED = ("--nproc-per-node", "2")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143, signal.SIGUSR1: 143}
START_S = 6.0
"""Two workers on two idle cores have begun to train after so long [s]."""
END_S = 25.0
"""An iteration and a checkpoint take less than a second; torch, which is being imported, takes some [s]."""


def seeds(few: int, many: int) -> list[object]:
    """Seeds, all but a few of which take long."""
    return [pytest.param(seed, marks=[] if seed < few else pytest.mark.soak) for seed in range(many)]


def handles_signals(pid: int) -> bool:
    """Whether a process has come so far that it answers signals: the interpreter's own start is the system's."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << (signal.SIGUSR1 - 1))


def started(words: tuple[str, ...], where: Path, rng: Random) -> Running:
    """A training that has been starting for a random time."""
    running = start(words, where)
    assert wait_until(lambda: handles_signals(running.leader), timeout=60, pause_s=0.002)
    time.sleep(rng.choice((0.2, 1.0, START_S)) * rng.random())
    return running


def assert_quiet_end(ended: Ended) -> None:
    """It has ended soon, with one line about why, and left nothing."""
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.seconds_after_signal < END_S
    assert (ended.left_processes, ended.left_files) == ([], [])


@pytest.mark.parametrize("workers", [(), SPAWNED], ids=["in process", "spawned"])
@pytest.mark.parametrize("seed", seeds(1, 12))
def test_a_signal_at_any_moment_of_a_start_ends_it_in_order(
    tmp_path: Path, seed: int, workers: tuple[str, ...]
) -> None:
    rng = Random(f"{seed} {workers}")  # noqa: S311
    running = started((*TRAIN, *ENDLESS, *workers), tmp_path, rng)
    number = rng.choice(list(CODES))
    rng.choice((running.signal_itself, running.signal_all, running.signal_every_process))(number)
    ended = running.end(timeout=60)
    assert_quiet_end(ended)
    assert ended.code == CODES[number]
    assert ended.last_line.startswith("Error: ")
    assert number.name in ended.last_line or ended.last_line == "Error: Interrupted."


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_ctrl_c_again_and_again_ends_a_start_in_order(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)  # noqa: S311
    running = started((*TRAIN, *ENDLESS, *SPAWNED), tmp_path, rng)
    while running.process.poll() is None and time.monotonic() - running.started < 60:
        running.signal_all(signal.SIGINT)
        time.sleep(rng.uniform(0, 0.5))
    ended = running.end(timeout=60)
    assert_quiet_end(ended)
    assert ended.code == 130


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_an_agent_that_is_killed_at_any_moment_of_a_start_is_named(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)  # noqa: S311
    running = start((*TRAIN, *ENDLESS, *SPAWNED), tmp_path)
    assert wait_until(lambda: any(map(is_agent, running.processes())), timeout=60)
    agent = next(filter(is_agent, running.processes()))
    time.sleep(rng.choice((0.2, START_S)) * rng.random())
    running.signal_process(agent, signal.SIGKILL)
    ended = running.end(timeout=90)
    assert_quiet_end(ended)
    assert ended.code == 75
    assert "killed by SIGKILL" in ended.last_line


def is_agent(pid: int) -> bool:
    """Whether a process is torchrunx's agent; its forks are called so, too."""
    return " -m shoal.launch.torchrunx_patch " in command_line(pid)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_ranks_end_with_a_torchrun_that_is_killed_at_any_moment_of_their_start(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)  # noqa: S311
    running = start((*torchrun(2), *ENDLESS), tmp_path)
    assert wait_until(lambda: len(running.processes()) >= 3, timeout=60)
    time.sleep(2 * START_S * rng.random())
    running.signal_itself(signal.SIGKILL)
    assert wait_until(lambda: not running.processes(), timeout=END_S), list(map(command_line, running.processes()))
    assert outliving(running.processes) == []
