"""The story of one training: plan, run directory, mode, reports."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from shoal.checks.preflight import preflight
from shoal.errors import ShoalError, UsageError, WorkerLostError
from shoal.launch.elastic import refuse_elastic, run_nodes
from shoal.launch.elastic_state import attempts, known_run, remember_run
from shoal.launch.handshake import decline
from shoal.launch.host_probe import probe_hosts
from shoal.launch.modes import launch_mode_of, without
from shoal.launch.restarts import Restarts
from shoal.launch.run_record import RunRecord, lock_run, make_log_dir, make_run_dir
from shoal.machine.gpus import visible_gpus
from shoal.plan.checkpoints import newest_good
from shoal.plan.ranks import stale_rank_variables
from shoal.plan.rundir import RunDir
from shoal.plan.training import plan_training

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shoal.config import TrainConfig
    from shoal.launch.progress import ProgressReporter
    from shoal.plan.training import TrainPlan
    from shoal.worker import WorkerReport


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training came to."""

    run: RunDir
    reports: list[WorkerReport]


def make_plan(config: TrainConfig) -> TrainPlan:
    """Decide what `config` means on this machine.

    Raises:
        UsageError: It cannot be done, or this machine cannot do it now.
    """
    gpus = visible_gpus()
    again = known_run(attempts())
    if again is not None:
        whole = newest_good(again)[0] is not None
        config = replace(
            config, resume=(str(again.path),) if whole else None, checkpoint=None if whole else config.checkpoint
        )
    try:
        plan = plan_training(
            config, os.environ, gpus, partial(probe_hosts, os.environ, config) if config.hosts else None
        )
        plan = replace(plan, notes=(*plan.notes, *preflight(plan, os.environ, gpus)))
    except UsageError as error:
        decline(os.environ, config.log_root, error)
        refuse_elastic(config, error)
        raise
    return plan if again is None else replace(plan, continued=again)


def train(plan: TrainPlan, view: ProgressReporter) -> Outcome | None:
    """Carry out a plan.

    Returns:
        What it came to, where this process answers for it: behind the *nodes* mode rank 0 does.

    Raises:
        ShoalError: With the exit code of how it ended.
    """
    if plan.launch_mode == "elastic":
        run_nodes(plan, view.leave)
        return None
    mode = launch_mode_of(plan)
    record: RunRecord | None = None

    def begin() -> Path:
        nonlocal record
        run = plan.continued or make_run_dir(plan)
        lock_run(run, stack)
        record = RunRecord(run, plan)
        view.on_line(f"Run directory: {run.path}")
        return run.path.absolute()

    with ExitStack() as stack:
        run = RunDir(mode.agree_on_run_dir(begin))
        remember_run(run)
        restarts = Restarts(plan, probe_hosts=partial(probe_hosts, os.environ))
        with without(stale_rank_variables(os.environ)), mode.listen(view) as stop:
            while True:
                try:
                    with _told_to(record, plan, view):
                        restarts.pause(run, stop)
                        base = plan.log_base(run, os.environ)
                        reports = mode.run(plan.worker_spec(run, make_log_dir(base) if base else None), view, stop)
                    break
                except WorkerLostError as lost:
                    with _told_to(
                        record, plan, view
                    ):  # Again: the last loss is told with the reason why it was the last.
                        plan = restarts.after(lost, run, view, stop)
                    record = RunRecord(run, plan)
            if record is not None:
                record.end(0, "finished", {report.rank: report.digest for report in reports})
    return Outcome(run, reports)


@contextmanager
def _told_to(record: RunRecord | None, plan: TrainPlan, view: ProgressReporter) -> Iterator[None]:
    """Write down how a launch ended that did not succeed, on the process that keeps the record.

    A new run of what cannot be done is removed, unless other launchers' ranks may still write into it.
    """
    try:
        yield
    except BaseException as error:
        is_new = plan.continued is None and plan.rank is None
        if record is not None and is_new and isinstance(error, UsageError) and record.remove_unlearned():
            view.on_line(f"{record.run.path} was removed: nothing was learned.")
        elif record is not None:
            record.end(error.exit_code if isinstance(error, ShoalError) else 1, str(error) or repr(error))
        raise
