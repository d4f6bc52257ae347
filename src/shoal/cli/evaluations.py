"""Output of `evaluate` and `shoal compare`: progress on standard error, results on standard output."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from shoal.cli.output import print_json
from shoal.cli.report import NotesView, SilentView, plain_text, print_line, print_note, print_rows
from shoal.commands.compare import Comparison
from shoal.errors import counted
from shoal.plan.evaluation import EvaluatePlan


def evaluation_view(plan: EvaluatePlan, *, silent: bool) -> SilentView:
    """Show an evaluation while it runs."""
    if silent:
        return SilentView()
    for note in plan.notes:
        print_note(note)
    jobs, parts = counted(len(plan.jobs), "job"), counted(plan.num_parts, "part")
    print_note(f"Evaluating {jobs} in {parts}: {plan.workers} ({plan.launch_mode}).")
    return NotesView()


def print_evaluation_plan(plan: EvaluatePlan) -> None:
    """Print the jobs of an evaluation, and where they would run."""
    print_rows((name.replace("_", " "), Text(plain_text(value))) for name, value in plan.to_plain().items())


def print_evaluation(out: Path, results: Mapping[str, Any], names: Sequence[str]) -> None:
    """Print the statistics of these jobs as JSON: a mapping for one job, a list for several."""
    print_note(f"Report: {out / 'report.html'}")
    _print_one_or_all([each for each in results["jobs"] if each["name"] in names])


def print_comparisons(comparisons: Sequence[Comparison], *, as_json: bool) -> None:
    """Print the verdict of each task."""
    if as_json:
        _print_one_or_all([each.to_plain() for each in comparisons])
        return
    for each in comparisons:
        for line in each.lines():
            print_line(line)


def _print_one_or_all(values: Sequence[Any]) -> None:
    print_json(values[0] if len(values) == 1 else values)
