"""Outputs that are closed, full, limited to ASCII, narrow, or not read, as a user's shell makes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN, Ended, left_in, marked, marks, outliving, start, torchrun, wait_until
from support.outputs import full_pipe
from support.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.chaos

SHOAL = (sys.executable, "-m", "shoal")
TASK = ("Cartpole-Swingup", *SMALL, "--logger", "none")
ENDLESS = (*TASK, "--max-iterations", "100000", "--agent.save-interval", "1", "--keep-last", "2")
SPAWNED = ("--nproc-per-node", "2")
ANSWER_S = 20.0
"""A command that trains nothing answers in a second or two."""
END_S = 20.0
"""A rank that is lost, or a signal, ends a training of this size within a few seconds."""


def answer(words: tuple[str, ...], redirection: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command from a shell that redirects its output."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *words]
    environ = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=ANSWER_S)


@pytest.mark.parametrize(
    "words", [("train", *TASK, "--dry-run", "--run-name", "ö"), ("train", "Cartpole-Swingup", "--help")]
)
@pytest.mark.parametrize(
    ("redirection", "environ", "code", "last_line"),
    [
        pytest.param(">&-", {}, 0, "", id="closed"),
        pytest.param(">&- 2>&- <&-", {}, 0, "", id="all closed", marks=pytest.mark.soak),
        pytest.param(
            ">/dev/full",
            {},
            1,
            "Error: The output could not be written (No space left on device): make room, or write it elsewhere.\n",
            id="full",
        ),
        pytest.param("", {"PYTHONIOENCODING": "ascii"}, 0, "", id="ASCII"),
        pytest.param("", {"COLUMNS": "1"}, 0, "", id="1 column"),
        pytest.param("", {"COLUMNS": "0"}, 0, "", id="0 columns", marks=pytest.mark.soak),
    ],
)
def test_a_command_answers_in_a_line_or_goes_on(
    words: tuple[str, ...], redirection: str, environ: dict[str, str], code: int, last_line: str
) -> None:
    answered = answer((*SHOAL, *words), redirection, environ)
    assert (answered.returncode, answered.stderr) == (code, last_line)
    assert redirection or "artpole" in answered.stdout


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_a_refusal_that_cannot_be_written_keeps_its_exit_code(redirection: str) -> None:
    assert answer((*SHOAL, "train", "Nope"), redirection, {}).returncode == 2


@pytest.mark.spawn
@pytest.mark.parametrize(
    "redirection", [">/dev/full 2>&1", pytest.param(">&- 2>&- <&-", marks=pytest.mark.soak)], ids=["full", "closed"]
)
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.soak)])
def test_a_training_goes_on_without_an_output(tmp_path: Path, redirection: str, workers: str) -> None:
    words = (*TRAIN, *TASK, "--max-iterations", "2", "--nproc-per-node", workers)
    ended = start(("sh", "-c", f'exec "$@" {redirection}', "sh", *words), tmp_path).end(timeout=120)
    assert (ended.code, ended.record["ended"]["exit_code"]) == (0, 0)
    assert [row["iteration"] for row in ended.rows] == [1, 2]
    assert (ended.left_processes, ended.left_files) == ([], [])


def stop_launcher(ended_by: signal.Signals, times: int, words: tuple[str, ...], where: Path) -> Ended:
    """Train with a standard output that nobody reads, and send signals to the command."""
    with full_pipe() as pipe:
        running = start(words, where, stdout=pipe)
        assert wait_until(lambda: any((where / "logs").glob("*/*/checkpoints/0*")), timeout=120)
        for _ in range(times):
            running.signal_itself(ended_by)
        return running.end(timeout=60)


@pytest.mark.spawn
@pytest.mark.soak
@pytest.mark.parametrize(
    ("words", "number", "times"),
    [
        ((*TRAIN, *ENDLESS, *SPAWNED), signal.SIGTERM, 1),
        ((*TRAIN, *ENDLESS, *SPAWNED), signal.SIGINT, 3),
        ((*TRAIN, *ENDLESS), signal.SIGTERM, 1),
        ((*torchrun(2), *ENDLESS), signal.SIGTERM, 1),
    ],
    ids=["SIGTERM", "three Ctrl-C", "in process", "torchrun"],
)
def test_a_signal_ends_a_training_whose_output_nobody_reads(
    tmp_path: Path, words: tuple[str, ...], number: signal.Signals, times: int
) -> None:
    ended = stop_launcher(number, times, words, tmp_path)
    assert ended.seconds_after_signal < END_S
    assert f"Error: {number.name} ended the run" in ended.stderr
    assert ended.left_processes == []
    assert ended.record["ended"]["exit_code"] == {"SIGTERM": 143, "SIGINT": 130}[number.name]


@pytest.mark.spawn
@pytest.mark.soak
def test_a_killed_rank_ends_a_training_whose_output_nobody_reads(tmp_path: Path) -> None:
    with full_pipe() as pipe:
        running = start((*TRAIN, *ENDLESS, *SPAWNED), tmp_path, stdout=pipe)
        assert wait_until(lambda: any(running.log_root.glob("*/*/checkpoints/0*")), timeout=120)
        (sign_of_life,) = running.temporary.glob("shoal-*/rank_00001.life")
        running.signal_process(int(sign_of_life.read_text(encoding="utf-8")), signal.SIGKILL)
        ended = running.end(timeout=60)
    assert ended.seconds_after_signal < END_S
    assert (ended.code, ended.left_processes, ended.left_files) == (75, [], [])
    assert "Lost rank 1 on" in ended.last_line
    assert "killed by SIGKILL" in ended.last_line


@pytest.mark.spawn
@pytest.mark.parametrize("workers", [(), pytest.param(SPAWNED, marks=pytest.mark.soak)], ids=["in process", "spawned"])
@pytest.mark.soak
def test_sigterm_ends_a_training_on_a_paused_terminal(tmp_path: Path, workers: tuple[str, ...]) -> None:
    mark, environ = marks(tmp_path)
    terminal = Terminal((*TRAIN, *ENDLESS, *workers), tmp_path, environ)
    terminal.read_until(r"Total steps\s+\d")
    terminal.press_ctrl_s()
    before = sum(1 for _ in rows(tmp_path))
    assert wait_until(lambda: sum(1 for _ in rows(tmp_path)) > before + 20, timeout=60)  # It trains on.
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.process.wait(timeout=END_S) == 143
    assert outliving(lambda: marked(mark)) == []
    assert left_in(tmp_path / "tmp") == []
    (record,) = tmp_path.glob("logs/*/*/run.json")
    assert "SIGTERM ended the run after iteration" in record.read_text(encoding="utf-8")


def rows(where: Path) -> list[str]:
    """The metrics of the only run."""
    (metrics,) = where.glob("logs/*/*/metrics.jsonl")
    return metrics.read_text(encoding="utf-8").splitlines()
