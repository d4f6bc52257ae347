"""mjlab's own tasks, unchanged, through every launch mode, in an environment that this test makes."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from support.commands import start
from support.venvs import python_with, trains_everywhere

from shoal.envs.mjlab_spec import MJLAB, OVERRIDES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spawn, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1500)]

TASKS = ("Mjlab-Cartpole-Balance", "Mjlab-Velocity-Flat-Unitree-Go1", "Mjlab-Lift-Cube-Yam")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with Shoal and mjlab, with the versions that the shipped file names."""
    return python_with(tmp_path_factory.mktemp("mjlab"), "--override", str(OVERRIDES), f"mjlab=={MJLAB}")


def test_an_evaluation_of_mjlabs_task_ends_though_its_play_configuration_has_no_end(
    python: str, tmp_path: Path
) -> None:
    words = ("mjlab:Mjlab-Cartpole-Balance", "--gpu-ids", "None", "--num-envs", "8", "--no-export")
    shoal = (python, "-m", "shoal")
    trained = start((*shoal, "train", *words, "--max-iterations", "1"), tmp_path).end(timeout=600)
    assert trained.code == 0, trained.stderr
    assert "limit reached" not in trained.stdout + trained.stderr  # MuJoCo Warp's line for each environment and step.
    evaluated = start((*shoal, "evaluate", *words[:-1], "--num-episodes", "8"), tmp_path).end(timeout=600)
    assert evaluated.code == 0, evaluated.stderr


@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_mjlab_trains_through_every_launch_mode(task: str, python: str, tmp_path: Path) -> None:
    trains_everywhere(python, f"mjlab:{task}", tmp_path)


def test_the_doctor_knows_that_mjlab_fits(python: str, tmp_path: Path) -> None:
    words = (python, "-m", "shoal", "doctor", "--gpu-ids", "None")
    checked = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert f"mjlab {MJLAB}, with the versions that were tested" in checked.stdout
