"""The story of `shoal checkpoints`: find a run, verify its checkpoints, and say which is newest and which is best."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import ShoalError, UsageError
from shoal.plan.checkpoints import Checkpoint, best_first, list_checkpoints
from shoal.plan.rundir import RunDir, find_any_run, list_all_runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.config import CheckpointsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One checkpoint, held against its manifest. What a manifest does not say is None."""

    checkpoint: Checkpoint
    damage: str | None
    """What is wrong with it; None when it is whole."""
    is_exact: bool
    """Whether a run goes on exactly from it: the ranks' environments and random states are in it."""
    written: datetime
    """When it was written, in local time."""
    size: int | None
    """Of all its files together [bytes]; None when the directory cannot be read."""
    world_size: int | None
    """Ranks that trained it."""
    score: float | None
    """What the metric that scores checkpoints was when it was written."""

    def to_plain(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "iteration": self.checkpoint.iteration,
            "path": str(self.checkpoint.path),
            "time": self.written.isoformat(),
            "bytes": self.size,
            "world_size": self.world_size,
            "score": self.score,
            "damage": self.damage,
            "exact": self.is_exact,
        }


@dataclass(frozen=True, slots=True)
class VerifiedRun:
    """All checkpoints of a run, oldest first."""

    run: RunDir
    checkpoints: tuple[Verified, ...]

    @property
    def newest(self) -> Verified | None:
        """The newest whole checkpoint, which `--resume` goes on from."""
        return next((each for each in reversed(self.checkpoints) if each.damage is None), None)

    @property
    def best(self) -> Verified | None:
        """The best whole checkpoint, see `best_first`."""
        found = {each.checkpoint: each for each in self.checkpoints}
        return next((found[each] for each in best_first(found) if found[each].damage is None), None)

    @property
    def metric(self) -> str | None:
        """Name of the metric by which the best was chosen; None where no score can be compared."""
        return self.best.checkpoint.metric if self.best and self.best.score is not None else None

    @property
    def error(self) -> ShoalError | None:
        """What to end the command with: None when all are whole."""
        damaged = sum(each.damage is not None for each in self.checkpoints)
        if not damaged:
            return None
        effect = f"goes on from {self.newest.checkpoint.path.name}" if self.newest else "has nothing to go on from"
        message = (
            f"Damaged checkpoints in {self.run.checkpoints_dir}: {damaged} of {len(self.checkpoints)}. `--resume` "
            f"{effect}. Remove them, or copy them again from where they are whole."
        )
        return ShoalError(message)

    def to_plain(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "run": str(self.run.path),
            "newest": self.newest.checkpoint.iteration if self.newest else None,
            "best": self.best.checkpoint.iteration if self.best else None,
            "metric": self.metric,
            "checkpoints": [each.to_plain() for each in self.checkpoints],
        }


def verify(config: CheckpointsConfig) -> VerifiedRun:
    """Find a run, and verify its checkpoints.

    Raises:
        UsageError: There is no such run, or it has no checkpoints.
    """
    run = _newest_run(config.log_root) if config.run is None else find_any_run(config.log_root, config.run)
    verified = [_verified(checkpoint) for checkpoint in list_checkpoints(run)]
    checkpoints = tuple(each for each in verified if each is not None)
    if not checkpoints:
        message = f"The run {run.path} has no checkpoints: pass another run, or train it until it has saved one."
        raise UsageError(message)
    return VerifiedRun(run, checkpoints)


def _newest_run(log_root: str) -> RunDir:
    run = next((run for run in reversed(list_all_runs(log_root)) if list_checkpoints(run)), None)
    if run is None:
        message = f"There is no run with a checkpoint in {Path(log_root).absolute()}: train first, or pass a path."
        raise UsageError(message)
    return run


def _verified(checkpoint: Checkpoint) -> Verified | None:
    """Verify one checkpoint. None when a training that goes on has removed it meanwhile."""
    manifest, damage = checkpoint.manifest(), checkpoint.damage()
    try:
        changed = checkpoint.path.stat().st_mtime
    except FileNotFoundError:
        return None
    return Verified(
        checkpoint=checkpoint,
        damage=damage,
        is_exact=damage is None and checkpoint.has_rank_files,
        written=_time(manifest) or datetime.fromtimestamp(changed).astimezone(),
        size=_size(checkpoint.path),
        world_size=checkpoint.world_size,
        score=checkpoint.score,
    )


def _size(directory: Path) -> int | None:
    try:
        return sum(file.stat().st_size for file in directory.iterdir())
    except OSError:
        return None


def _time(manifest: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(manifest["time"]).astimezone()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
