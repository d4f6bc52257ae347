"""Environments with packages that are not installed where the tests run, and trainings in them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import start

if TYPE_CHECKING:
    from support.commands import Ended

ROOT = Path(__file__).parents[2]


def python_with(directory: Path, *packages: str) -> str:
    """The interpreter of a new environment with Shoal and `packages`, which may begin with options of `uv pip`.

    The test is skipped, with the reason, where they cannot be installed.
    """
    made = _new(directory)
    _install("uv", "pip", "install", "--quiet", "--python", made, *packages, "-e", str(ROOT))
    return made


def python_beside(directory: Path, *packages: str) -> str:
    """The same with the packages of the present environment, and Shoal's sources, below what is installed there."""
    made = _new(directory, "--seed")
    (installed,) = Path(made).parents[1].glob("lib/python*/site-packages")
    (installed / "beside.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
    _install(made, "-m", "pip", "install", "--quiet", *packages)
    return made


def _new(directory: Path, *options: str) -> str:
    if shutil.which("uv") is None:
        pytest.skip("uv makes the environment, and is not installed")
    _install("uv", "venv", "--quiet", "--python", sys.executable, *options, str(directory / "venv"))
    return str(directory / "venv" / "bin" / "python")


def _install(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"`{' '.join(words)}` failed: {done.stderr.strip().splitlines()[-1]}")


def trains_everywhere(python: str, task: str, directory: Path) -> None:
    """Train a task in process, spawned and under torchrun. Both pairs of workers end with the same learner."""
    words = (task, "--gpu-ids", "None", "--num-envs", "8", "--max-iterations", "2", "--no-export")
    shoal, torchrun = (python, "-m", "shoal", "train"), (python, "-m", "torch.distributed.run", "--standalone")
    alone = start((*shoal, *words), directory / "alone").end(timeout=1200)
    assert alone.code == 0, alone.stderr
    assert "Loss/value" in alone.rows[-1]
    spawned = start((*shoal, *words, "--nproc-per-node", "2"), directory / "spawned").end(timeout=1200)
    joined = start((*torchrun, "--nproc_per_node=2", "-m", "shoal", "train", *words), directory / "joined").end(
        timeout=1200
    )
    assert _fingerprint(spawned) == _fingerprint(joined)


def _fingerprint(ended: Ended) -> str:
    """The fingerprint of the learner that all ranks hold."""
    assert ended.code == 0, ended.stderr
    found = re.search(r"All 2 ranks hold the same learner, ([0-9a-f]{16})", ended.stdout + ended.stderr)
    assert found, ended.stdout + ended.stderr
    return found[1]
