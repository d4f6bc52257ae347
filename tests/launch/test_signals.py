"""Signals in real launches: a checkpoint, the right exit code, in bounded time, and nothing left."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest
from support.commands import FAULTY, SMALL, TRAIN, marked, start, torchrun, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from support.commands import Ended, Running

pytestmark = pytest.mark.spawn

SWINGUP = ("Cartpole-Swingup", *SMALL, "--max-iterations", "100000", "--logger", "none")
SPAWNED = ("--nproc-per-node", "2")
SOON_S = 15.0
"""An iteration and a checkpoint of these trainings, and the end of all processes, take a second or two."""

AT_ONCE_S = 2.0


def assert_stopped_with_checkpoint(ended: Ended, name: str, code: int, announced: int = 1) -> None:
    """A signal has ended the run after an iteration, all was kept, and nothing was left."""
    assert ended.code == code, ended.stdout + ended.stderr
    assert ended.seconds_after_signal < SOON_S
    last_row = int(ended.rows[-1]["iteration"])
    assert [path.name for path in (ended.run / "checkpoints").iterdir()] == [f"{last_row:06d}"]
    sentence = f"{name} ended the run after iteration {last_row}, with a checkpoint: pass --resume to go on."
    assert ended.last_line == f"Error: {sentence}"
    assert (ended.record["ended"]["exit_code"], ended.record["ended"]["last_line"]) == (code, sentence)
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.stdout.count(f"{name}: stopping after this iteration") == announced
    assert (ended.left_processes, ended.left_files) == ([], [])


def training(where: Path, *flags: str) -> Running:
    """A training that has done its first iteration."""
    running = start((*TRAIN, *SWINGUP, *flags), where)
    running.read_until("[1/")
    return running


@pytest.mark.parametrize(
    "flags", [pytest.param((), id="in process", marks=pytest.mark.soak), pytest.param(SPAWNED, id="spawned")]
)
def test_ctrl_c_on_a_terminal_ends_the_run_with_a_checkpoint(tmp_path: Path, flags: tuple[str, ...]) -> None:
    running = training(tmp_path, *flags)
    running.signal_all(signal.SIGINT)
    assert_stopped_with_checkpoint(running.end(), "SIGINT", 130)


def test_sigterm_to_the_launching_process_ends_all_ranks_with_a_checkpoint(tmp_path: Path) -> None:
    running = training(tmp_path, *SPAWNED)
    running.signal_itself(signal.SIGTERM)
    assert_stopped_with_checkpoint(running.end(), "SIGTERM", 143)


@pytest.mark.soak
def test_sigterm_to_torchrun_ends_all_ranks_with_a_checkpoint(tmp_path: Path) -> None:
    running = start((*torchrun(2), *SWINGUP), tmp_path)
    running.read_until("[1/")
    running.signal_itself(signal.SIGTERM)
    ended = running.end()
    last_row = int(ended.rows[-1]["iteration"])
    assert [path.name for path in (ended.run / "checkpoints").iterdir()] == [f"{last_row:06d}"]
    assert ended.record["ended"]["exit_code"] == 143
    assert ended.stderr.count("Error: SIGTERM ended the run after iteration") == 1
    assert ended.left_processes == []


@pytest.mark.soak
def test_a_second_ctrl_c_does_not_wait_for_a_rank_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TEST_FAULTY_RANK", "0")
    running = start((*TRAIN, f"{FAULTY}:Waits", *SMALL, *SPAWNED), tmp_path)
    running.read_until("waiting for ever")
    running.signal_itself(signal.SIGINT)
    running.read_until("Ctrl-C again stops at once.")
    time.sleep(0.4)  # Sooner it would be the same key press.
    running.signal_itself(signal.SIGINT)
    ended = running.end()
    assert ended.code == 130
    assert ended.seconds_after_signal < AT_ONCE_S
    assert ended.last_line == "Error: SIGINT ended the run at once. It has no checkpoint yet: start it again."
    assert (ended.left_processes, ended.left_files) == ([], [])


def test_ctrl_c_before_the_first_iteration_ends_at_once_and_leaves_no_run(tmp_path: Path) -> None:
    """In process, where the signal used to wait for an iteration, and an untrained checkpoint was the newest."""
    running = start((*TRAIN, *SWINGUP), tmp_path)
    running.read_until("Building environments")
    running.signal_all(signal.SIGINT)
    ended = running.end()
    assert ended.code == 130, ended.stderr
    assert ended.seconds_after_signal < AT_ONCE_S
    assert ended.stderr == "Error: SIGINT ended the run at once. It has no checkpoint yet: start it again.\n"
    assert ended.stdout.rstrip().endswith("was removed: nothing was learned.")
    assert list(running.log_root.glob("*/*")) == []
    assert (ended.left_processes, ended.left_files) == ([], [])


def test_ctrl_c_while_the_workers_start_ends_at_once_and_quietly(tmp_path: Path) -> None:
    running = start((*TRAIN, *SWINGUP, *SPAWNED), tmp_path)
    running.read_until("Run directory")
    # The launching process, and torchrunx's agent in the middle of its imports.
    assert wait_until(lambda: len(list(marked(running.mark))) > 1, timeout=120)
    running.signal_all(signal.SIGINT)
    ended = running.end()
    assert ended.code == 130
    assert ended.seconds_after_signal < SOON_S
    assert ended.stderr == "Error: SIGINT ended the run at once. It has no checkpoint yet: start it again.\n"
    assert list(running.log_root.glob("*/*")) == []  # Nothing was learned.
    assert (ended.left_processes, ended.left_files) == ([], [])


@pytest.mark.soak
def test_the_warning_of_a_scheduler_to_every_process_ends_all_ranks_with_a_checkpoint(tmp_path: Path) -> None:
    running = training(tmp_path, *SPAWNED)
    running.signal_every_process(signal.SIGUSR1)
    assert_stopped_with_checkpoint(running.end(), "SIGUSR1", 143)


@pytest.mark.soak
def test_sigterm_to_one_worker_ends_all_ranks_with_a_checkpoint(tmp_path: Path) -> None:
    running = training(tmp_path, *SPAWNED)
    (sign_of_life,) = running.temporary.glob("shoal-*/rank_00001.life")
    running.signal_process(int(sign_of_life.read_text(encoding="utf-8")), signal.SIGTERM)
    assert_stopped_with_checkpoint(running.end(), "SIGTERM", 143, announced=0)


@pytest.mark.soak
def test_a_closed_pipe_ends_the_run_with_a_checkpoint_as_a_closed_terminal_does(tmp_path: Path) -> None:
    running = training(tmp_path)
    assert running.process.stdout is not None
    running.process.stdout.close()
    running.process.wait(timeout=60)
    assert running.process.returncode == 143
    assert running.process.stderr is not None
    assert "SIGHUP ended the run after iteration" in running.process.stderr.read()
