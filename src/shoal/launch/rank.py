"""The body of one rank, the same in every launch mode: watchdog, training, exit record, export.

torchrunx calls `enter` in each spawned worker process with one string; other modes call `run_rank`.

The watchdog writes the rank's heartbeat. A rank without progress dumps the stacks of its threads, writes its exit
record and ends itself. When Python does not run, faulthandler's own thread dumps the stacks, and other processes report
the rank (`shoal.launch.hang_detector`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from shoal.errors import ShoalError, WorkerLostError
from shoal.files import Folder, folder_of
from shoal.heartbeat import Heartbeat, beat_file
from shoal.launch.exit_records import ExitRecord, ended_at_once, failure_of
from shoal.launch.hang_detector import (
    PauseDetector,
    drop_empty_stacks,
    find_stuck_rank,
    kill_stuck,
    machine_lost,
    read_beats,
    stack_file,
    stall_error,
)
from shoal.launch.reaper import life_file, lock_with_pid
from shoal.launch.rendezvous import open_file_store, open_tcp_rendezvous
from shoal.launch.status_store import StatusStore
from shoal.logs import configure_logging
from shoal.plan.job import SweepPlan
from shoal.plan.launch import Plan
from shoal.plan.ranks import Rank
from shoal.plan.received import from_json, read_workers
from shoal.run_record import WorkerReport
from shoal.signals import STOPPING, StopRequests, stop_requests
from shoal.text import TYPABLE
from shoal.timing import BEAT_S, DUMP_GRACE_S, HANG_GRACE_S, IDLE_BEFORE_READING_S

if TYPE_CHECKING:
    from torch.distributed import Store


class ProgressReporter:
    """Shows one launch in the launching process; this one shows nothing, as on ranks other than 0."""

    def on_phase(self, phase: str) -> None:
        """Take the phase of the slowest rank, one of `heartbeat.PHASES`; shown until the first iteration is done."""

    def on_row(self, row: Mapping[str, float]) -> None:
        """Show the pooled metrics of one more iteration."""

    def on_line(self, line: str) -> None:
        """Show one line of rank 0's output, or of Shoal's own."""

    def close(self) -> None:
        """Show what was held back, and release the terminal."""


def enter(sent: str) -> None:
    """Run one rank of a spawned launch. Returns only after success.

    A rank that failed ends its process at once: torchrunx would keep one that raises alive until its peers' own
    time-outs, and would then report a peer.
    """
    # Without the work first, whose task may be a user's file that fails to be imported.
    node = read_workers(json.loads(sent))
    local_rank = int(os.environ["LOCAL_RANK"])  # Set by torchrunx, whose launcher knows this node only.
    rank = Rank(
        rank=node.ranks[local_rank], local_rank=local_rank, world_size=node.world_size, local_world_size=len(node.ranks)
    )
    os.environ |= {"RANK": str(rank.rank), "WORLD_SIZE": str(rank.world_size)}
    scratch = Path(node.scratch or "")

    def load() -> Plan:
        _write_output_to(node.log_file(rank.rank))
        lock_with_pid(life_file(scratch, rank.rank))
        configure_logging(rank=rank.rank)
        return from_json(sent)

    def open_store() -> Store:
        if node.rendezvous is not None:
            return open_tcp_rendezvous(scratch, rank, node.rendezvous)
        return open_file_store(scratch / "rendezvous", rank)

    with stop_requests(insist=False) as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # The launching process has blocked them in its children.
        try:
            run_rank(
                load,
                StatusStore(node.run, rank, scratch),
                (node.config.startup_timeout, node.config.stall_timeout),
                stop=stop,
                abort=_exit_with,
                store=open_store,
            )
        except BaseException as error:  # noqa: BLE001  This process ends, whatever it is.
            _exit_with(error)


def _exit_with(error: BaseException) -> NoReturn:
    """Write an error into this rank's output file, and end this process. Its exit record has been written."""
    is_ours = isinstance(error, ShoalError)
    try:
        sys.stderr.write((error.details or f"{error}\n") if is_ours else "".join(traceback.format_exception(error)))
        sys.stderr.flush()
    finally:
        os._exit(error.exit_code if is_ours else 1)


def _write_output_to(file: Path) -> None:
    """Redirect standard output and error to this rank's own file.

    torchrunx would carry both through its log stream, where one byte that is not UTF-8 fails the job.
    """
    with folder_of(file).open(file, "a") as output:
        for descriptor, stream in enumerate((sys.stdout, sys.stderr), 1):
            stream.flush()
            os.dup2(output.fileno(), descriptor)
    sys.stdout.reconfigure(line_buffering=True, errors=TYPABLE)  # pyright: ignore[reportAttributeAccessIssue]


def run_rank(  # noqa: PLR0913  What the launch modes differ in.
    load: Callable[[], Plan],
    statuses: StatusStore,
    timeouts: tuple[float, float],
    *,
    stop: StopRequests,
    abort: Callable[[ShoalError], None],
    store: Callable[[], Store] | None = None,
    progress: ProgressReporter | None = None,
    gather: Callable[[WorkerReport], list[WorkerReport]] = lambda report: [report],
    cause_of: Callable[[ExitRecord], ShoalError] = failure_of,
) -> list[WorkerReport]:
    """Run one rank under its watchdog, write its exit record, and export the policy after success.

    `load` returns the plan; it may import a user's file, so the watchdog runs already. `timeouts` are those of
    startup and of stalls, and `abort` ends this process from the watchdog's thread. `store` opens the store of the
    process group, if there is one. `gather` returns what this process returns, before the exit record is written, and
    `cause_of` the error to raise for an exception that is not Shoal's own.
    """
    rank, place = statuses.rank, "startup"
    try:
        with Watchdog(statuses, timeouts, abort) as beat:
            beat.on_enter = progress.on_phase if progress else None

            def on_row(row: Mapping[str, float]) -> None:
                stop.at_once = False
                if progress is not None:
                    progress.on_row(row)

            try:
                plan = load()
                if isinstance(plan, SweepPlan):
                    from shoal.sweep.worker import run_trials as run_plan
                else:
                    from shoal.worker import run_worker as run_plan
                report, export = run_plan(
                    plan,  # pyright: ignore[reportArgumentType]  Of its kind.
                    rank,
                    stop=stop,
                    store=store,
                    on_row=on_row,
                    beat=beat,
                )
                beat.enter("collective")
                reports = gather(report)
            finally:
                place = beat.beat(rank.rank).place
            statuses.write_exit(ExitRecord.of_report(report))
    except BaseException as raised:
        error = (
            ended_at_once(str(raised) or "SIGINT", statuses.run) if isinstance(raised, KeyboardInterrupt) else raised
        )
        with contextlib.suppress(OSError):  # The disk may be full.
            sys.stdout.flush()
        record = ExitRecord.of_error(error, rank, place=place)
        statuses.write_exit(record)
        if error is raised and isinstance(error, ShoalError):
            raise
        raise (error if isinstance(error, ShoalError) else cause_of(record)) from raised
    export()
    return reports


class Watchdog:
    """Writes a rank's heartbeat and watches it, as a context manager that yields the heartbeat."""

    def __init__(
        self, statuses: StatusStore, timeouts: tuple[float, float], abort: Callable[[ShoalError], None]
    ) -> None:
        """Write the first heartbeat. `timeouts` are those of startup and of stalls; `abort` ends this process."""
        self._statuses, self._abort = statuses, abort
        self._rank, self._run = statuses.rank, statuses.run
        self._file = beat_file(statuses.directory, self._rank.rank)
        self._beat = Heartbeat(self._file, *timeouts)
        self._pauses = PauseDetector()
        self._ended = threading.Event()
        self._stacks: IO[bytes] | None = None
        self._dumps_crashes = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Heartbeat:
        with contextlib.suppress(OSError):  # Opened now: later the disk may be full, or the directory gone.
            self._stacks = self._run.folder.open(stack_file(self._run, self._rank.rank), "w+")
        # torchrunx's worker sends crashes to the rank's output, which may be off. A user's own choice is left alone.
        if self._stacks is not None and (self._statuses.is_supervised or not faulthandler.is_enabled()):
            faulthandler.enable(file=self._stacks)
            self._dumps_crashes = True
        self._arm()
        self._thread.start()
        return self._beat

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._stacks is not None:
            faulthandler.cancel_dump_traceback_later()
            if self._dumps_crashes:
                faulthandler.disable()
            self._stacks.close()
            drop_empty_stacks(self._run, [self._rank.rank])
        self._beat.close()
        with contextlib.suppress(OSError):  # The exit record follows.
            Folder(self._file.parent).remove(self._file)

    def _watch(self) -> None:
        period = min(BEAT_S, self._beat.least_limit / 5)  # Some heartbeats within the shortest limit.
        while not self._ended.wait(period):
            limit, marks = self._beat.limit, self._beat.marks
            watched_s = self._pauses.look(marks)
            waits = self._beat.waits()
            self._beat.pulse(waits=waits)
            self._arm()
            idle = min(self._beat.idle, watched_s)
            # The silence of others is measured from the first time that they are read.
            read_others = idle > min(IDLE_BEFORE_READING_S, limit / 2)
            self._statuses.publish(self._beat.beat(self._rank.rank, waits=waits), read_others=read_others)
            if idle > limit and not waits:
                self._end(self._dump_stacks(idle), marks)
            elif idle > limit + HANG_GRACE_S and not self._statuses.is_supervised:
                self._check_others(watched_s, marks)

    def _end(self, error: ShoalError, marks: int) -> None:
        """Write an exit record and end this process, unless it made progress meanwhile."""
        if marks == self._beat.marks:
            self._statuses.write_exit(ExitRecord.of_error(error, self._rank))  # First: the kill breaks our connection.
            if not self._statuses.is_supervised:
                others = [rank for rank in range(self._rank.world_size) if rank != self._rank.rank]
                kill_stuck(read_beats(self._statuses.directory, others))
            self._abort(error)

    def _arm(self) -> None:
        """Have faulthandler dump the stacks unless this is called again in time."""
        limit = self._beat.least_limit
        if self._stacks is not None and limit < math.inf:
            faulthandler.dump_traceback_later(min(limit, 1e7) + DUMP_GRACE_S, file=self._stacks)  # Its longest time.

    def _dump_stacks(self, idle: float) -> WorkerLostError:
        """Dump the stacks of all threads, and return the error of this rank."""
        if self._stacks is not None:
            with contextlib.suppress(OSError):
                faulthandler.cancel_dump_traceback_later()
                place = self._beat.beat(self._rank.rank).place
                where = f"Rank {self._rank.rank}: no progress for {idle:.0f} s in {place}\n"
                self._stacks.write(where.encode())
                faulthandler.dump_traceback(file=self._stacks)
        return stall_error(self._run, replace(self._beat.beat(self._rank.rank), idle=idle))

    def _check_others(self, watched_s: float, marks: int) -> None:
        """End this process if it waits for a rank that is stuck, failed or lost."""
        statuses = self._statuses
        ranks = set(range(self._rank.world_size)) - statuses.ended()
        beats = statuses.beats(ranks)
        missing = sorted(ranks - {beat.rank for beat in beats})
        if statuses.silent > self._beat.limit:
            place = self._beat.beat(self._rank.rank).place
            self._end(machine_lost(self._run, self._rank.rank, place, statuses.silent), marks)
        elif cause := statuses.first_failure():  # It failed long ago, and this rank's connection did not break.
            self._end(failure_of(replace(cause, traceback="")), marks)
        elif statuses.watches and (error := find_stuck_rank(self._run, beats, watched_s, missing)):
            self._end(error, marks)
