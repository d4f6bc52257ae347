"""Commands that show their progress: those that start workers, `play`, `doctor` and `bench`.

With `--dry-run` the plan is printed. Otherwise only rank 0, or the process that started the workers, prints. The
docstring of a command is its help.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from shoal.cli.output import abort, end, print_json, print_line, print_lines, print_note, release_output
from shoal.cli.report import (
    NotesView,
    lines_of_bench,
    lines_of_diagnosis,
    lines_of_jobs,
    print_plain,
    print_plan,
    training_view,
)
from shoal.commands import compare as comparison
from shoal.commands import demo as demonstration
from shoal.commands import evaluate as evaluation
from shoal.commands import play as playing
from shoal.commands import sweep as sweeping
from shoal.commands import train as training
from shoal.config import BenchConfig, DemoConfig, DoctorConfig, PlayConfig, TrainConfig
from shoal.config.evaluate import CompareConfig, ComparePoliciesConfig, EvaluateConfig
from shoal.config.sweep import SweepConfig
from shoal.errors import (
    InterruptedRunError,
    NoPictureError,
    ShoalError,
    TerminatedRunError,
    TrainingFailedError,
    counted,
)
from shoal.jobs.entries import Overrides
from shoal.launch.rank import ProgressReporter
from shoal.logs import configure_logging
from shoal.plan.changes import flag_words
from shoal.plan.checkpoints import best_good
from shoal.plan.job import EvaluatePlan, Job, SweepPlan
from shoal.plan.launch import Plan
from shoal.plan.rundir import RunDir
from shoal.sweep.file import metric_of, number_of_trials
from shoal.sweep.results import COLUMNS, cells_of, shown
from shoal.text import columns, join_command

PlanT = TypeVar("PlanT", bound=Plan)
T = TypeVar("T")


def train(config: TrainConfig) -> training.Outcome | None:
    """Train a policy."""
    plan = training.make_plan(config)
    show = partial(print_plan, plan, os.environ)
    return _launch(plan, show, partial(training_view, plan), training.train, dry_run=config.dry_run)


def _launch(
    plan: PlanT,
    show: Callable[[], None],
    view: Callable[[], ProgressReporter],
    run: Callable[[PlanT, ProgressReporter, Callable[[ShoalError], None]], T],
    *,
    dry_run: bool,
) -> T | None:
    """Print a plan if that is all that is wanted; otherwise run it in a view, and return the result on rank 0.

    Ranks that a launcher started share one terminal: only the first prints more than warnings.
    """
    configure_logging(rank=plan.rank.rank if plan.rank else None, level=None if plan.leads else logging.WARNING)
    if dry_run:
        if plan.leads:
            show()
        return None
    release_output()
    shown = view() if plan.leads else ProgressReporter()

    def close_and_abort(error: ShoalError) -> NoReturn:
        shown.close()
        abort(error)

    try:
        with closing(shown):
            result = run(plan, shown, close_and_abort)
    except (InterruptedRunError, TerminatedRunError) as error:
        if plan.leads:
            raise
        end(error.exit_code)  # Rank 0 prints the error.
    return result if plan.leads else None


def evaluate(config: EvaluateConfig, overrides: Overrides) -> None:
    """Run many episodes of policies on all workers, and write statistics, a table and a report."""

    def run(config: EvaluateConfig, jobs: Sequence[Job] | None = None) -> None:
        plan = evaluation.make_plan(config, overrides, jobs)
        ended = _run_jobs(plan)
        if ended is not None:
            print_evaluation(*ended, [job.name for job in plan.jobs], as_json=config.json)

    if config.watch is None:
        run(config)
    else:
        evaluation.watch(config, overrides, run)


def _run_jobs(plan: EvaluatePlan) -> tuple[Path, dict[str, Any]] | None:
    """Run the jobs of a plan; return the directory of the results, and the results."""

    def view() -> NotesView:
        jobs, parts = counted(len(plan.jobs), "job"), counted(plan.num_parts, "part")
        for note in (*plan.notes, f"Evaluating {jobs} in {parts}: {plan.workers} ({plan.launch_mode})."):
            print_note(note)
        return NotesView()

    show = partial(print_plain, plan.summary())
    return _launch(plan, show, view, evaluation.evaluate, dry_run=plan.config.dry_run)


def print_evaluation(out: Path, results: Mapping[str, Any], names: Sequence[str], *, as_json: bool = False) -> None:
    """Print the statistics of these jobs, and notes of what success rates leave out."""
    print_note(f"Report: {out / 'report.html'}")
    jobs = [each for each in results["jobs"] if each["name"] in names]
    for job in jobs:
        if job["summary"] and (begun := job["summary"]["met_at_reset"]):
            print_note(
                f"{begun} of {counted(job['summary']['episodes'], 'episode')} of {job['name']} met the success "
                "condition in the first step: its success rate leaves them out."
            )
    if as_json:
        _print_as_json(jobs)
    else:
        print_lines(lines_of_jobs(jobs))


def _print_as_json(results: Sequence[Mapping[str, Any]]) -> None:
    """Print JSON: a mapping for one result, a list for several."""
    print_json(results[0] if len(results) == 1 else results)


def compare(config: CompareConfig | ComparePoliciesConfig, overrides: Overrides) -> None:
    """Find out which of two policies, or of two evaluations, has the higher mean return."""

    def run_jobs(flags: EvaluateConfig, jobs: Sequence[Job]) -> Path:
        ended = _run_jobs(evaluation.make_plan(flags, jobs=jobs))
        return cast("tuple[Path, Any]", ended)[0]  # There is no dry run, and no rank of another launcher.

    if isinstance(config, CompareConfig):
        found = comparison.compare(config)
    else:
        found = [comparison.compare_policies(config, overrides, run_jobs, lambda verdict: print_note(verdict.text))]
    if config.json:
        _print_as_json([each.to_plain() for each in found])
    else:
        print_lines(line for each in found for line in each.lines())


class _SweepView(NotesView):
    """Shows a line for each trial that ends, and lines of rank 0; trials of workers are in different phases."""

    def on_row(self, row: Mapping[str, Any]) -> None:
        if row["state"] != "running":
            score = "no score" if row["score"] is None else f"{row['metric']} {row['score']:.4g}"
            after = f"after {counted(row['iteration'], 'iteration')}"
            print_line(f"Trial {row['trial']} {row['state']}, {score} {after}: {flag_words(row['parameters'])}")


def sweep(config: SweepConfig) -> Iterator[str] | None:
    """Train many configurations, which Optuna proposes, one on each GPU at a time, and print a table."""
    plan = sweeping.make_plan(config)
    trials = counted(number_of_trials(plan.sweep), "trial")
    planned = (
        f"Sweep {plan.run.path}: {trials} of {plan.sweep.task}",
        f"Workers: {', '.join(plan.devices)} ({plan.launch_mode})",
        f"Score: {metric_of(plan.sweep)}, {plan.sweep.direction}d",
        f"Parameters: {', '.join(plan.sweep.parameters)}",
    )

    def view() -> _SweepView:
        print_lines([*plan.notes, f"Sweep {plan.sweep.name}: {trials}, {plan.workers} ({plan.launch_mode})."])
        return _SweepView()

    rows = _launch(plan, partial(print_lines, planned), view, sweeping.sweep, dry_run=config.dry_run)
    return None if rows is None else lines_of_sweep(plan, rows)


def lines_of_sweep(plan: SweepPlan, rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of all trials, the best one first, and what to do with that; raise if trials have failed."""
    sweep = plan.sweep
    yield from columns([*COLUMNS, *sweep.parameters], [list(map(shown, cells_of(sweep, row))) for row in rows])
    yield f"Report: {plan.run.path / 'report.html'}"
    best = next((row for row in rows if row["state"] == "finished"), None)
    checkpoint = best_good(RunDir(plan.run.path / "trials" / f"{best['trial']:04d}")) if best else None
    if best is None or checkpoint is None:
        yield "No trial has finished."
    else:
        command = join_command(["play", sweep.task, "--checkpoint", str(checkpoint.path)])
        yield (
            f"Best: trial {best['trial']}, {metric_of(sweep)} {best['score']:.4g}, run "
            f"{checkpoint.path.parent.parent}. To play it: {command}"
        )
    failed = [row for row in rows if row["state"] == "failed"]
    if failed:
        raise TrainingFailedError(
            f"{len(failed)} of {counted(len(rows), 'trial')} failed; the last error: {failed[-1]['error']} Their "
            f"tracebacks are in {plan.run.path}/trials/<number>/traceback.txt."
        )


def play(config: PlayConfig) -> playing.Episodes | None:
    """Show a policy without exploration noise on a page, or count its episodes and print their returns."""
    viewer = playing.viewer_of(config, in_terminal=sys.stdout.isatty())
    if viewer is None:
        return playing.play(config)
    try:
        _until_ctrl_c(lambda: playing.show(config, viewer, print_line))
    except NoPictureError as error:
        if config.viewer is not None:
            raise
        print_note(str(error))
        return playing.play(config)
    return None


def demo(config: DemoConfig) -> playing.Episodes | None:
    """Show a trained quadruped that walks, and other policies that come with Shoal. No training and no GPU needed."""
    if config.record is not None:
        return demonstration.record(config)
    return _until_ctrl_c(lambda: demonstration.show(config, print_line))


def _until_ctrl_c(show: Callable[[], None]) -> None:
    """Show a viewer, which Ctrl-C closes."""
    try:
        show()
    except KeyboardInterrupt as error:
        if type(error) is not KeyboardInterrupt:  # Another signal than Ctrl-C.
            raise
        print_line("Viewer closed.")


def bench(config: BenchConfig) -> Iterator[str]:
    """Measure environment and training steps per second, and the time to the first iteration."""
    from shoal.bench import bench

    return lines_of_bench(bench(config, print_line))


def doctor(config: DoctorConfig) -> None:
    """Check everything that a training needs, and print problems with their remedies."""
    from shoal.doctor import examine

    diagnosis = examine(config, os.environ, print_note)
    if config.json:
        print_json(diagnosis.to_plain())
    else:
        print_lines(lines_of_diagnosis(diagnosis))
    if diagnosis.error is not None:
        raise diagnosis.error
