"""The work of one rank in a sweep: train trials, one at a time, on this rank's device until none is left."""

import gc
import json
import logging
import math
import os
import platform
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from shoal.errors import ShoalError, TerminatedRunError, TrainingFailedError, WorkerLostError, did_you_mean, reason_of
from shoal.heartbeat import Heartbeat
from shoal.learn.metrics import Row
from shoal.learn.run_json import record_end
from shoal.machine.gpus import visible_gpus
from shoal.plan.checkpoints import newest_good
from shoal.plan.job import SweepPlan
from shoal.plan.ranks import RANK_VARIABLES, Rank, usable_threads, without
from shoal.plan.rundir import RunDir
from shoal.plan.training import TrainPlan, plan_training
from shoal.reading import read_bytes
from shoal.run_record import WorkerReport, record_launch
from shoal.signals import ERRORS, StopRequests
from shoal.sim.gpu_memory import refuse_broken_gpu
from shoal.sweep.file import metric_of, training_of
from shoal.sweep.results import losses_of
from shoal.sweep.study import End, SweepStudy, Trial
from shoal.worker import run_worker

logger = logging.getLogger(__name__)

_OnRow = Callable[[Any], None] | None
_ALONE = Rank(rank=0, local_rank=0, world_size=1, local_world_size=1)
"""The rank of a worker in the training of its trial."""
_MOST_LOSSES = 3
"""How often a trial may lose its worker until it has failed."""


def run_trials(
    plan: SweepPlan, rank: Rank, *, stop: StopRequests, on_row: _OnRow, beat: Heartbeat, **_of_a_group: object
) -> tuple[WorkerReport, Callable[[], None]]:
    """Train trials until as many as were asked for have begun, and each is finished or trained by another process.

    `on_row` is called with a row for each trial that begins or ends. The ranks need no process group.

    Raises:
        ShoalError: A signal came, or the GPU cannot be used any more.
    """
    if rank.local_world_size > 1:
        os.environ["OMP_NUM_THREADS"] = str(usable_threads(rank))  # A lone rank would take the cores of all.
    worker = _Worker(plan, rank, stop, on_row, beat)
    with without(RANK_VARIABLES):  # Libraries would take a trial for one of several ranks.
        while worker.run_one():
            gc.collect()
            torch.cuda.empty_cache()  # Nothing, unless this process uses a GPU.
    return WorkerReport(rank=rank.rank, host=platform.node(), device=worker.device), lambda: None


class _TrialStop(StopRequests):
    """The stop requests of this process, and the pruning of one trial, which looks like a SIGTERM to its training."""

    def __init__(self, process: StopRequests) -> None:
        self.counts = process.counts
        self.prunes = False

    def flags(self) -> dict[str, bool]:
        """Return which signals were received, or stand for the pruning."""
        flags = super().flags()
        return {**flags, "SIGTERM": flags["SIGTERM"] or self.prunes}


class _Worker:
    def __init__(self, plan: SweepPlan, rank: Rank, stop: StopRequests, on_row: _OnRow, beat: Heartbeat) -> None:
        self._plan, self._stop, self._on_row, self._beat = plan, stop, on_row, beat
        self.device = plan.nodes[0].devices[rank.local_rank]
        self._number = rank.rank
        self._study = SweepStudy(plan.run.path, plan.sweep)
        self._metric = metric_of(plan.sweep)
        self._row: Row = {}  # The newest metrics of a training.

    def run_one(self) -> bool:
        """Train one trial; return False if none is left for this rank."""
        self._beat.iteration, self._beat.limit = 0, self._plan.config.startup_timeout or math.inf
        self._beat.enter("startup")
        self._refuse_after_signal()
        with self._study.claim() as trial:
            if trial is None:
                return False
            try:
                self._attempt(trial)
            except Exception as error:
                self._refuse_after_signal(error)
                if isinstance(error, WorkerLostError):
                    raise
                reason = reason_of(error)
                details = error.details if isinstance(error, ShoalError) else ""
                trial.run.folder.write(trial.run.path / "traceback.txt", details or traceback.format_exc())
                logger.warning("Trial %d failed (%s).", trial.trial.number, reason.partition("\n")[0])
                self._end(trial, "failed", reason.partition("\n")[0])
                refuse_broken_gpu(self.device, self._number, error)
        return True

    def _attempt(self, trial: Trial) -> None:
        """Train a trial, from its newest checkpoint if it has one, and record its end."""
        plan, end = self._plan_of(trial), "finished"
        if plan is not None:
            launch = record_launch(trial.run, plan)
            self._report("running", trial)
            try:
                _refuse_lost(trial.run)
                end = self._train(trial, replace(plan, run_dir=str(trial.run.path.absolute()), launch=launch))
            except BaseException as error:
                code = error.exit_code if isinstance(error, ShoalError) else 1
                record_end(trial.run, launch, code, str(error) or repr(error))
                raise
            record_end(trial.run, launch, 0, end)
        if not trial.reported:
            near = did_you_mean(self._metric, self._row)
            raise TrainingFailedError(f"No iteration had a finite '{self._metric}', the score.{near}")
        self._end(trial, end)

    def _plan_of(self, trial: Trial) -> TrainPlan | None:
        """Return the plan of a trial's training; None if only its end was not recorded."""
        config = training_of(self._plan.sweep, trial.parameters, self._plan.config, self.device)
        newest, _ = newest_good(trial.run)
        if newest is not None and newest.iteration >= config.max_iterations:
            return None
        if newest is not None:
            config = replace(config, resume=(str(trial.run.path),), checkpoint=None)
        return replace(plan_training(config, {}, visible_gpus()), continued=trial.run)

    def _train(self, trial: Trial, plan: TrainPlan) -> End:
        stop = _TrialStop(self._stop)

        def take_row(row: Row) -> None:
            self._row = row
            score = row.get(self._metric, math.nan)
            # On a GPU the row with an evaluation is a later one, and not the same in each trial.
            of = "Eval/iteration" if self._metric.startswith("Eval/") else "iteration"
            if math.isfinite(score) and trial.report(int(row[of]), score):
                stop.prunes = True

        try:
            _, export = run_worker(plan, _ALONE, stop=stop, on_row=take_row, beat=self._beat)
        except TerminatedRunError:
            if self._stop.first is not None:
                raise
            return "pruned"
        export()
        return "finished"

    def _end(self, trial: Trial, end: End, error: str = "") -> None:
        newest, _ = newest_good(trial.run)
        trial.end(end, newest.iteration if newest else 0, error)
        self._report(end, trial)

    def _report(self, state: str, trial: Trial) -> None:
        """Tell the launching process, which follows the metrics of the sweep's directory, that a trial began or ended.

        By this it sees that the sweep goes on.
        """
        last = max(trial.reported, default=None)
        row = {
            "rank": self._number,
            "trial": trial.trial.number,
            "state": state,
            "iteration": last or 0,
            "metric": self._metric,
            "score": None if last is None else trial.reported[last],
            "parameters": trial.parameters,
        }
        self._plan.run.folder.append(self._plan.run.metrics_jsonl, json.dumps(row))
        if self._on_row is not None:
            self._on_row(row)

    def _refuse_after_signal(self, error: Exception | None = None) -> None:
        name = self._stop.first
        if name is not None:
            raise ERRORS[name](f"{name} ended the sweep: the same command goes on with it.") from error


def _refuse_lost(run: RunDir) -> None:
    """Refuse a trial whose worker was lost again and again."""
    file = losses_of(run)
    losses = read_bytes(file).decode().splitlines() if file.exists() else []
    if len(losses) >= _MOST_LOSSES:
        raise TrainingFailedError(f"Its worker was lost {len(losses)} times: {losses[-1]}")
