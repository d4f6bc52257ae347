"""The body of one rank, the same in every launch mode: watchdog, training, exit record, export."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shoal.errors import ShoalError
from shoal.launch.exit_records import ExitRecord, ended_at_once, failure_of
from shoal.launch.progress import ProgressReporter
from shoal.launch.status_store import StatusStore
from shoal.launch.watchdog import Watchdog
from shoal.plan.ranks import Rank
from shoal.plan.spec import WorkerSpec
from shoal.signals import StopRequests
from shoal.worker import WorkerReport, run_worker

if TYPE_CHECKING:
    from torch.distributed import Store


def run_rank(  # noqa: PLR0913  What the launch modes differ in.
    load: Callable[[], WorkerSpec],
    rank: Rank,
    statuses: StatusStore,
    timeouts: tuple[float, float],
    *,
    stop: StopRequests,
    abort: Callable[[ShoalError], None],
    store: Callable[[], Store] | None = None,
    progress: ProgressReporter | None = None,
    network: Mapping[str, str] | None = None,
    gather: Callable[[WorkerReport], list[WorkerReport]] = lambda report: [report],
    cause_of: Callable[[ExitRecord], ShoalError] = failure_of,
) -> list[WorkerReport]:
    """Run one rank under its watchdog, write its exit record, and export the policy after success.

    Args:
        load: Returns the specification. Called under the watchdog: it may import a user's file.
        rank: This process's rank.
        statuses: Takes the exit record.
        timeouts: `--startup-timeout` and `--stall-timeout`.
        stop: Stop signals received.
        abort: Ends this process from the watchdog's thread.
        store: Opens the store of the process group; None for a single worker.
        progress: Shows the training, in a process that a user sees.
        network: Variables that gloo and NCCL need to reach other nodes.
        gather: Returns the reports that this process returns; called before the exit record is written.
        cause_of: Returns the error to raise for an exception that is not Shoal's own.
    """
    place = "startup"
    try:
        with Watchdog(rank, statuses, timeouts, abort) as beat:
            beat.on_enter = progress.on_phase if progress else None
            on_row = progress.on_row if progress else None
            try:
                report, export = run_worker(
                    load(), rank, stop=stop, store=store, on_row=on_row, beat=beat, network=network
                )
                beat.enter("collective")
                reports = gather(report)
            finally:
                place = beat.place()
            statuses.write_exit(ExitRecord.of_report(report))
    except BaseException as raised:
        error = ended_at_once("SIGINT", statuses.run) if isinstance(raised, KeyboardInterrupt) else raised
        with contextlib.suppress(OSError):  # The disk may be full.
            sys.stdout.flush()
        record = ExitRecord.of_error(error, rank, place=place)
        statuses.write_exit(record)
        if error is raised and isinstance(error, ShoalError):
            raise
        raise (error if isinstance(error, ShoalError) else cause_of(record)) from raised
    export()
    return reports
