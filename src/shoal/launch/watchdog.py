"""The watchdog of a rank: a thread that keeps its heartbeat going, and ends a rank that gets stuck.

A rank without progress dumps the stacks of its threads, says so, and ends itself. One whose process does not run
cannot: faulthandler's own thread, which needs no lock of Python's, still dumps its stacks, and those who wait for it
name it (`shoal.launch.hang_detector`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.heartbeat import Heartbeat, Limits, beat_file
from shoal.launch.exit_records import ExitRecord, failure_of
from shoal.launch.hang_detector import (
    GRACE_S,
    PauseDetector,
    drop_empty_stacks,
    end_stuck,
    find_stuck_rank,
    machine_lost,
    stack_file,
    stall_error,
)
from shoal.launch.status_store import FileStatusStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TextIO

    from shoal.errors import ShoalError, WorkerLostError
    from shoal.heartbeat import Beat
    from shoal.launch.status_store import StatusStore
    from shoal.plan.ranks import Rank
    from shoal.plan.rundir import RunDir

_TICK_S = 1.0
"""Longest time between two beats [s]."""
_TICKS_A_LIMIT = 5
_CURIOUS_S = 2.0
"""After so long without progress a rank wants to know how the others are [s]."""
_LONGEST_S = 1e7
"""faulthandler counts no longer times [s]."""
_DUMP_GRACE_S = 1.0
"""How much later than the limit faulthandler's thread dumps the stacks of a process that does not run [s]."""


@contextmanager
def watched(  # noqa: PLR0913  What a door knows of its rank.
    run: RunDir,
    rank: Rank,
    limits: Limits,
    *,
    give_up: Callable[[ShoalError], None],
    scratch: Path | None = None,
    board: StatusStore | None = None,
) -> Iterator[Heartbeat]:
    """Keep the heartbeat of this process's rank, and watch over it, for the time of the body.

    Args:
        run: Where stacks are dumped.
        rank: This process's place.
        limits: How long it may go without progress.
        give_up: Called in the watchdog's thread when nothing will come of this process any more; must end it.
        scratch: A directory of this machine for the heartbeat, where a launching process looks at it, and names
            whoever gets stuck. By default it is in the run directory, and the ranks look at each other.
        board: Where ranks of several machines leave word for each other; by default files do.
    """
    directory = scratch or run.ranks_dir
    beat = Heartbeat(beat_file(directory, rank.rank), limits)
    board = board or FileStatusStore(run, directory, rank.world_size)
    dog = _Watchdog(run, rank, beat, board, give_up, is_launched=scratch is not None)
    dog.start()
    try:
        yield beat
    finally:
        dog.stop()
        beat.close()
        with contextlib.suppress(OSError):  # This rank is about to say itself how it ended.
            beat_file(directory, rank.rank).unlink()


class _Watchdog:
    """One rank's."""

    def __init__(  # noqa: PLR0913
        self,
        run: RunDir,
        rank: Rank,
        beat: Heartbeat,
        board: StatusStore,
        give_up: Callable[[ShoalError], None],
        *,
        is_launched: bool,
    ) -> None:
        self._run = run
        self._rank = rank
        self._beat = beat
        self._board = board
        self._is_launched = is_launched  # By a process that watches over all ranks.
        self._give_up = give_up
        self._lookout = PauseDetector()
        self._ended = threading.Event()
        self._stacks: TextIO | None = None
        self._tells_of_crashes = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        with contextlib.suppress(OSError):  # Opened now: later the disk may be full, or the directory gone.
            self._stacks = stack_file(self._run, self._rank.rank).open("w", encoding="utf-8")
        # torchrunx's worker has sent crashes to the rank's output, which may be off. A user's own wish is left alone.
        if self._stacks is not None and (self._is_launched or not faulthandler.is_enabled()):
            faulthandler.enable(file=self._stacks)  # A crash in native code leaves its stacks there too.
            self._tells_of_crashes = True
        self._arm()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and leave no empty file."""
        self._ended.set()
        self._thread.join()
        if self._stacks is not None:
            faulthandler.cancel_dump_traceback_later()
            if self._tells_of_crashes:
                faulthandler.disable()
            self._stacks.close()
            drop_empty_stacks(self._run, [self._rank.rank])

    def _watch(self) -> None:
        tick = min(_TICK_S, self._beat.limits.least / _TICKS_A_LIMIT)
        while not self._ended.wait(tick):
            limit, marks = self._beat.limit, self._beat.marks
            watched_s = self._lookout.look(marks)
            waits = self._beat.waits()
            self._beat.pulse(waits=waits)
            self._arm()
            idle = min(self._beat.idle, watched_s)
            # How long others have been silent is known from when one begins to look.
            self._board.pulse(self._beat.beat(self._rank.rank, waits=waits), curious=idle > min(_CURIOUS_S, limit / 2))
            if idle > limit and not waits:
                self._end(self._confess(idle), marks)
            elif idle > limit + GRACE_S and not self._is_launched:
                self._look_around(watched_s, marks)

    def _end(self, error: ShoalError, marks: int, culprit: Beat | None = None) -> None:
        """Leave a note and end this process, unless it has come on meanwhile; end `culprit` too."""
        if marks != self._beat.marks:
            return
        self._board.leave(ExitRecord.of_error(error, self._rank))  # First: what is ended now breaks our connection.
        if culprit is not None:
            end_stuck(culprit)
        self._give_up(error)

    def _arm(self) -> None:
        """Have the stacks dumped if this thread does not come back here in time."""
        limit = self._beat.limits.least
        if self._stacks is None:
            return
        if limit < _LONGEST_S:
            faulthandler.dump_traceback_later(limit + _DUMP_GRACE_S, file=self._stacks)
        else:
            faulthandler.cancel_dump_traceback_later()

    def _confess(self, idle: float) -> WorkerLostError:
        """Dump the stacks of all threads, and return the error that names this rank."""
        if self._stacks is not None:
            with contextlib.suppress(OSError):
                faulthandler.cancel_dump_traceback_later()
                self._stacks.write(f"Rank {self._rank.rank}: no progress for {idle:.0f} s in {self._beat.place()}\n")
                self._stacks.flush()
                faulthandler.dump_traceback(file=self._stacks)
        own = replace(self._beat.beat(self._rank.rank), idle=idle)
        return stall_error(self._run, own)

    def _look_around(self, watched_s: float, marks: int) -> None:
        """End this process if it waits in vain, naming the rank that it waits for."""
        if self._board.silent > self._beat.limit:
            self._end(machine_lost(self._run, self._rank.rank, self._beat.place(), self._board.silent), marks)
            return
        notes = self._board.notes()
        cause = self._board.first_failure()
        if cause is not None:  # One that failed long ago, which this rank's connection does not tell.
            self._end(failure_of(replace(cause, traceback="")), marks)
            return
        ranks = set(range(self._rank.world_size)) - notes.keys()
        beats = self._board.beats(ranks)
        error = find_stuck_rank(self._run, beats, watched_s, sorted(ranks - {beat.rank for beat in beats}))
        if error is not None:
            self._end(error, marks, next((beat for beat in beats if beat.rank == error.rank), None))
