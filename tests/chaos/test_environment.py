"""Surroundings that break a training: modules that shadow others, stale variables, no loopback, no shared memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, run

if TYPE_CHECKING:
    from support.commands import Ended

pytestmark = [pytest.mark.chaos, pytest.mark.spawn]

TASK = ("Cartpole-Swingup", *SMALL, "--logger", "none", "--max-iterations", "1")
PAIR = ("--nproc-per-node", "2")
ANSWER_S = 20.0
"""A refusal takes a second or two; the machine may be busy."""


def assert_refused(ended: Ended, cause: str) -> None:
    """It has ended in time, with the cause in its last line, and left nothing."""
    assert ended.code == 2, ended.stdout + ended.stderr
    assert cause in ended.last_line
    assert ended.seconds < ANSWER_S
    assert (ended.left_processes, ended.left_files, ended.runs) == ([], [], [])


OWN_TASK = """
from helper_of_the_task import NAME
from shoal.tasks.cartpole.task import Swingup
class Own(Swingup): doc = NAME
"""


def test_modules_in_the_working_directory_shadow_nothing(tmp_path: Path) -> None:
    """The command is the installed one, which does not look there, and the task lies beside them."""
    for name in ("random", "torch", "logging", "yaml", "cloudpickle", "shoal"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the wrong one')\n", encoding="utf-8")
    (tmp_path / "own.py").write_text(OWN_TASK, encoding="utf-8")
    (tmp_path / "helper_of_the_task.py").write_text("NAME = 'own'\n", encoding="utf-8")
    ended = run((str(Path(sys.executable).with_name("train")), "own.py:Own", *TASK[1:], *PAIR), tmp_path)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert ended.seconds < 60
    assert (ended.left_processes, ended.left_files) == ([], [])
