"""How commands leave, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOAL = (sys.executable, "-m", "shoal")


@pytest.mark.parametrize("words", [["tasks"], ["train", "Cartpole-Swingup", "--help"]])
def test_a_command_that_nobody_reads_ends_quietly(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*SHOAL, *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["train", "Walker"], ["train", "Walker"]),
        (["play", "Walker"], ["play", "Walker"]),
        (["evaluate", "Walker"], ["evaluate", "Walker"]),
        (["shoal", "tasks"], ["tasks"]),
    ],
)
def test_the_installed_commands_are_those_of_shoal(words: list[str], same: list[str]) -> None:
    installed = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    answers = [
        subprocess.run(command, capture_output=True, text=True, check=False) for command in (installed, [*SHOAL, *same])
    ]
    assert answers[0].returncode == answers[1].returncode
    assert (answers[0].stdout, answers[0].stderr) == (answers[1].stdout, answers[1].stderr)


def test_a_bug_of_ours_shows_its_traceback_and_exits_with_one() -> None:
    bug = "from shoal.cli import main, report; del report.print_tasks"
    script = f"import sys; sys.argv = ['shoal', 'tasks']; {bug}; main.shoal()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "AttributeError" in ended.stderr
