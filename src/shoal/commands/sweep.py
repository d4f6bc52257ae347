"""The `sweep` command: file, directory, workers until all trials have ended, results."""

import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from shoal.checks.preflight import preflight
from shoal.config import LaunchConfig
from shoal.config.plain import shared_fields, to_plain
from shoal.config.sweep import SweepConfig, SweepFile
from shoal.errors import ShoalError, UsageError, WorkerLostError, refusing_os_errors
from shoal.files import folder_of
from shoal.launch.modes import launching
from shoal.launch.rank import ProgressReporter
from shoal.machine.gpus import visible_gpus
from shoal.plan.job import SweepPlan
from shoal.plan.launch import plan_launch, refuse_unwritable
from shoal.plan.rundir import RunDir
from shoal.plan.training import plan_training
from shoal.reading import parse_object, read_bytes, refusing
from shoal.run_record import clear_exit_records, lock_run, write_manifest
from shoal.sweep.file import config_of, read_sweep, training_of
from shoal.sweep.results import record_loss, write_results

_STOPPING = "stopping. The same command goes on with trials that have not ended. Ctrl-C again stops at once."
_MAY_CHANGE = ("trials", "pruner")


def make_plan(config: SweepConfig) -> SweepPlan:
    """Read the file of a sweep, and plan its workers on this node.

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
    plan = plan_launch(launch, os.environ, gpus)
    # The training that all trials begin with is refused here, and not by each of them.
    base = plan_training(training_of(sweep, {}, launch, plan.devices[0]), {}, gpus)
    base.spec.check_build(base.config.env)
    notes = (*plan.notes, *base.notes, *preflight(base, os.environ, gpus))
    refuse_unwritable("--log-root", folder)
    shared = plan.shared(notes=tuple(dict.fromkeys(notes)), run_dir=str(folder.absolute()), backend=None)
    return SweepPlan(**shared, sweep=sweep, file=str(file))


def sweep(plan: SweepPlan, view: ProgressReporter, abort: Callable[[ShoalError], None]) -> list[dict[str, Any]]:
    """Train all trials, write the results, and return a row for each trial, the best one first; none but on rank 0.

    Raises:
        ShoalError: The launch failed.
    """
    with launching(plan, view, abort, partial(_open, plan, view), _STOPPING) as (run, run_workers, _):
        while True:
            since = run.metrics_jsonl.stat().st_size if run.metrics_jsonl.exists() else 0
            try:
                run_workers(plan)
                break
            except WorkerLostError as lost:
                if plan.launch_mode != "spawned" or not record_loss(run.path, lost.rank, str(lost), since):
                    raise
                view.on_line(f"{lost} Its trial goes on from its newest checkpoint.")
                clear_exit_records(run)
        if not plan.leads:
            return []
        from shoal.sweep.study import SweepStudy

        rows = SweepStudy(plan.run.path, plan.sweep).rows()
        write_results(plan.run.path, plan.sweep, rows)
    return rows


def _open(plan: SweepPlan, view: ProgressReporter, stack: ExitStack) -> Path:
    """Make or open the directory of the sweep, write its manifest, and return it."""
    run = plan.run
    remedy = "pass --log-root with a directory that you can write to"
    with refusing_os_errors(f"The sweep cannot be written to {plan.run.path}", remedy):
        folder_of(run.manifest_json)
        for directory in (run.ranks_dir, plan.run.path / "trials"):
            run.folder.make(directory)
        lock_run(run, stack)
        clear_exit_records(run)
        _refuse_changed(plan.run.path, plan.sweep)
        write_manifest(run, sweep=to_plain(plan.sweep))
        run.folder.write(plan.run.path / f"sweep{Path(plan.file).suffix}", read_bytes(Path(plan.file)))
    view.on_line(f"Sweep: {run.path}")
    return run.path


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
