"""The quadruped learns to do as it is told: its first minute, with two workers."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from support.commands import TRAIN, run

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = ("--gpu-ids", "None", "--nproc-per-node", "2", "--num-envs", "256", "--max-iterations", "30", "--no-export")


@pytest.mark.spawn
@pytest.mark.slow
def test_two_workers_learn_to_follow_commands(tmp_path: Path) -> None:
    ended = run((*TRAIN, "Quadruped-Velocity-Flat", *FLAGS), tmp_path)
    assert ended.code == 0, ended.stderr
    digests = ended.record["ended"]["digests"]
    assert len(digests) == 2
    assert len(set(digests.values())) == 1
    # Turning is what it learns first; that it walks takes some minutes, see docs/tasks.md.
    errors = [row["Metrics/error_angular_velocity"] for row in ended.rows]
    assert fmean(errors[-3:]) < 0.85 * fmean(errors[:3])
    assert sum(row["Env/lost"] for row in ended.rows) == 0
    assert ended.left_processes == []
    assert ended.left_files == []
