"""Levels of terrain over the life of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.commands import TRAIN, run

if TYPE_CHECKING:
    from pathlib import Path


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
