"""Output of `shoal sweep`."""

from collections.abc import Mapping
from typing import Any

from shoal.cli.output import print_columns
from shoal.cli.report import NotesView, SilentView, print_line
from shoal.commands.sweep import SweepPlan
from shoal.errors import counted
from shoal.plan.changes import flag_words
from shoal.plan.checkpoints import best_good
from shoal.plan.rundir import RunDir
from shoal.shell import join_command
from shoal.sweep.file import metric_of, number_of_trials
from shoal.sweep.results import COLUMNS, cells_of, shown


class _SweepView(NotesView):
    """Shows a line for each trial that ends, and lines of rank 0; trials of workers are in different phases."""

    def on_row(self, row: Mapping[str, Any]) -> None:
        if row["state"] != "running":
            score = "no score" if row["score"] is None else f"{row['metric']} {row['score']:.4g}"
            after = f"after {counted(row['iteration'], 'iteration')}"
            print_line(f"Trial {row['trial']} {row['state']}, {score} {after}: {flag_words(row['parameters'])}")


def sweep_view(plan: SweepPlan, *, silent: bool) -> SilentView:
    """Show a sweep while it runs."""
    if silent:
        return SilentView()
    launch = plan.launch
    for note in launch.notes:
        print_line(note)
    trials = counted(number_of_trials(plan.sweep), "trial")
    print_line(f"Sweep {plan.sweep.name}: {trials}, {launch.workers} ({launch.launch_mode}).")
    return _SweepView()


def print_sweep_plan(plan: SweepPlan) -> None:
    """Print what a sweep would do."""
    print_line(f"Sweep {plan.folder}: {number_of_trials(plan.sweep)} trials of {plan.sweep.task}")
    print_line(f"Workers: {', '.join(plan.launch.devices)} ({plan.launch.launch_mode})")
    print_line(f"Score: {metric_of(plan.sweep)}, {plan.sweep.direction}d")
    print_line(f"Parameters: {', '.join(plan.sweep.parameters)}")


def print_sweep(plan: SweepPlan, rows: list[dict[str, Any]]) -> None:
    """Print the table of all trials, the best one first, and what to do with that."""
    sweep = plan.sweep
    print_columns([[*COLUMNS, *sweep.parameters], *(list(map(shown, cells_of(sweep, row))) for row in rows)])
    print_line(f"Report: {plan.folder / 'report.html'}")
    best = next((row for row in rows if row["state"] == "finished"), None)
    checkpoint = best_good(RunDir(plan.folder / "trials" / f"{best['trial']:04d}")) if best else None
    if best is None or checkpoint is None:
        print_line("No trial has finished.")
        return
    command = join_command(["play", sweep.task, "--checkpoint", str(checkpoint.path)])
    print_line(
        f"Best: trial {best['trial']}, {metric_of(sweep)} {best['score']:.4g}, run "
        f"{checkpoint.path.parent.parent}. To play it: {command}"
    )
