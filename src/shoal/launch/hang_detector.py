"""Who keeps the others waiting, told from all heartbeats together, and the sentence about it.

A rank that only waits is never to blame. The one in another phase is, and so is one whose process does not run any
more: it was stopped, or native code holds Python's lock, and it cannot speak for itself.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from typing import TYPE_CHECKING

from shoal.errors import WorkerLostError
from shoal.heartbeat import read_beat
from shoal.launch.exit_records import resume_hint
from shoal.procfs import is_stopped, started_at, state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from shoal.heartbeat import Beat
    from shoal.plan.rundir import RunDir

GRACE_S = 3.0
"""How much longer than its limit a rank gets, to speak for itself, before others speak of it [s]."""
SILENT_S = 30.0
"""A process that has not run for so long, or for its limit if that is less, is taken for one that cannot [s]."""
_LATE_S = 5.0
"""A look that comes so much later than the one before was not late by chance: this process itself was stopped [s]."""


class PauseDetector:
    """How long this process has been looking without a break. What was idle meanwhile says nothing about others."""

    def __init__(self) -> None:
        self._since = self._last = time.monotonic()
        self._forgiven = -1

    def look(self, marks: int | None = None) -> float:
        """Take a look, and return for how long there has been no break [s].

        Args:
            marks: This process's own signs of progress, if it looks at itself: without any between two breaks, the
                second is not forgiven, since native code that holds Python's lock again and again makes them too.
        """
        now = time.monotonic()
        if now - self._last > _LATE_S and marks != self._forgiven:
            self._since = now
            self._forgiven = -1 if marks is None else marks
        self._last = now
        return now - self._since


def read_beats(directory: Path, ranks: Iterable[int]) -> list[Beat]:
    """Return the heartbeats that there are."""
    return [beat for rank in ranks if (beat := read_beat(directory, rank)) is not None]


def find_stalled(beats: Iterable[Beat], watched: float) -> Beat | None:
    """Return the heartbeat of the rank that got stuck first, or None when no rank has, or all of them only wait.

    Args:
        beats: Those of ranks that have not ended.
        watched: For how long they have been watched without a break [s].
    """
    stuck = [beat for beat in beats if _is_over(beat, watched)]
    guilty = [beat for beat in stuck if not beat.waits or _is_silent(beat, watched)]
    return max(guilty, key=lambda beat: beat.idle, default=None)


def is_deadlock(beats: Sequence[Beat], watched: float) -> bool:
    """Whether each rank has been waiting for the others for longer than its limit, which none can end."""
    return bool(beats) and all(beat.waits and _is_over(beat, watched) for beat in beats)


def _is_over(beat: Beat, watched: float) -> bool:
    return min(beat.idle, watched) > beat.limit + GRACE_S


def _is_silent(beat: Beat, watched: float) -> bool:
    return min(beat.silent, watched) > min(beat.limit, SILENT_S) + GRACE_S


def stack_file(run: RunDir, rank: int) -> Path:
    """Return where the stacks of a rank's threads are dumped."""
    return run.ranks_dir / f"rank_{rank:05d}.stacks.txt"


def stall_error(run: RunDir, beat: Beat) -> WorkerLostError:
    """Return the error of a rank that got stuck."""
    message = (
        f"Rank {beat.rank} on {beat.host}: no progress for {beat.idle:.0f} s in {beat.place}{_why(beat)}."
        f"{stacks_of(run, beat.rank)} {resume_hint(run)}"
    )
    return WorkerLostError(message, rank=beat.rank)


def find_stuck_rank(
    run: RunDir, beats: Sequence[Beat], watched: float, missing: Sequence[int]
) -> WorkerLostError | None:
    """Return the error of the rank that got stuck, or of ranks that all wait; None while somebody gets on.

    Args:
        run: The run's directory.
        beats: Those of ranks that have not ended.
        watched: For how long they have been watched without a break [s].
        missing: Ranks that have not ended, and have no heartbeat.
    """
    culprit = find_stalled(beats, watched)
    if culprit is not None:
        return stall_error(run, culprit)
    return deadlock_error(run, beats, missing) if is_deadlock(beats, watched) else None


def deadlock_error(run: RunDir, beats: Sequence[Beat], missing: Sequence[int]) -> WorkerLostError:
    """Return the error of ranks that all wait: for each other, or for some that have never shown a heartbeat."""
    idle, first = min(beat.idle for beat in beats), beats[0]
    if missing:
        message = (
            f"Rank {', '.join(map(str, missing))} has shown no heartbeat while the others waited for {idle:.0f} s, "
            f"rank {first.rank} on {first.host} in {first.place}. Look at that rank's own output. {resume_hint(run)}"
        )
        return WorkerLostError(message)
    message = (
        f"No progress for {idle:.0f} s: all {len(beats)} ranks only wait, rank {first.rank} on {first.host} in "
        f"{first.place}. Look at the network between them, and at what else uses the same kernel cache. "
        f"{resume_hint(run)}"
    )
    return WorkerLostError(message)


def machine_lost(run: RunDir, rank: int, place: str, seconds: float) -> WorkerLostError:
    """Return the error of a rank whose machine does not reach rank 0's any more."""
    message = (
        f"Lost rank 0's machine from {platform.node()}: it has not answered rank {rank}, which waits in {place}, for "
        f"{seconds:.0f} s. Look at the network between them. {resume_hint(run)}"
    )
    return WorkerLostError(message, rank=0)


def _why(beat: Beat) -> str:
    """Say why a process does not run: what the kernel knows of it, or that its machine is silent."""
    if beat.host != platform.node():
        lost = beat.silent > GRACE_S
        return f": {beat.host} has been silent for {beat.silent:.0f} s, so it or the way to it is lost" if lost else ""
    if not is_that_process(beat):
        return ""
    if is_stopped(beat.pid):
        return ": its process is stopped, by a signal or a debugger"
    if beat.silent > GRACE_S:
        return ": its process does not let Python run, so native code holds its lock"
    return ""


def stacks_of(run: RunDir, rank: int) -> str:
    """Say, with a leading space, where the stacks of a rank are, if it left some."""
    file = stack_file(run, rank)
    try:
        return f" Its stacks are in {file}." if file.stat().st_size else ""
    except OSError:
        return ""


def drop_empty_stacks(run: RunDir, ranks: Iterable[int]) -> None:
    """Remove the files of ranks that had nothing to tell."""
    for file in (stack_file(run, rank) for rank in ranks):
        with contextlib.suppress(OSError):
            if file.stat().st_size == 0:
                file.unlink()


def is_that_process(beat: Beat) -> bool:
    """Whether the process of a heartbeat still exists on this machine, and is not another of the same number."""
    return beat.host == platform.node() and started_at(beat.pid) == beat.started != 0 and state(beat.pid) != "Z"


def end_stuck(beat: Beat) -> None:
    """Kill a process of this machine that can neither go on nor end itself.

    A launcher would ask it to end first, which one that is stopped does not hear, and wait for half a minute.
    """
    if is_that_process(beat):
        os.kill(beat.pid, signal.SIGKILL)
