"""The `evaluate` command: jobs, directory of the results, workers until all jobs are done, results."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from shoal.checks.preflight import launch_findings, notes_of
from shoal.config.evaluate import EvaluateConfig, JobEntry
from shoal.config.plain import to_plain
from shoal.errors import ShoalError, TrainingFailedError, UsageError, WorkerLostError, counted, refusing_os_errors
from shoal.files import folder_of, make_first_free
from shoal.jobs.entries import Overrides, expand, read_entries
from shoal.jobs.ledger import forget_failures, prepare, record_loss, seconds_of, state_of
from shoal.jobs.report import report_html
from shoal.jobs.results import read_jobs, write_results
from shoal.launch.modes import launching
from shoal.launch.rank import ProgressReporter
from shoal.launch.remote.host_probe import probe_hosts
from shoal.machine.gpus import visible_gpus
from shoal.plan.checkpoints import Checkpoint, list_checkpoints
from shoal.plan.job import EvaluatePlan, Job, plan_evaluation
from shoal.plan.ranks import joined_rank
from shoal.plan.rundir import RunDir, run_names
from shoal.run_record import clear_exit_records, lock_run, trains, write_manifest
from shoal.tasks import registry

WATCH_S = 2.0
"""Time between two looks at a run that is training."""
_OF_JOBS = ("num_envs", "num_episodes", "num_steps", "rebuilds", "timeout", "retries", "record", "video", "control")
"""Flags that are fields of a job's entry."""
_STOPPING = "stopping. Episodes that have ended are kept, and the same command goes on."


def make_plan(
    config: EvaluateConfig, overrides: Overrides | None = None, jobs: Sequence[Job] | None = None
) -> EvaluatePlan:
    """Find the jobs of a configuration, unless they are given, and plan them on this node.

    Raises:
        UsageError: It cannot be done.
    """
    jobs = jobs or find_jobs(config, overrides)
    if config.out is not None:
        with suppress(OSError):  # Refused when it is opened.
            _refuse_other_files(Path(config.out))
        _refuse_changed(Path(config.out), jobs)
    if config.hosts and config.out and not Path(config.out).resolve().is_relative_to(Path(config.log_root).resolve()):
        raise UsageError(
            f"With --hosts, workers of all nodes take their jobs from --out {config.out}, which is not below "
            f"--log-root {config.log_root}, where nodes are asked whether they share it: pass one that is."
        )
    gpus, tasks = visible_gpus(), sorted({job.task for job in jobs})
    probe = partial(probe_hosts, os.environ, config, tasks) if config.hosts else None
    plan = plan_evaluation(config, _longest_first(config, jobs), os.environ, gpus, probe)
    return replace(plan, notes=(*plan.notes, *notes_of(launch_findings(plan, os.environ))))


def find_jobs(config: EvaluateConfig, overrides: Overrides | None = None, name: str = "") -> list[Job]:
    """Return the jobs of a file, or those that the flags of one task make, named after `name` or the task."""
    if config.jobs is not None:
        file = Path(config.jobs)
        return expand(read_entries(file), log_root=config.log_root, trust=config.trust, source=file)
    entry = JobEntry(
        name=name or registry.resolve(config.task or "").experiment,
        task=config.task or "",
        policy=config.checkpoint,
        seed=config.seeds,
        **{name: getattr(config, name) for name in _OF_JOBS},
    )
    return expand([entry], log_root=config.log_root, trust=config.trust, overrides=overrides)


def evaluate(
    plan: EvaluatePlan, view: ProgressReporter, abort: Callable[[ShoalError], None] | None
) -> tuple[Path, dict[str, Any]]:
    """Run all jobs; return the directory of the results, and the results, which rank 0 alone has.

    Raises:
        ShoalError: Jobs failed, or the launch did.
    """
    with launching(plan, view, abort, partial(_open, plan, view), _STOPPING) as (run, run_workers, _):
        while True:
            try:
                run_workers(plan)
                break
            except WorkerLostError as lost:
                if not record_loss(run.path, lost.rank, str(lost)) or plan.launch_mode != "spawned":
                    raise
                view.on_line(f"{lost} Its part is tried again.")
                clear_exit_records(run)
    if not plan.leads:
        return run.path, {}
    results = write_results(run.path)
    run.folder.write(run.path / "report.html", report_html(results, run.path))
    failed = [job.name for job in plan.jobs if state_of(run.path, job) == "failed"]
    if failed:
        raise TrainingFailedError(
            f"{len(failed)} of {counted(len(plan.jobs), 'job')} failed: {', '.join(failed[:5])}"
            f"{', ...' if len(failed) > 5 else ''}. Their tracebacks are in {run.path}/<job>/traceback.txt; "  # noqa: PLR2004
            "--rerun-failed tries them again."
        )
    return run.path, results


def watch(
    config: EvaluateConfig, overrides: Overrides, run_jobs: Callable[[EvaluateConfig, Sequence[Job]], None]
) -> None:
    """Evaluate each checkpoint of a run, also those that appear, until its training has ended.

    Raises:
        UsageError: There is no such run, or torchrun or srun started this process.
    """
    run = RunDir(Path(config.watch or ""))
    if joined_rank() is not None:
        raise UsageError(
            "--watch starts workers for each new checkpoint, but torchrun or srun starts them once: leave --watch out, "
            "or run `evaluate` by itself with --nproc-per-node or --hosts."
        )
    if not run.train_yaml.is_file():
        raise UsageError(f"--watch {run.path} is no run: pass the directory of a training, below --log-root.")
    config = replace(
        config, watch=None, out=config.out or str(Path(config.log_root, "evaluations", f"{run.experiment}_{run.name}"))
    )
    seen: set[Checkpoint] = set()
    while True:
        is_training = trains(run)  # Before the look at its checkpoints: the last one is written before its end.
        new = [each for each in list_checkpoints(run) if each not in seen and each.damage() is None]
        seen |= {*new}
        if new:
            named = [(replace(config, checkpoint=(str(each.path),)), each.path.name) for each in new]
            run_jobs(config, [job for single, name in named for job in find_jobs(single, overrides, name)])
        elif not is_training:
            return
        else:
            time.sleep(WATCH_S)


def _open(plan: EvaluatePlan, view: ProgressReporter, stack: ExitStack) -> Path:
    """Make or open the directory of the results, write the manifest, and return it."""
    config, jobs = plan.config, plan.jobs
    failure = f"The results cannot be written to {config.out or config.log_root}"
    with refusing_os_errors(failure, "pass --out with a directory that you can write to"):
        if config.out is None:
            stamps = run_names(datetime.now().astimezone(), "")
            run = RunDir(make_first_free(Path(config.log_root, "evaluations"), stamps))
        else:
            run = RunDir(Path(config.out))
            folder_of(run.manifest_json)
            _refuse_other_files(run.path)
        lock_run(run, stack)
        run.folder.make(run.ranks_dir)
        clear_exit_records(run)
        _refuse_changed(run.path, jobs)
        all_jobs = _jobs_in(run.path) | {job.name: to_plain(job) for job in jobs}
        write_manifest(run, jobs=list(all_jobs.values()))
        prepare(run.path, jobs)
        if config.rerun_failed:
            forget_failures(run.path, jobs)
    view.on_line(f"Results: {run.path}")
    return run.path.absolute()


_MAY_CHANGE = ("timeout", "retries", "policy_device", "video")
"""Fields of a job that do not change its episodes."""


def _refuse_other_files(out: Path) -> None:
    """Refuse a directory that holds files, but no results, before it is tried whether it can be written."""
    if out.is_dir() and any(out.iterdir()) and not RunDir(out).manifest_json.exists():
        raise UsageError(
            f"--out {out} holds files, but no results of an evaluation: pass a new directory, or that of an "
            "evaluation to go on with."
        )


def _refuse_changed(out: Path, jobs: Sequence[Job]) -> None:
    """Refuse jobs that have other episodes than those of the same name in the directory."""
    earlier = _jobs_in(out)
    for job in jobs:
        plain, before = to_plain(job), earlier.get(job.name, {})
        changed = [name for name in before if name not in _MAY_CHANGE and before[name] != plain.get(name)]
        if changed:
            name = changed[0]
            raise UsageError(
                f"The job {job.name} of --out {out} has {name} {before[name]!r}, and now {plain.get(name)!r}: pass "
                "another --out, or give the job another name."
            )


def _jobs_in(out: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs of a directory of results, as plain values by name; none of a new one."""
    return {job.name: to_plain(job) for job in read_jobs(out)} if RunDir(out).manifest_json.exists() else {}


def _longest_first(config: EvaluateConfig, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs by descending time, as far as this directory or its newest neighbour knows it."""
    if config.assignment == "static":
        return list(jobs)
    out = Path(config.out or Path(config.log_root, "evaluations", "new"))
    known: dict[str, float] = {}
    if out.parent.is_dir():
        manifests = sorted(out.parent.glob("*/manifest.json"), key=lambda file: file.stat().st_mtime)
        for manifest in manifests[-3:]:
            known |= {job.name: seconds for job in jobs if (seconds := seconds_of(manifest.parent, job)) is not None}
    return sorted(jobs, key=lambda job: -known.get(job.name, 0.0))
