"""Tasks are learned as the curves of their pages say: what an episode begins with, and what it earns, show here."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from support.commands import TRAIN, start

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.soak
@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("task", "num_envs", "iterations", "least"),
    [
        ("Arm-Lift-Cube", 128, 300, 13.5),  # 12 at most where cubes did not begin on the ground.
        ("Humanoid-Tracking-Flat", 128, 170, 1.0),
        ("Quadruped-Velocity-Flat", 128, 330, 25.0),
        ("Quadruped-Velocity-Rough", 512, 125, 4.0),
    ],
)
def test_two_workers_learn_what_the_page_of_a_task_shows(
    task: str, num_envs: int, iterations: int, least: float, tmp_path: Path
) -> None:
    flags = ("--gpu-ids", "None", "--nproc-per-node", "2", "--num-envs", str(num_envs), "--no-export")
    ended = start((*TRAIN, task, *flags, "--max-iterations", str(iterations)), tmp_path).end(timeout=1700)
    assert ended.code == 0, ended.stderr
    digests = ended.record["ended"]["digests"]
    assert len(digests) == 2
    assert len(set(digests.values())) == 1
    assert fmean(row["Train/mean_reward"] for row in ended.rows[-10:]) > least
    assert sum(row["Env/diverged"] for row in ended.rows) == 0
    assert (ended.left_processes, ended.left_files) == ([], [])
