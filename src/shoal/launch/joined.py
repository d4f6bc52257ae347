"""The *joined* door: this process was started by torchrun or srun as one rank of many, and spawns nothing.

Rank 0 makes the run directory and hands its path to the others through the store in which they meet, so that there is
one directory and no side effect happens twice.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import ShoalError, UsageError, WorkerLostError
from shoal.heartbeat import Limits
from shoal.launch.elastic_state import attempts
from shoal.launch.exit_records import ExitRecord, clear_exit_records, failure_of, resume_hint, write_exit_record
from shoal.launch.hang_detector import is_that_process, machine_lost
from shoal.launch.rendezvous import acknowledge, find_network
from shoal.launch.run_record import record_end
from shoal.launch.status_store import FileStatusStore, TcpStatusStore
from shoal.launch.watchdog import watched
from shoal.plan.launchers import launcher_of
from shoal.plan.rundir import RunDir
from shoal.plan.spec import WorkerSpec
from shoal.worker import WorkerReport, run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shoal.launch.progress import ProgressReporter
    from shoal.launch.rendezvous import Rendezvous
    from shoal.launch.signals import StopRequests
    from shoal.launch.signed_store import SignedStore
    from shoal.launch.status_store import StatusStore
    from shoal.plan.ranks import Rank

_RUN_DIR = "shoal/run_dir"
_REFUSAL = "shoal/refusal"
_REPORT = "shoal/report"
_JOB = "shoal/job"
_REPORT_WAIT = timedelta(seconds=60)
_ECHO_WAIT_S = 2.5
"""How long a rank whose connection broke waits for the note of the rank that broke it [s]."""


def share_run_dir(store: SignedStore, rank: Rank, make: Callable[[], Path]) -> Path:
    """Let rank 0 make the run directory, and tell all ranks where it is.

    Raises:
        UsageError: Rank 0 could not make it; raised with the same words on every rank.
    """
    if rank.rank == 0:
        try:
            path = make()
        except Exception as error:
            store.set(_REFUSAL, str(error) or repr(error))
            store.set(_RUN_DIR, "")
            acknowledge(store, rank, "refusal")
            raise
        store.set(_RUN_DIR, str(path))
        return path
    told = store.get(_RUN_DIR).decode()
    if not told:
        refusal = store.get(_REFUSAL).decode()
        acknowledge(store, rank, "refusal")
        raise UsageError(refusal)
    run = RunDir(Path(told))
    if rank.local_rank == 0 and not run.run_json.exists():  # A disk of its own: notes and stacks lie here.
        with suppress(OSError):
            run.ranks_dir.mkdir(parents=True, exist_ok=True)
            clear_exit_records(run)
    return run.path


def run_joined(  # noqa: PLR0913  Some of them are the door's own.
    job: WorkerSpec,
    view: ProgressReporter,
    stop: StopRequests,
    *,
    rank: Rank,
    meeting: Rendezvous,
    store: SignedStore,
    backend: str | None,
) -> list[WorkerReport]:
    """Be rank `rank` of `job`, and return this rank's report; on rank 0, those of all ranks.

    Raises:
        ShoalError: With the first cause, also on a rank that only saw its connection break.
    """
    interface = job.config.interface  # Each machine's own.
    job = _share_job(store, rank, replace(job, backend=backend))
    network = find_network(meeting, store, rank, interface)
    with _open_board(job.run, rank, partial(meeting.connect, store.secret)) as board:
        return _run(job, view, stop, rank=rank, store=store, network=network, board=board)


def _share_job(store: SignedStore, rank: Rank, job: WorkerSpec) -> WorkerSpec:
    """Take rank 0's job: it knows where a run goes on, and with what. Devices and code are each rank's own."""
    if rank.rank == 0:
        store.set(_JOB, job.to_json())
        return job
    return replace(WorkerSpec.from_json(store.get(_JOB).decode(), own=job.config), devices=job.devices)


@contextmanager
def _open_board(run: RunDir, rank: Rank, connect: Callable[[], SignedStore]) -> Iterator[StatusStore]:
    """Open what the ranks tell each other by: files on one machine, the store on several."""
    if rank.local_world_size == rank.world_size:
        yield FileStatusStore(run, run.ranks_dir, rank.world_size)
        return
    with closing(TcpStatusStore(run, rank, connect)) as board:
        yield board


def _run(  # noqa: PLR0913
    job: WorkerSpec,
    view: ProgressReporter,
    stop: StopRequests,
    *,
    rank: Rank,
    store: SignedStore,
    network: Mapping[str, str],
    board: StatusStore,
) -> list[WorkerReport]:
    place = "startup"

    def give_up(error: ShoalError) -> None:
        if rank.rank == 0:
            record_end(job.run, error)
        view.leave(error)

    limits = Limits.of(job.config.startup_timeout, job.config.stall_timeout)
    try:
        with watched(job.run, rank, limits, give_up=give_up, board=board) as beat:
            beat.on_enter = view.on_phase
            try:
                done = run_worker(
                    job, rank, stop=stop, store=lambda: store.raw, on_row=view.on_row, beat=beat, network=network
                )
                beat.enter("collective")
                reports = _gather(store, rank, done.report)
            finally:
                place = beat.place()
    except ShoalError as error:
        board.leave(ExitRecord.of_error(error, rank))
        raise
    except Exception as error:
        note = ExitRecord.of_error(error, rank, place=place)
        board.leave(note)
        if not note.is_secondary:
            raise failure_of(note) from error
        cause = _cause_elsewhere(job, rank, board)
        if attempts() is not None:  # A launcher of ours on this machine, which says the last line.
            write_exit_record(job.run, ExitRecord.of_error(cause, rank))
        raise cause from error
    report = done.report
    board.leave(ExitRecord(rank=rank.rank, host=report.host, ending="done", time=time.time(), report=report.to_plain()))
    done.export()
    return reports


def _gather(store: SignedStore, rank: Rank, report: WorkerReport) -> list[WorkerReport]:
    """Return the reports of all ranks on rank 0, which tells of the run, and its own on every other rank."""
    store.set(f"{_REPORT}/{rank.rank}", json.dumps(report.to_plain()))
    if rank.rank != 0:
        return [report]
    keys = [f"{_REPORT}/{each}" for each in range(rank.world_size)]
    # All have learned to the end, and said so together: whoever does not report now is gone.
    store.wait(keys, _REPORT_WAIT)
    return [WorkerReport(**json.loads(store.get(key))) for key in keys]


def _cause_elsewhere(job: WorkerSpec, rank: Rank, board: StatusStore) -> ShoalError:
    """Return an error that names the rank that failed first, for a rank that only lost its connection to it."""
    deadline = time.monotonic() + _ECHO_WAIT_S
    while (cause := board.first_failure()) is None:
        if time.monotonic() > deadline:
            return _lost_elsewhere(job, rank, board)
        board.refresh()
        time.sleep(0.1)
    return failure_of(replace(cause, traceback=""))  # Its own rank shows that.


def _launcher() -> str:
    return launcher_of(os.environ) or "the launcher"


def _lost_elsewhere(job: WorkerSpec, rank: Rank, board: StatusStore) -> ShoalError:
    """Return the error of a rank that ended without a note: its heartbeat has stopped, and still says where it was."""
    if board.silent > _ECHO_WAIT_S and rank.rank != 0:
        return machine_lost(job.run, rank.rank, "collective", board.silent)
    ranks = set(range(rank.world_size)) - {rank.rank} - board.notes().keys()
    beats = [beat for beat in board.beats(ranks) if not is_that_process(beat)]
    lost = max(beats, key=lambda beat: beat.silent, default=None)
    if lost is None or lost.silent < _ECHO_WAIT_S:  # On another machine, nothing but silence tells.
        message = f"Another rank was lost: killed or crashed without a word. Look at {_launcher()}'s output for which."
        return WorkerLostError(message)
    message = (
        f"Lost rank {lost.rank} on {lost.host} in {lost.place}: killed or crashed without a word. "
        f"{_launcher()}'s output tells its signal or exit code. {resume_hint(job.run)}"
    )
    error = WorkerLostError(message, rank=lost.rank)
    if (lost.rank, rank.rank) == (0, 1) and job.run.run_json.exists():
        record_end(job.run, error)  # The one that writes is lost: the next one writes this for it.
    return error
