"""The `sweep` command: file, directory, workers until all trials have ended, results."""

import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.checks.preflight import preflight
from shoal.config import LaunchConfig
from shoal.config.plain import shared_fields, to_plain
from shoal.config.sweep import SweepConfig, SweepFile
from shoal.errors import ShoalError, TrainingFailedError, UsageError, WorkerLostError, counted, refusing_os_errors
from shoal.files import folder_of
from shoal.launch.exit_records import clear_exit_records
from shoal.launch.modes import launching
from shoal.launch.rank import ProgressReporter
from shoal.launch.run_record import lock_run, make_log_dir, write_manifest
from shoal.machine.gpus import visible_gpus
from shoal.plan.launch import LaunchPlan, plan_launch, refuse_unwritable
from shoal.plan.rundir import RunDir
from shoal.plan.spec import SweepSpec
from shoal.plan.training import plan_training
from shoal.reading import parse_object, read_bytes, refusing
from shoal.sweep.file import config_of, read_sweep, training_of
from shoal.sweep.results import record_loss, write_results

_STOPPING = "stopping. The same command goes on with trials that have not ended. Ctrl-C again stops at once."
_MAY_CHANGE = ("trials", "pruner")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What one `sweep` command will do."""

    sweep: SweepFile
    file: Path
    folder: Path
    launch: LaunchPlan


def make_plan(config: SweepConfig) -> SweepPlan:
    """Read the file of a sweep, and plan its workers on this machine.

    Raises:
        UsageError: It cannot be done.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UsageError("`shoal sweep` needs optuna, which is not installed: run `uv add 'shoal[sweep]'`.")
    file = Path(config.file)
    sweep = read_sweep(file)
    folder = Path(config.log_root, "sweeps", sweep.name)
    _refuse_changed(folder, sweep)
    learner = config_of(sweep, {}).learner
    launch = LaunchConfig(task=sweep.task, learner=learner, **shared_fields(LaunchConfig, config))
    gpus = visible_gpus()
    plan = plan_launch(launch, (sweep.task,), os.environ, gpus)
    # The training that all trials begin with is refused here, and not by each of them.
    base = plan_training(training_of(sweep, {}, launch, plan.devices[0]), {}, gpus)
    notes = (*plan.notes, *base.notes, *preflight(base, os.environ, gpus))
    refuse_unwritable("--log-root", folder)
    plan = replace(plan, notes=tuple(dict.fromkeys(notes)))
    return SweepPlan(sweep=sweep, file=file, folder=folder, launch=plan)


def sweep(plan: SweepPlan, view: ProgressReporter, abort: Callable[[ShoalError], None]) -> list[dict[str, Any]]:
    """Train all trials, write the results, and return a row for each trial, the best one first; none but on rank 0.

    Raises:
        ShoalError: The launch failed.
    """

    def begin(stack: ExitStack) -> Path:
        _open(plan, stack)
        view.on_line(f"Sweep: {plan.folder}")
        return plan.folder.absolute()

    launch = plan.launch
    with launching(launch, view, abort, begin, _STOPPING) as (run, run_workers, _):
        while True:
            since = run.metrics_jsonl.stat().st_size if run.metrics_jsonl.exists() else 0
            nodes = launch.node_fields(run, make_log_dir(run, launch.log_base(run, os.environ)))
            try:
                run_workers(SweepSpec(**nodes, config=launch.config, sweep=plan.sweep))
                break
            except WorkerLostError as lost:
                if launch.launch_mode != "spawned" or not record_loss(run.path, lost.rank, str(lost), since):
                    raise
                view.on_line(f"{lost} Its trial goes on from its newest checkpoint.")
                clear_exit_records(run)
        if not launch.leads:
            return []
        from shoal.sweep.study import SweepStudy

        rows = SweepStudy(plan.folder, plan.sweep).rows()
        write_results(plan.folder, plan.sweep, rows)
    return rows


def refuse_failed(plan: SweepPlan, rows: list[dict[str, Any]]) -> None:
    """Raise if trials have failed.

    Raises:
        TrainingFailedError: It says how many.
    """
    failed = [row for row in rows if row["state"] == "failed"]
    if failed:
        raise TrainingFailedError(
            f"{len(failed)} of {counted(len(rows), 'trial')} failed; the last error: {failed[-1]['error']} Their "
            f"tracebacks are in {plan.folder}/trials/<number>/traceback.txt."
        )


def _open(plan: SweepPlan, stack: ExitStack) -> None:
    """Make or open the directory of the sweep, and write its manifest."""
    run = RunDir(plan.folder)
    remedy = "pass --log-root with a directory that you can write to"
    with refusing_os_errors(f"The sweep cannot be written to {plan.folder}", remedy):
        folder_of(run.manifest_json)
        for directory in (run.ranks_dir, plan.folder / "trials"):
            run.folder.make(directory)
        lock_run(run, stack)
        clear_exit_records(run)
        _refuse_changed(plan.folder, plan.sweep)
        write_manifest(run, sweep=to_plain(plan.sweep))
        run.folder.write(plan.folder / f"sweep{plan.file.suffix}", read_bytes(plan.file))


def _refuse_changed(folder: Path, sweep: SweepFile) -> None:
    """Refuse another sweep than that of the directory."""
    manifest = RunDir(folder).manifest_json
    if not manifest.exists():
        return
    with refusing(manifest, "give the sweep another name"):
        before = parse_object(read_bytes(manifest), {"sweep": Mapping})["sweep"]
    plain = to_plain(sweep)
    changed = [name for name in plain if name not in _MAY_CHANGE and before.get(name) != plain[name]]
    if changed:
        raise UsageError(
            f"The sweep in {folder} has another '{changed[0]}': give this one another name, or the old values. Only "
            f"{' and '.join(_MAY_CHANGE)} may change."
        )
