"""Checkpoints of a learner alone, for tests of what reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.learn.checkpoints import Snapshot, write_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shoal.plan.rundir import RunDir


def write_checkpoint(run: RunDir, iteration: int, state: Mapping[str, Any], world_size: int) -> Path:
    """Write a checkpoint without files of ranks, as `write_snapshot` does; return its directory."""
    run.path.mkdir(parents=True, exist_ok=True)
    return write_snapshot(run, Snapshot(iteration=iteration, learner=state, world_size=world_size))
