"""`shoal runs RUN`: verify the checkpoints of a run, and name the newest and the best."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError, UsageError
from shoal.plan.checkpoints import Checkpoint, best_first, list_checkpoints
from shoal.plan.rundir import RunDir, find_run, list_all_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A checkpoint compared with its manifest. Entries that the manifest lacks are None."""

    checkpoint: Checkpoint
    damage: str | None
    """The first fault; None when it is whole."""
    is_exact: bool
    """Whether a run resumes exactly from it: it has the ranks' environments and random states."""
    written: datetime
    """Local time when it was written."""
    size: int | None
    """Size of all files [bytes]; None when the directory cannot be read."""

    def to_plain(self) -> dict[str, Any]:
        """Return all fields as plain values, for JSON."""
        return {
            "iteration": self.checkpoint.iteration,
            "path": str(self.checkpoint.path),
            "time": self.written.isoformat(),
            "bytes": self.size,
            "world_size": self.checkpoint.world_size,
            "score": self.checkpoint.score,
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
        """Name of the metric that chose the best; None where no scores can be compared."""
        return self.best.checkpoint.metric if self.best and self.best.checkpoint.score is not None else None

    @property
    def error(self) -> ShoalError | None:
        """Error of the command; None when all are whole."""
        damaged = sum(each.damage is not None for each in self.checkpoints)
        if not damaged:
            return None
        effect = f"goes on from {self.newest.checkpoint.path.name}" if self.newest else "has nothing to go on from"
        return ShoalError(
            f"Damaged checkpoints in {self.run.checkpoints_dir}: {damaged} of {len(self.checkpoints)}. `--resume` "
            f"{effect}. Remove them, or copy them again from where they are whole."
        )

    def to_plain(self) -> dict[str, Any]:
        """Return all fields as plain values, for JSON."""
        return {
            "run": str(self.run.path),
            "newest": self.newest.checkpoint.iteration if self.newest else None,
            "best": self.best.checkpoint.iteration if self.best else None,
            "metric": self.metric,
            "checkpoints": [each.to_plain() for each in self.checkpoints],
        }


def verify(name: str, log_root: str) -> VerifiedRun:
    """Find a run by its path, by its name, or as `latest`; and verify its checkpoints.

    Raises:
        UsageError: There is no such run, or it has no checkpoints.
    """
    runs = list_all_runs(log_root)
    if name == "latest":
        run = next((run for run in reversed(runs) if list_checkpoints(run)), None)
    else:
        run = find_run(Path(log_root), runs, name)
    if run is None:
        raise UsageError(
            f"There is no run with a checkpoint in {Path(log_root).absolute()}: train first, or pass a path."
        )
    verified = [_verified(checkpoint) for checkpoint in list_checkpoints(run)]
    checkpoints = tuple(each for each in verified if each is not None)
    if not checkpoints:
        message = f"The run {run.path} has no checkpoints: pass another run, or train it until it has saved one."
        raise UsageError(message)
    return VerifiedRun(run, checkpoints)


def _verified(checkpoint: Checkpoint) -> Verified | None:
    """Verify one checkpoint. None when a running training has removed it meanwhile."""
    manifest, damage = checkpoint.manifest(), checkpoint.damage()
    try:
        written = datetime.fromtimestamp(checkpoint.path.stat().st_mtime).astimezone()
    except FileNotFoundError:
        return None
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        written = datetime.fromisoformat(manifest["time"]).astimezone()
    size = None
    with suppress(OSError):
        size = sum(file.stat().st_size for file in checkpoint.path.iterdir())
    return Verified(
        checkpoint=checkpoint,
        damage=damage,
        is_exact=damage is None and checkpoint.has_rank_files,
        written=written,
        size=size,
    )
