"""Which checkpoint is newer than the one that is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.saved import write_checkpoint

from shoal.viewer.newest import Shown

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.rundir import RunDir


@pytest.fixture
def shown(run_dir: RunDir) -> Shown:
    """The second of two checkpoints, which is shown."""
    for iteration in (50, 100):
        checkpoint(run_dir, iteration)
    return Shown(run_dir.checkpoint_dir(100) / "model.pt")


def checkpoint(run: RunDir, iteration: int) -> Path:
    """Write a small one."""
    return write_checkpoint(run, iteration, {"weights": torch.zeros(3)}, world_size=1)


def test_it_has_the_name_of_its_directory(shown: Shown) -> None:
    assert shown.name == "000100"
    assert shown.newer() is None


def test_the_newest_is_found_and_shown(shown: Shown, run_dir: RunDir) -> None:
    checkpoint(run_dir, 150)
    checkpoint(run_dir, 200)
    newer = shown.newer()
    assert newer is not None
    assert newer.path.name == "000200"
    shown.show(newer)
    assert shown.name == "000200"
    assert shown.newer() is None


def test_a_damaged_one_is_passed_over(shown: Shown, run_dir: RunDir) -> None:
    checkpoint(run_dir, 150)
    (checkpoint(run_dir, 200) / "model.pt").write_bytes(b"cut off")
    newer = shown.newer()
    assert newer is not None
    assert newer.path.name == "000150"


def test_one_that_is_being_written_is_no_checkpoint_yet(shown: Shown, run_dir: RunDir) -> None:
    (run_dir.checkpoints_dir / ".unfinished").mkdir()
    assert shown.newer() is None


def test_a_file_that_lies_in_no_run_stays(tmp_path: Path) -> None:
    shown = Shown(tmp_path / "policy.pt")
    assert (shown.name, shown.run, shown.newer()) == ("policy.pt", None, None)
