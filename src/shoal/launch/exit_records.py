"""The notes that ranks leave in `<run>/ranks`, and what they tell together: who finished, and who failed first.

A rank that raises writes why before it dies; one that finishes writes its report; one that leaves neither was killed
or crashed. A peer whose collective broke also writes a note, so the first cause is not simply the first note.
"""

from __future__ import annotations

import itertools
import json
import logging
import platform
import time
import traceback
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from shoal.errors import (
    InterruptedRunError,
    ShoalError,
    TerminatedRunError,
    TrainingFailedError,
    UsageError,
    WorkerLostError,
)
from shoal.files import write_whole
from shoal.plan.checkpoints import list_checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
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

_OUT_OF_MEMORY = ("MemoryError", "std::bad_alloc", "DefaultCPUAllocator: ")
"""What an error holds that tells of a limit of the host's memory (Python, C++, torch)."""

_ORDERLY = {kind.exit_code: kind for kind in (InterruptedRunError, TerminatedRunError)}
"""Endings that were asked for: all ranks end alike, so none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How one rank ended."""

    rank: int
    host: str
    ending: Literal["done", "failed"]
    time: float
    """Seconds since the epoch."""
    exit_code: int = 0
    place: str = ""
    """Phase and iteration in which it ended."""
    error: str = ""
    """The exception as Python prints it in its last line; with exit code 75 the whole sentence about the loss."""
    traceback: str = ""
    """The exception's traceback; empty for Shoal's own errors, whose message says all."""
    is_secondary: bool = False
    """Whether the error only tells that the connection to another rank broke."""
    log_bytes: int | None = None
    """Size of this rank's log file just before the error was written into it."""
    report: dict[str, Any] = field(default_factory=dict)
    """The report of a rank that is done."""

    @classmethod
    def of_error(cls, error: BaseException, rank: Rank, *, place: str = "", log_bytes: int | None = None) -> ExitRecord:
        """Return the note of a rank that ends with `error`, while it was in `place`."""
        ours = isinstance(error, ShoalError)
        last_line = str(error) if ours else traceback.format_exception_only(error)[-1].strip()
        starved = not ours and any(mark in last_line for mark in _OUT_OF_MEMORY)
        exit_code = error.exit_code if isinstance(error, ShoalError) else WorkerLostError.exit_code if starved else 1
        return cls(
            rank=rank.rank,
            host=platform.node(),
            ending="failed",
            time=time.time(),
            exit_code=exit_code,
            place=place,
            error=out_of_memory(rank.rank, place, last_line) if starved else last_line,
            traceback="" if ours else "".join(traceback.format_exception(error)),
            is_secondary=not ours and any(mark in last_line for mark in _BROKEN_CONNECTION),
            log_bytes=log_bytes,
        )


def was_requested(note: ExitRecord) -> bool:
    """Whether the rank ended because a signal had asked for it."""
    return note.exit_code in _ORDERLY


def exit_record_path(directory: Path, rank: int) -> Path:
    """Return where `rank` leaves its note."""
    return directory / f"rank_{rank:05d}.json"


def write_exit_record(run: RunDir, note: ExitRecord, *, spare: Path | None = None) -> None:
    """Leave a note, whole at once, in the run directory; where its disk is full, in `spare`, if there is one.

    A full disk must not hide what the note tells, so at worst it only costs the note.
    """
    for directory in (run.ranks_dir, spare):
        if directory is None:
            continue
        final = exit_record_path(directory, note.rank)
        try:
            if note.is_secondary and final.exists():
                return  # This rank's watchdog knows more than that a connection broke.
            write_whole(final, json.dumps(asdict(note), indent=2))
        except OSError as error:
            logger.warning("Rank %d cannot leave a note in %s (%s).", note.rank, final, error.strerror)
        else:
            return


def read_exit_records(run: RunDir, ranks: Iterable[int] | int, *, spare: Path | None = None) -> dict[int, ExitRecord]:
    """Return the notes of these ranks, or of so many, that lie there, by rank."""
    notes: dict[int, ExitRecord] = {}
    for rank in range(ranks) if isinstance(ranks, int) else ranks:
        for directory in (run.ranks_dir, spare):
            path = exit_record_path(directory, rank) if directory is not None else None
            if path is not None and path.is_file():
                notes[rank] = ExitRecord(**json.loads(path.read_text(encoding="utf-8")))
    return notes


def read_all_exit_records(run: RunDir, host: str) -> list[ExitRecord]:
    """Return the notes of all ranks of a machine."""
    files = sorted(run.ranks_dir.glob("rank_*.json"))
    notes = [ExitRecord(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return [note for note in notes if note.host == host]


def clear_exit_records(run: RunDir) -> None:
    """Remove what an earlier launch into the same run directory has left, or put it aside under another name."""
    for path in run.ranks_dir.glob("rank_*"):
        if path.name.endswith((".stacks.txt", ".lost.npz")):
            names = (path.with_name(f"launch_{number}_{path.name}") for number in itertools.count(1))
            path.rename(next(name for name in names if not name.exists()))
        else:
            path.unlink()


def first_failure(
    notes: Iterable[ExitRecord], when: Callable[[ExitRecord], float] = attrgetter("time")
) -> ExitRecord | None:
    """Return the note of the rank that failed of its own accord, the earliest if there are several.

    Args:
        notes: How ranks ended.
        when: What they are ordered by. Times may be compared only where one clock has told them.

    Returns:
        None when no rank failed by itself: all notes are of success, or echo the end of a rank without a note.
    """
    causes = [note for note in notes if note.ending == "failed" and not note.is_secondary]
    return min(causes, key=when, default=None)


def failure_of(note: ExitRecord) -> ShoalError:
    """Return the error that tells of a rank that failed, with its exit code and its own traceback."""
    if was_requested(note):
        return _ORDERLY[note.exit_code](note.error)
    if note.exit_code == WorkerLostError.exit_code:
        return WorkerLostError(note.error, details=note.traceback, rank=note.rank)
    kind = UsageError if note.exit_code == UsageError.exit_code else TrainingFailedError
    where = f" in {note.place}" if note.place else ""
    return kind(f"Rank {note.rank} on {note.host} failed{where}: {note.error}", details=note.traceback)


def out_of_memory(rank: int, place: str, said: str) -> str:
    """Return the sentence about a rank that was refused memory."""
    message = (
        f"Rank {rank} on {platform.node()} was refused memory in {place or 'startup'} ({said}): pass a smaller "
        "--num-envs or fewer workers, or raise the limit."
    )
    return message  # noqa: RET504  Named so that the test of docs/troubleshooting.md finds it.


def resume_hint(run: RunDir) -> str:
    """Say how a run that was cut short goes on."""
    checkpoints = list_checkpoints(run)
    if not checkpoints:
        return "It has no checkpoint yet: start it again."
    return f"Pass --resume to go on from iteration {checkpoints[-1].iteration}."
