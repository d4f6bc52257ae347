"""The quadruped learns to do as it is told: its first minute, with two workers."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import pytest
import torch
from support.commands import TRAIN, run

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = ("--gpu-ids", "None", "--nproc-per-node", "2", "--num-envs", "256", "--max-iterations", "30", "--no-export")


@pytest.mark.soak
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


def levels_in(run_dir: Path, iteration: int) -> list[float]:
    """How many environments a checkpoint has on each level."""
    checkpoint = run_dir / "checkpoints" / f"{iteration:06}" / "model.pt"
    return torch.load(checkpoint, weights_only=True)["infos"]["curriculum"]["levels"]


@pytest.mark.soak
@pytest.mark.spawn
@pytest.mark.slow
def test_levels_are_pooled_saved_and_dealt_to_another_number_of_workers(tmp_path: Path) -> None:
    rough = (*TRAIN, "Quadruped-Velocity-Rough", "--gpu-ids", "None", "--no-export", "--env.terrain-levels", "5")
    # Whoever is cut off so early has shown nothing, and nobody falls: levels stay as they were drawn.
    still = (
        "--env.first-levels",
        "5",
        "--env.episode-length-s",
        "0.1",
        "--env.terminations.too-low.minimum-height",
        "-9",
    )
    still += ("--env.terminations.fell-over.limit-angle", "4")
    ended = run((*rough, *still, "--nproc-per-node", "2", "--num-envs", "60", "--max-iterations", "1"), tmp_path)
    assert ended.code == 0, ended.stderr
    (run_dir,) = (tmp_path / "logs" / "Quadruped-Velocity-Rough").glob("*/")
    levels = levels_in(run_dir, 1)
    assert sum(levels) == 120
    assert min(levels) > 0
    resumed = run(
        (*rough, "--resume", "--nproc-per-node", "1", "--num-envs", "1200", "--max-iterations", "2"), tmp_path
    )
    assert resumed.code == 0, resumed.stderr
    assert levels_in(run_dir, 2) == pytest.approx([10 * count for count in levels], abs=6)
