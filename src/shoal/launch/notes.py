"""The notes that ranks leave in `<run>/ranks`, and what they tell together: who finished, and who failed first.

A rank that raises writes why before it dies; one that finishes writes its report; one that leaves neither was killed
or crashed. A peer whose collective broke also writes a note, so the first cause is not simply the first note.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import time
import traceback
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, TrainingFailedError, UsageError
from shoal.plan.checkpoints import list_checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shoal.plan.ranks import Rank
    from shoal.plan.rundir import RunDir

logger = logging.getLogger(__name__)

_BROKEN_CONNECTION = (
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "gloo/transport",
    "Connection closed by peer",
)
"""What an error holds that only tells of another rank's end (torch.distributed with gloo and NCCL)."""

_ORDERLY = {kind.exit_code: kind for kind in (InterruptedRunError, TerminatedRunError)}
"""Endings that were asked for: all ranks end alike, so none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """How one rank ended."""

    rank: int
    host: str
    ending: Literal["done", "failed"]
    time: float
    """Seconds since the epoch."""
    exit_code: int = 0
    error: str = ""
    """The exception as Python prints it in its last line."""
    traceback: str = ""
    """The exception's traceback; empty for Shoal's own errors, whose message says all."""
    is_echo: bool = False
    """Whether the error only tells that the connection to another rank broke."""
    log_bytes: int | None = None
    """Size of this rank's log file just before the error was written into it."""
    report: dict[str, Any] = field(default_factory=dict)
    """The report of a rank that is done."""

    @classmethod
    def of_error(cls, error: BaseException, rank: Rank, *, log_bytes: int | None = None) -> Note:
        """Return the note of a rank that ends with `error`."""
        ours = isinstance(error, ShoalError)
        last_line = str(error) if ours else traceback.format_exception_only(error)[-1].strip()
        return cls(
            rank=rank.rank,
            host=platform.node(),
            ending="failed",
            time=time.time(),
            exit_code=error.exit_code if isinstance(error, ShoalError) else 1,
            error=last_line,
            traceback="" if ours else "".join(traceback.format_exception(error)),
            is_echo=not ours and any(mark in last_line for mark in _BROKEN_CONNECTION),
            log_bytes=log_bytes,
        )


def was_asked_for(note: Note) -> bool:
    """Whether the rank ended because a signal had asked for it."""
    return note.exit_code in _ORDERLY


def note_path(run: RunDir, rank: int) -> Path:
    """Return where `rank` leaves its note."""
    return run.ranks_dir / f"rank_{rank:05d}.json"


def write_note(run: RunDir, note: Note) -> None:
    """Leave a note, whole at once. A full disk must not hide what the note tells, so it only costs the note."""
    final = note_path(run, note.rank)
    unfinished = final.with_suffix(f".{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(asdict(note), indent=2), encoding="utf-8")
        unfinished.rename(final)
    except OSError as error:
        logger.warning("Rank %d cannot leave a note in %s (%s).", note.rank, final, error.strerror)


def read_notes(run: RunDir, world_size: int) -> dict[int, Note]:
    """Return the notes that lie there, by rank."""
    notes: dict[int, Note] = {}
    for rank in range(world_size):
        path = note_path(run, rank)
        if path.is_file():
            notes[rank] = Note(**json.loads(path.read_text(encoding="utf-8")))
    return notes


def clear_notes(run: RunDir) -> None:
    """Remove what an earlier launch into the same run directory has left."""
    for path in run.ranks_dir.glob("rank_*"):
        path.unlink()


def first_failure(notes: Iterable[Note]) -> Note | None:
    """Return the note of the rank that failed of its own accord, the earliest if there are several.

    Returns:
        None when no rank failed by itself: all notes are of success, or echo the end of a rank without a note.
    """
    causes = [note for note in notes if note.ending == "failed" and not note.is_echo]
    return min(causes, key=lambda note: note.time, default=None)


def failure_of(note: Note) -> ShoalError:
    """Return the error that tells of a rank that failed, with its exit code and its own traceback."""
    if was_asked_for(note):
        return _ORDERLY[note.exit_code](note.error)
    kind = UsageError if note.exit_code == UsageError.exit_code else TrainingFailedError
    return kind(f"Rank {note.rank} on {note.host} failed: {note.error}", details=note.traceback)


def way_on(run: RunDir) -> str:
    """Say how a run that was cut short goes on."""
    checkpoints = list_checkpoints(run)
    if not checkpoints:
        return "It has no checkpoint yet: start it again."
    return f"Pass --resume to go on from iteration {checkpoints[-1].iteration}."
