"""A real disk that is full: one warning for the metrics, an error for a checkpoint, and nothing in halves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN, rows_of, start, wait_until
from support.mounts import tiny_disk

from shoal.plan.checkpoints import list_checkpoints
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.commands import Ended

pytestmark = pytest.mark.spawn

QUICK = ("--agent.algorithm.num-learning-epochs", "1", "--agent.algorithm.num-mini-batches", "1", "--logger", "none")
SWINGUP = ("Cartpole-Swingup", *SMALL, *QUICK, "--nproc-per-node", "2", "--agent.save-interval", "100")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """A training whose disk is full from its first checkpoint on. Rank files lie on another one."""
    where = tmp_path_factory.mktemp("full")
    with tiny_disk(where / "logs", "size=64m") as disk:
        flags = ("--max-iterations", "100000", "--torchrunx-log-dir", str(where / "rank-files"))
        running = start((*TRAIN, *SWINGUP, *flags), where)
        assert wait_until(lambda: any(disk.glob("*/*/checkpoints/000100")), timeout=120)
        fill(disk / "filler")
        yield running.end(timeout=60)


def fill(file: Path) -> None:
    """Write until nothing more fits, to the last byte."""
    with file.open("wb", buffering=0) as stream:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while stream.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


def test_the_last_line_names_the_checkpoint_and_that_no_space_is_left(ended: Ended) -> None:
    assert ended.code == 1, ended.stdout + ended.stderr
    told = (
        r"Error: Rank [01] on .* failed.*: The checkpoint .*/\d{6} could not be written \(No space left on device\): "
    )
    assert re.match(told, ended.last_line)


def test_the_checkpoints_before_it_are_whole_and_nothing_lies_beside_them(ended: Ended) -> None:
    found = list_checkpoints(RunDir(ended.run))
    assert [checkpoint.iteration for checkpoint in found] == [100]
    assert found[0].damage() is None
    assert list((ended.run / "checkpoints").iterdir()) == [found[0].path]


def test_lost_metrics_cost_one_warning_and_training_went_on(ended: Ended) -> None:
    assert ended.stdout.count("JsonLinesWriter lost metrics (OSError: [Errno 28] No space left on device)") == 1
    rows = rows_of(ended.run)  # Each of them whole.
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1))
    assert 100 <= len(rows) < 200
    assert "/000200 could not be written" in ended.last_line


def test_nothing_is_left(ended: Ended) -> None:
    assert (ended.left_processes, ended.left_files) == ([], [])
