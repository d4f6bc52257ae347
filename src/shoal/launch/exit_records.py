"""Exit records in `<run>/ranks`: how each rank ended, the first cause of a failed launch, and its error.

A rank that finishes writes its report, one that raises writes the error. A rank without a record was killed or crashed.
A rank whose connection to another broke records a secondary failure, which is never the first cause.
"""

from __future__ import annotations

import json
import logging
import platform
import time
import traceback
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from shoal.errors import ShoalError, TerminatedRunError, TrainingFailedError, UsageError, WorkerLostError
from shoal.files import Folder
from shoal.plan.checkpoints import list_checkpoints
from shoal.plan.ranks import Rank
from shoal.plan.rundir import RunDir
from shoal.reading import parse_json, read_bytes
from shoal.run_record import WorkerReport
from shoal.signals import ERRORS

logger = logging.getLogger(__name__)

_BROKEN_CONNECTION = (
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "gloo/transport",
    "Connection closed by peer",
)
"""Parts of the errors that torch.distributed raises, with gloo and NCCL, when another rank has ended."""
_OUT_OF_MEMORY = ("MemoryError", "std::bad_alloc", "DefaultCPUAllocator: ")
"""Parts of the errors that a limit of the host's memory causes (Python, C++, torch)."""
_STOPPED = {kind.exit_code: kind for kind in ERRORS.values()}
"""Errors of requested stops: all ranks end alike, so none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How one rank ended."""

    rank: int
    host: str
    ending: Literal["done", "failed"]
    time: float  # Since the epoch [s].
    exit_code: int = 0
    place: str = ""  # Phase and iteration.
    error: str = ""
    """The exception's last line as Python prints it; with exit code 75 the message about the loss."""
    traceback: str = ""  # Empty for Shoal's own errors.
    is_secondary: bool = False  # The error only reports a broken connection to another rank.
    log_bytes: int | None = None  # Size of this rank's log file just before the error was written into it.
    report: dict[str, Any] = field(default_factory=dict)  # Of a rank that is done.

    @classmethod
    def of_report(cls, report: WorkerReport) -> ExitRecord:
        """Return the record of a rank that is done."""
        return cls(rank=report.rank, host=report.host, ending="done", time=time.time(), report=asdict(report))

    @classmethod
    def of_error(cls, error: BaseException, rank: Rank, *, place: str = "") -> ExitRecord:
        """Return the record of a rank that ends with `error` in phase `place`."""
        ended = cls(rank=rank.rank, host=platform.node(), ending="failed", time=time.time(), exit_code=1, place=place)
        if isinstance(error, ShoalError):
            return replace(ended, exit_code=error.exit_code, error=str(error))
        last_line = _last_line(error)
        ended = replace(
            ended,
            error=last_line,
            traceback="".join(traceback.format_exception(error)),
            is_secondary=any(part in last_line for part in _BROKEN_CONNECTION),
        )
        if not any(part in last_line for part in _OUT_OF_MEMORY):
            return ended
        message = (
            f"Rank {rank.rank} on {platform.node()} was refused memory in {place or 'startup'} ({last_line}): pass a "
            "smaller --num-envs or fewer workers, or raise the limit."
        )
        return replace(ended, exit_code=WorkerLostError.exit_code, error=message)


def _last_line(error: BaseException) -> str:
    """Return the last line of an exception as Python prints it, without notes that were added to it."""
    printed = traceback.TracebackException.from_exception(error)
    printed.__notes__ = None
    return list(printed.format_exception_only())[-1].strip()


def was_requested(record: ExitRecord) -> bool:
    """Whether the rank ended because of a stop signal."""
    return record.exit_code in _STOPPED


def write_exit_record(run: RunDir, record: ExitRecord, *, spare: Path | None = None) -> None:
    """Write a record into the run directory; where that fails, as on a full disk, into `spare`, or warn."""
    for directory in filter(None, (run.ranks_dir, spare)):
        file = directory / f"rank_{record.rank:05d}.json"
        try:
            # The record of this rank's watchdog names the cause, a secondary one does not.
            if not (record.is_secondary and file.exists()):
                Folder(directory).write(file, json.dumps(asdict(record), indent=2))
        except OSError as error:
            logger.warning(
                "The exit record of rank %d cannot be written to %s (%s).", record.rank, file, error.strerror
            )
        else:
            return


def read_exit_records(
    run: RunDir, ranks: Container[int] | None = None, *, spare: Path | None = None
) -> dict[int, ExitRecord]:
    """Return the records of `ranks`, by default of all, by rank."""
    files = [file for directory in (run.ranks_dir, spare) if directory for file in directory.glob("rank_*.json")]
    records = [ExitRecord(**parse_json(read_bytes(file))) for file in sorted(files)]
    return {record.rank: record for record in records if ranks is None or record.rank in ranks}


def first_failure(records: Iterable[ExitRecord]) -> ExitRecord | None:
    """Return the earliest failure that is not secondary; None without any. One clock has measured their times."""
    causes = [record for record in records if record.ending == "failed" and not record.is_secondary]
    return min(causes, key=attrgetter("time"), default=None)


def failure_of(record: ExitRecord) -> ShoalError:
    """Return the error that reports a rank's failure, with its exit code and its traceback."""
    if was_requested(record):
        return _STOPPED[record.exit_code](record.error)
    if record.exit_code == WorkerLostError.exit_code:
        return WorkerLostError(record.error, details=record.traceback, rank=record.rank)
    kind = UsageError if record.exit_code == UsageError.exit_code else TrainingFailedError
    where = f" in {record.place}" if record.place else ""
    return kind(f"Rank {record.rank} on {record.host} failed{where}: {record.error}", details=record.traceback)


def resume_hint(run: RunDir) -> str:
    """Return how to continue a run, or an evaluation, that was cut short."""
    if run.manifest_json.exists():
        return "The same command goes on with what is missing."
    checkpoints = list_checkpoints(run)
    if not checkpoints:
        return "It has no checkpoint yet: start it again."
    return f"Pass --resume to go on from iteration {checkpoints[-1].iteration}."


def ended_at_once(name: str, run: RunDir) -> ShoalError:
    """Return the error of a run that a signal ended without a new checkpoint."""
    kind = ERRORS.get(name, TerminatedRunError)
    return kind(f"{name} ended the run at once. {resume_hint(run)}")
