"""Launch modes: in process, spawned (`shoal.launch.supervisor`), and joined (`shoal.launch.joined`)."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from shoal.errors import ShoalError
from shoal.launch.exit_records import ended_at_once
from shoal.launch.joined import joined
from shoal.launch.rank import ProgressReporter, run_rank
from shoal.launch.status_store import StatusStore
from shoal.launch.supervisor import run_spawned
from shoal.plan.launch import Plan
from shoal.plan.ranks import Rank, stale_rank_variables, without
from shoal.plan.rundir import RunDir
from shoal.plan.training import TrainPlan
from shoal.run_record import WorkerReport, make_log_dir
from shoal.signals import STOPPING_TRAINING, StopRequests, stop_requests


@contextmanager
def launching(
    plan: Plan,
    progress: ProgressReporter,
    abort: Callable[[ShoalError], None] | None,
    make_run_dir: Callable[[ExitStack], Path],
    announcement: str = STOPPING_TRAINING,
) -> Iterator[tuple[RunDir, Callable[[Plan], list[WorkerReport]], StopRequests]]:
    """Meet the other ranks, if any, and yield the run, what runs the workers, and the stop signals of the body.

    Args:
        plan: What this process does.
        progress: Shows it.
        abort: Ends this process when a rank in it is stuck; without it a worker in this process is never found stuck.
        make_run_dir: Called in one process, with a stack that holds locks until the end.
        announcement: Acknowledges the first signal where launchers do not repeat them.
    """
    with ExitStack() as stack:
        make = partial(make_run_dir, stack)
        work: Callable[[Plan, ProgressReporter, StopRequests], list[WorkerReport]]
        if plan.rank is not None:
            agree, work = stack.enter_context(joined(plan, plan.rank, abort or _go_on))
            run = RunDir(agree(make))
        else:
            work = run_spawned if plan.launch_mode == "spawned" else partial(_run_in_process, abort)
            run = RunDir(make())
        stack.enter_context(without(stale_rank_variables(os.environ)))
        # Elsewhere signals are only counted: launchers repeat them, and torchrun sends one to every rank as soon as
        # another has failed. Here the first is acknowledged, and a second SIGINT ends this process at once.
        is_alone = plan.launch_mode == "in process"
        announce = (lambda name: progress.on_line(f"{name}: {announcement}")) if is_alone else None
        stop = stack.enter_context(stop_requests(insist=is_alone, announce=announce))

        def run_workers(plan: Plan) -> list[WorkerReport]:
            return work(plan.begun(run, make_log_dir(run, plan.log_base(run, os.environ))), progress, stop)

        yield run, run_workers, stop


def _run_in_process(
    abort: Callable[[ShoalError], None] | None, plan: Plan, progress: ProgressReporter, stop: StopRequests
) -> list[WorkerReport]:
    """Run the one worker in this process, without a process group."""
    if isinstance(plan, TrainPlan):
        stop.at_once = True  # Until its first iteration is done.
        if stop.first is not None:
            raise ended_at_once(stop.first, plan.run)
    statuses = StatusStore(plan.run, Rank(rank=0, local_rank=0, world_size=1, local_world_size=1))
    timeouts = (plan.config.startup_timeout, plan.config.stall_timeout) if abort else (0.0, 0.0)
    return run_rank(lambda: plan, statuses, timeouts, stop=stop, abort=abort or _go_on, progress=progress)


def _go_on(_: ShoalError) -> None:
    """Leave this process as it is."""
