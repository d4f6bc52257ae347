"""`shoal runs RUN`: verify the checkpoints of a run, and name the newest and the best."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError, UsageError
from shoal.plan.checkpoints import Checkpoint, best_first, list_checkpoints
from shoal.plan.rundir import RunDir, find_run, list_all_runs
from shoal.text import columns, or_dash, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A checkpoint compared with its manifest. Entries that the manifest lacks are None."""

    checkpoint: Checkpoint
    damage: str | None
    """The first fault; None when it is valid."""
    is_exact: bool
    """Whether a run resumes exactly from it: it has the ranks' environments and random states."""
    written: datetime
    """Local time when it was written."""
    size: int | None
    """Size of all files [bytes]; None when the directory cannot be read."""


@dataclass(frozen=True, slots=True)
class VerifiedRun:
    """All checkpoints of a run, oldest first."""

    run: RunDir
    checkpoints: tuple[Verified, ...]

    @property
    def newest(self) -> Verified | None:
        """The newest valid checkpoint, which `--resume` goes on from."""
        return next((each for each in reversed(self.checkpoints) if each.damage is None), None)

    @property
    def best(self) -> Verified | None:
        """The best valid checkpoint, see `best_first`."""
        found = {each.checkpoint: each for each in self.checkpoints}
        return next((found[each] for each in best_first(found) if found[each].damage is None), None)

    @property
    def metric(self) -> str | None:
        """Name of the metric that chose the best; None where no scores can be compared."""
        return self.best.checkpoint.metric if self.best and self.best.checkpoint.score is not None else None

    @property
    def error(self) -> ShoalError | None:
        """Error of the command; None when all are valid."""
        corrupt = sum(each.damage is not None for each in self.checkpoints)
        if not corrupt:
            return None
        effect = f"goes on from {self.newest.checkpoint.path.name}" if self.newest else "has nothing to go on from"
        return ShoalError(
            f"Corrupt checkpoints in {self.run.checkpoints_dir}: {corrupt} of {len(self.checkpoints)}. `--resume` "
            f"{effect}. Remove them, or copy them again from where they are valid."
        )

    def lines(self) -> Iterator[str]:
        """Yield the checkpoints, with the newest valid and the best one marked."""
        yield f"Run directory: {self.run.path}"
        rows = [
            (
                str(each.checkpoint.iteration),
                f"{each.written:%Y-%m-%d %H:%M:%S}",
                "-" if each.size is None else size(each.size),
                or_dash(each.checkpoint.world_size),
                or_dash(each.checkpoint.score, ".2f"),
                "exactly" if each.is_exact else "learner only" if each.damage is None else "-",
                f"corrupt: {each.damage}" if each.damage is not None else ", ".join(["valid", *self._marks(each)]),
            )
            for each in self.checkpoints
        ]
        yield from columns(("iteration", "written", "size", "ranks", "score", "resumes", "state"), rows)
        if self.best:
            yield f"Best by {self.metric}." if self.metric else "No score can be compared: the best is the last one."

    def _marks(self, each: Verified) -> list[str]:
        return [name for name, marked in (("newest", self.newest), ("best", self.best)) if each is marked]

    def to_plain(self) -> dict[str, Any]:
        """Return all fields as plain values, for JSON."""
        return {
            "run": str(self.run.path),
            "newest": self.newest.checkpoint.iteration if self.newest else None,
            "best": self.best.checkpoint.iteration if self.best else None,
            "metric": self.metric,
            "checkpoints": [
                {
                    "iteration": each.checkpoint.iteration,
                    "path": str(each.checkpoint.path),
                    "time": each.written.isoformat(),
                    "bytes": each.size,
                    "world_size": each.checkpoint.world_size,
                    "score": each.checkpoint.score,
                    "damage": each.damage,
                    "exact": each.is_exact,
                }
                for each in self.checkpoints
            ],
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
    checkpoints = tuple(filter(None, map(_verified, list_checkpoints(run))))
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
