"""The `train` command: plan, run directory, launch mode, restarts, run record."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.checks.preflight import preflight
from shoal.config import TrainConfig
from shoal.errors import (
    InterruptedRunError,
    MachineBusyError,
    ShoalError,
    TerminatedRunError,
    UsageError,
    WorkerLostError,
)
from shoal.launch.joined import publish_refusal
from shoal.launch.modes import launching
from shoal.launch.rank import ProgressReporter
from shoal.launch.remote.host_probe import probe_hosts
from shoal.launch.restarts import Restarts
from shoal.learn.run_json import record_end
from shoal.machine.gpus import visible_gpus
from shoal.plan.checkpoints import newest_good
from shoal.plan.ranks import joined_rank
from shoal.plan.rundir import RunDir
from shoal.plan.training import TrainPlan, plan_training
from shoal.run_record import (
    WorkerReport,
    lock_run,
    make_run_dir,
    record_launch,
    refuse_other_models,
    remove_unlearned,
    run_of_earlier_attempt,
    save_for_next_attempt,
)
from shoal.text import or_dash


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a training."""

    run: RunDir
    reports: list[WorkerReport]

    def lines(self) -> Iterator[str]:
        """Yield what the ranks agree on, and the last metrics."""
        report = self.reports[0]
        reward = or_dash(report.last_row.get("Train/mean_reward"), ".2f")
        if len(self.reports) > 1:
            yield f"All {len(self.reports)} ranks hold the same learner, {report.digest}."
        yield f"Finished {report.iteration} iterations, mean reward {reward}. Run directory: {self.run.path}"


def make_plan(config: TrainConfig) -> TrainPlan:
    """Plan a training on this node. It continues the run of an earlier attempt of torchrun.

    Raises:
        UsageError: It cannot be done.
        MachineBusyError: This node cannot do it now.
    """
    gpus, earlier = visible_gpus(), run_of_earlier_attempt()
    if earlier is not None and newest_good(earlier)[0] is not None:
        config = replace(config, resume=(str(earlier.path),), checkpoint=None, teacher=None)
    elif earlier is not None:
        config = replace(config, resume=None)
    rank, total = joined_rank(), config.num_envs_total
    if earlier is not None and rank is not None and total:  # There may be fewer workers now, or more.
        config = replace(config, num_envs_total=max(1, total // rank.world_size) * rank.world_size)
    try:
        plan = plan_training(
            config, os.environ, gpus, partial(probe_hosts, os.environ, config, (config.task,)) if config.hosts else None
        )
        refuse_other_models(plan)  # Before its own robot, if that was edited, is built.
        if plan.leads:
            plan.spec.check_build(plan.config.env)
        plan = replace(plan, notes=(*plan.notes, *preflight(plan, os.environ, gpus)))
    except (UsageError, MachineBusyError) as error:
        if not config.dry_run:
            publish_refusal(config.log_root, error)
        raise
    return plan if earlier is None else replace(plan, continued=earlier)


def train(plan: TrainPlan, view: ProgressReporter, abort: Callable[[ShoalError], None] | None) -> Outcome:
    """Carry out a plan.

    Args:
        plan: The plan of this process.
        view: Shows the training.
        abort: Prints an error and ends this process from any thread, see `launching`.

    Raises:
        ShoalError: With the exit code of how it ended.
    """
    recorded: RunDir | None = None  # In the process that keeps the record.
    launch: dict[str, Any] = {}

    def record_and_abort(end: Callable[[ShoalError], None], error: ShoalError) -> None:
        if recorded is not None:
            record_end(recorded, launch, error.exit_code, str(error))
        end(error)

    def begin(stack: ExitStack) -> Path:
        nonlocal recorded, launch
        run = plan.continued or make_run_dir(plan)
        lock_run(run, stack)
        launch = record_launch(run, plan)
        recorded = run
        view.on_line(f"Run directory: {run.path}")
        view.on_phase("startup")
        return run.path.absolute()

    with launching(plan, view, abort and partial(record_and_abort, abort), begin) as (run, run_workers, stop):
        save_for_next_attempt(run)
        restarts = Restarts(plan)
        while True:
            try:
                with _recorded(recorded, plan, launch, view):
                    restarts.pause(run, stop)
                    reports = run_workers(replace(plan, launch=launch))
                break
            except WorkerLostError as lost:
                # The error of the last loss says why it was the last.
                with _recorded(recorded, plan, launch, view):
                    plan = restarts.after(lost, run, view, stop)
                launch = record_launch(run, plan, launch["started"])
        if recorded is not None:
            record_end(recorded, launch, 0, "finished", {report.rank: report.digest for report in reports})
    return Outcome(run, reports)


@contextmanager
def _recorded(run: RunDir | None, plan: TrainPlan, launch: Mapping[str, Any], view: ProgressReporter) -> Iterator[None]:
    """Record the end of a launch that fails, in the process that has the record.

    A new run of what cannot be done, or that was stopped before it learned, is removed, unless ranks of other launchers
    may still write into it.
    """
    try:
        yield
    except BaseException as error:
        is_new = plan.continued is None and plan.rank is None
        is_harmless = isinstance(error, UsageError | InterruptedRunError | TerminatedRunError)
        if run is not None and is_new and is_harmless and remove_unlearned(run):
            view.on_line(f"{run.path} was removed: nothing was learned.")
        elif run is not None:
            record_end(run, launch, error.exit_code if isinstance(error, ShoalError) else 1, str(error) or repr(error))
        raise
