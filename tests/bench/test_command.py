"""`shoal bench`: what it steps in turns; and where its results cannot be written, it refuses before it measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shoal.bench import bench
from shoal.bench.environments import measure_environments
from shoal.config import BenchConfig
from shoal.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def refused(file: object) -> str:
    """Why a measurement with this `--json` is refused."""
    with pytest.raises(UsageError) as refusal:
        bench(BenchConfig(task="Cartpole-Balance", gpu_ids=("None",), json=str(file)), lambda _: None)
    return str(refusal.value)


def test_results_that_would_replace_a_directory_are_refused_at_once(tmp_path: Path) -> None:
    assert refused(tmp_path) == (
        f"--json asks for {tmp_path}, which is a directory: pass a file, such as {tmp_path}/bench.json."
    )


def test_results_below_a_file_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file" / "bench.json") == (
        f"--json asks for {tmp_path}/file, but {tmp_path}/file is no directory: pass a directory that you can write to."
    )


def test_cameras_are_measured_alone_beside_the_task_and_the_bare_engine() -> None:
    config = BenchConfig(task="Cartpole-Swingup-Depth", num_envs=2, seconds=0.01)
    rates = measure_environments(config, "cpu")
    assert [*rates] == ["shoal on cpu", "bare MuJoCo C", "its cameras and rays"]
    assert min(rates.values()) > 0
