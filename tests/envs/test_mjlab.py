"""mjlab's own tasks, unchanged, through every launch mode, in an environment that this test makes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import start

from shoal.envs.mjlab_spec import MJLAB, OVERRIDES

if TYPE_CHECKING:
    from support.commands import Ended

pytestmark = [pytest.mark.spawn, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
TASKS = ("Mjlab-Cartpole-Balance", "Mjlab-Velocity-Flat-Unitree-Go1", "Mjlab-Lift-Cube-Yam")
SMALL = ("--gpu-ids", "None", "--num-envs", "8", "--max-iterations", "2", "--no-export")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with Shoal and mjlab, with the versions that the shipped file names."""
    if shutil.which("uv") is None:
        pytest.skip("uv makes the environment with mjlab, and is not installed")
    venv = tmp_path_factory.mktemp("mjlab") / "venv"
    made = str(venv / "bin" / "python")
    packages = (f"mjlab=={MJLAB}", "-e", str(ROOT))
    for words in (
        ("uv", "venv", "--quiet", "--python", sys.executable, str(venv)),
        ("uv", "pip", "install", "--quiet", "--python", made, "--override", str(OVERRIDES), *packages),
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mjlab cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return made


def fingerprint(ended: Ended) -> str:
    """The fingerprint of the learner that all ranks hold."""
    assert ended.code == 0, ended.stderr
    found = re.search(r"All 2 ranks hold the same learner, ([0-9a-f]{16})", ended.stdout + ended.stderr)
    assert found, ended.stdout + ended.stderr
    return found[1]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_mjlab_trains_through_every_launch_mode(task: str, python: str, tmp_path: Path) -> None:
    words = (f"mjlab:{task}", *SMALL)
    shoal, torchrun = (python, "-m", "shoal", "train"), (python, "-m", "torch.distributed.run", "--standalone")
    alone = start((*shoal, *words), tmp_path / "alone").end(timeout=1200)
    assert alone.code == 0, alone.stderr
    assert "Loss/value" in alone.rows[-1]
    spawned = start((*shoal, *words, "--nproc-per-node", "2"), tmp_path / "spawned").end(timeout=1200)
    joined = start((*torchrun, "--nproc_per_node=2", "-m", "shoal", "train", *words), tmp_path / "joined").end(
        timeout=1200
    )
    assert fingerprint(spawned) == fingerprint(joined)


def test_the_doctor_knows_that_mjlab_fits(python: str, tmp_path: Path) -> None:
    words = (python, "-m", "shoal", "doctor", "--gpu-ids", "None")
    checked = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert f"mjlab {MJLAB}, with the versions that were tested" in checked.stdout
