"""The web viewer finds newer checkpoints of the run."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from support.saved import write_checkpoint

from shoal.viewer.web import LoadedCheckpoint, ending_of

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.rundir import RunDir


@pytest.fixture
def loaded(run_dir: RunDir) -> LoadedCheckpoint:
    """The second of two checkpoints."""
    for iteration in (50, 100):
        checkpoint(run_dir, iteration)
    return LoadedCheckpoint(run_dir.checkpoint_dir(100) / "model.pt")


def checkpoint(run: RunDir, iteration: int) -> Path:
    """Write a small one."""
    return write_checkpoint(run, iteration, {"weights": torch.zeros(3)}, world_size=1)


def test_it_has_the_name_of_its_directory(loaded: LoadedCheckpoint) -> None:
    assert loaded.name == "000100"
    assert loaded.newer() is None


def test_the_newest_is_found(loaded: LoadedCheckpoint, run_dir: RunDir) -> None:
    checkpoint(run_dir, 150)
    checkpoint(run_dir, 200)
    newer = loaded.newer()
    assert newer is not None
    assert newer.path.name == "000200"


def test_a_damaged_one_is_passed_over(loaded: LoadedCheckpoint, run_dir: RunDir) -> None:
    checkpoint(run_dir, 150)
    (checkpoint(run_dir, 200) / "model.pt").write_bytes(b"cut off")
    newer = loaded.newer()
    assert newer is not None
    assert newer.path.name == "000150"


def test_one_that_is_being_written_is_no_checkpoint_yet(loaded: LoadedCheckpoint, run_dir: RunDir) -> None:
    (run_dir.checkpoints_dir / ".unfinished").mkdir()
    assert loaded.newer() is None


def test_a_file_that_lies_in_no_run_stays(tmp_path: Path) -> None:
    loaded = LoadedCheckpoint(tmp_path / "policy.pt")
    assert (loaded.name, loaded.run, loaded.newer()) == ("policy.pt", None, None)


@pytest.mark.parametrize(
    ("ended", "sentence"),
    [
        ({"exit_code": 0, "last_line": ""}, ""),
        (
            {"exit_code": 71, "last_line": "Error: rank 0 ran out of memory."},
            "The training ended with exit code 71: Error: rank 0 ran out of memory.",
        ),
        (None, "The training was lost: no process goes on with it. `train --resume` does."),
    ],
)
def test_the_page_says_how_a_training_has_ended(run_dir: RunDir, ended: object, sentence: str) -> None:
    run_dir.run_json.write_text(json.dumps({"launches": [{"ended": ended}]}))
    assert ending_of(run_dir) == sentence


def test_the_page_says_that_a_run_is_gone(run_dir: RunDir) -> None:
    shutil.rmtree(run_dir.path)
    assert ending_of(run_dir) == f"The run {run_dir.path} does not exist any more."


def test_a_run_that_no_record_describes_is_passed_over(run_dir: RunDir) -> None:
    assert ending_of(run_dir) == ""
