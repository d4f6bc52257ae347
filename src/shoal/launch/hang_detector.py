"""Hang detection: find the stuck rank from the heartbeats of all ranks, and format its error.

A rank that only waits for others is never the cause. A rank in another phase is, and so is one whose process does not
run: it was stopped, or native code holds Python's lock.
"""

import contextlib
import math
import os
import platform
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from shoal.errors import WorkerLostError
from shoal.heartbeat import Beat, read_beat
from shoal.launch.exit_records import resume_hint
from shoal.plan.rundir import RunDir
from shoal.procfs import is_stopped, started_at, state
from shoal.timing import HANG_GRACE_S, OWN_PAUSE_S, PROCESS_SILENCE_S


class PauseDetector:
    """Measures for how long this process has watched without a pause of its own: it was stopped, or got no CPU."""

    def __init__(self) -> None:
        self._since = self._last = time.monotonic()
        self._marks_at_pause = -1

    def look(self, marks: int | None = None) -> float:
        """Return the time since the end of the last pause [s]; called at each check.

        A rank that watches itself passes its progress `marks`: a second pause without progress in between does not
        count as one, because native code that holds Python's lock again and again looks the same.
        """
        now = time.monotonic()
        if now - self._last > OWN_PAUSE_S and marks != self._marks_at_pause:
            self._since = now
            self._marks_at_pause = -1 if marks is None else marks
        self._last = now
        return now - self._since


def read_beats(directory: Path, ranks: Iterable[int]) -> list[Beat]:
    """Return the heartbeats of those of `ranks` that have one."""
    return [beat for rank in ranks if (beat := read_beat(directory, rank)) is not None]


def find_stuck_rank(
    run: RunDir, beats: Sequence[Beat], watched: float, missing: Sequence[int]
) -> WorkerLostError | None:
    """Return the error of the rank that got stuck first, or of a deadlock; None while a rank makes progress.

    `beats` are of ranks that have not ended, and were watched for so long without a pause [s]; `missing` have none.
    """
    stuck = [beat for beat in beats if min(beat.idle, watched) > beat.limit + HANG_GRACE_S]
    causes = [beat for beat in stuck if not beat.waits or _is_silent(beat, watched)]
    if causes:
        return stall_error(run, max(causes, key=lambda beat: beat.idle))
    if not beats or len(stuck) < len(beats):
        return None
    idle, first = min(beat.idle for beat in beats), beats[0]
    if missing:
        return WorkerLostError(
            f"Rank {', '.join(map(str, missing))} has shown no heartbeat while the others waited for {idle:.0f} s, "
            f"rank {first.rank} on {first.host} in {first.place}. Look at that rank's own output. {resume_hint(run)}"
        )
    return WorkerLostError(
        f"No progress for {idle:.0f} s: all {len(beats)} ranks only wait, rank {first.rank} on {first.host} in "
        f"{first.place}. Look at the network between them, and at what else uses the same kernel cache. "
        f"{resume_hint(run)}"
    )


def stall_error(run: RunDir, beat: Beat) -> WorkerLostError:
    """Return the error of a rank that got stuck, with what the kernel or the silence of its node shows of it."""
    is_silent, why = beat.silent > HANG_GRACE_S, ""
    if is_silent and beat.host != platform.node():
        why = f": {beat.host} has been silent for {beat.silent:.0f} s, so it or the way to it is lost"
    elif is_that_process(beat) and is_stopped(beat.pid):
        why = ": its process is stopped, by a signal or a debugger"
    elif is_that_process(beat) and is_silent:
        why = ": its process does not let Python run, so native code holds its lock"
    message = (
        f"Rank {beat.rank} on {beat.host}: no progress for {beat.idle:.0f} s in {beat.place}{why}."
        f"{stacks_of(run, beat.rank)} {resume_hint(run)}"
    )
    return WorkerLostError(message, rank=beat.rank)


def _is_silent(beat: Beat, watched: float) -> bool:
    return min(beat.silent, watched) > min(beat.limit, PROCESS_SILENCE_S) + HANG_GRACE_S


def machine_lost(run: RunDir, rank: int, place: str, seconds: float) -> WorkerLostError:
    """Return the error of a rank that cannot reach the node of rank 0."""
    message = (
        f"Lost rank 0's node from {platform.node()}: it has not answered rank {rank}, which waits in {place}, for "
        f"{seconds:.0f} s. Look at the network between them. {resume_hint(run)}"
    )
    return WorkerLostError(message, rank=0)


def stack_file(run: RunDir, rank: int) -> Path:
    """Return the file of a rank's stack dump."""
    return run.ranks_dir / f"rank_{rank:05d}.stacks.txt"


def stacks_of(run: RunDir, rank: int) -> str:
    """Return a sentence, with a leading space, that names a rank's stack dump; empty without one."""
    file = stack_file(run, rank)
    with contextlib.suppress(OSError):
        if file.stat().st_size:
            return f" Its stacks are in {file}."
    return ""


def drop_empty_stacks(run: RunDir, ranks: Iterable[int]) -> None:
    """Remove empty stack dumps."""
    for file in (stack_file(run, rank) for rank in ranks):
        with contextlib.suppress(OSError):
            if file.stat().st_size == 0:
                run.folder.remove(file)


def is_that_process(beat: Beat) -> bool:
    """Whether the process of a heartbeat lives on this machine, and is not another one with its id."""
    return beat.host == platform.node() and started_at(beat.pid) == beat.started != 0 and state(beat.pid) != "Z"


def kill_stuck(beats: Iterable[Beat]) -> None:
    """Kill the processes on this machine that do not run: one that is stopped does not react to SIGTERM."""
    for beat in beats:
        if is_that_process(beat) and (is_stopped(beat.pid) or _is_silent(beat, math.inf)):
            os.kill(beat.pid, signal.SIGKILL)
