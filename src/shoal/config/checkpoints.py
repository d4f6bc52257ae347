"""What `shoal checkpoints` is asked: which run, and for whom it is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsConfig:
    """The checkpoints of one run."""

    run: str | None = None
    """The run: its directory, or its name in any experiment. Default: the newest that has a checkpoint."""
    log_root: str = "logs"
    """Directory of all experiments, where runs are looked for by name."""
    json: bool = False
    """Print JSON instead of a table."""
