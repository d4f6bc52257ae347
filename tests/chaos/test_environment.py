"""Surroundings that break a training: modules that shadow others, stale variables, no loopback, no shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN, run

if TYPE_CHECKING:
    from support.commands import Ended

pytestmark = [pytest.mark.chaos, pytest.mark.spawn]

TASK = ("Cartpole-Swingup", *SMALL, "--logger", "none", "--max-iterations", "1")
PAIR = ("--nproc-per-node", "2")
ANSWER_S = 20.0
"""A refusal takes a second or two; the machine may be busy."""


def assert_refused(ended: Ended, cause: str, code: int = 2) -> None:
    """It has ended in time, with the cause in its last line, and left nothing."""
    assert ended.code == code, ended.stdout + ended.stderr
    assert cause in ended.last_line
    assert ended.seconds < ANSWER_S
    assert (ended.left_processes, ended.left_files, ended.runs) == ([], [], [])


OWN_TASK = """
from helper_of_the_task import NAME
from shoal.tasks.cartpole.task import Swingup
class Own(Swingup): doc = NAME
"""


@pytest.mark.soak
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


SHM = "mount -t tmpfs -o {options} tmpfs /dev/shm"
NO_SHM = "mount -t tmpfs tmpfs /dev; mknod -m 666 /dev/null c 1 3"
"""A /dev without it, of the command's own."""
NO_SEMAPHORES = "No semaphore can be made in /dev/shm ("


@pytest.mark.parametrize(
    ("flag", "broken", "cause", "code"),
    [
        pytest.param("--net", "true", "The network interface lo is down, or has no address", 2, id="no loopback"),
        pytest.param(
            "--mount",
            f"{SHM.format(options='size=4k')}; yes >/dev/shm/full 2>&- || true",
            NO_SEMAPHORES,
            75,  # Another process may make room.
            id="full /dev/shm",
        ),
        pytest.param(
            "--mount", SHM.format(options="ro"), NO_SEMAPHORES, 2, id="read-only /dev/shm", marks=pytest.mark.soak
        ),
        pytest.param("--mount", NO_SHM, NO_SEMAPHORES, 2, id="no /dev/shm", marks=pytest.mark.soak),
    ],
)
def test_what_a_launch_lacks_is_named(tmp_path: Path, flag: str, broken: str, cause: str, code: int) -> None:
    if subprocess.run(("unshare", flag, "true"), capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow namespaces")
    script = f'set -e; {broken}; exec "$@"'
    assert_refused(run(("unshare", flag, "sh", "-c", script, "sh", *TRAIN, *TASK, *PAIR), tmp_path), cause, code)


@pytest.mark.soak
def test_a_robot_is_trained_where_videos_are_drawn_by_osmesa(tmp_path: Path) -> None:
    """MuJoCo loads OSMesa at its import; triton, which torch imports later, once crashed beside it."""
    words = ("Quadruped-Velocity-Flat", "--gpu-ids", "None", "--num-envs", "4", "--no-export", *TASK[-4:])
    ended = run((*TRAIN, *words), tmp_path, os.environ | {"MUJOCO_GL": "osmesa"})
    assert ended.code == 0, ended.stdout + ended.stderr
