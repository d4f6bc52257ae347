"""The *in process* door: one worker, in this very process, without spawning and without a process group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.errors import ShoalError
from shoal.heartbeat import Limits
from shoal.launch.exit_records import ExitRecord, failure_of, write_exit_record
from shoal.launch.run_record import record_end
from shoal.launch.signals import ended_at_once, heard, stop_requests
from shoal.launch.watchdog import watched
from shoal.plan.ranks import Rank
from shoal.worker import WorkerReport, run_worker

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from shoal.launch.progress import ProgressReporter
    from shoal.launch.signals import StopRequests
    from shoal.plan.spec import WorkerSpec


def listen(view: ProgressReporter) -> AbstractContextManager[StopRequests]:
    """Answer the first signal, and let a second one end this process at once."""
    return stop_requests(insist=True, announce=lambda name: view.on_line(heard(name)))


def run_in_process(job: WorkerSpec, view: ProgressReporter, stop: StopRequests) -> list[WorkerReport]:
    """Run `job` here and return its one report.

    Raises:
        ShoalError: A signal ended it, or the training failed with an error of Shoal's own.
        TrainingFailedError: User code raised; with its traceback.
    """
    rank = Rank(rank=0, local_rank=0, world_size=1, local_world_size=1)
    place = "startup"

    def give_up(error: ShoalError) -> None:
        record_end(job.run, error)
        view.leave(error)

    limits = Limits.of(job.config.startup_timeout, job.config.stall_timeout)
    try:
        with watched(job.run, rank, limits, give_up=give_up) as beat:
            beat.on_enter = view.on_phase
            try:
                done = run_worker(job, rank, stop=stop, on_row=view.on_row, beat=beat)
            finally:
                place = beat.place()
    except ShoalError as error:
        write_exit_record(job.run, ExitRecord.of_error(error, rank))
        raise
    except KeyboardInterrupt as error:
        stopped = ended_at_once("SIGINT", job.run)
        write_exit_record(job.run, ExitRecord.of_error(stopped, rank))
        raise stopped from error
    except Exception as error:
        note = ExitRecord.of_error(error, rank, place=place)
        write_exit_record(job.run, note)
        raise failure_of(note) from error
    report = done.report
    write_exit_record(
        job.run, ExitRecord(rank=0, host=report.host, ending="done", time=time.time(), report=report.to_plain())
    )
    done.export()
    return [report]
