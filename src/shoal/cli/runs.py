"""Output of `shoal runs`: the runs, or the checkpoints of one."""

from datetime import datetime, timedelta

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.checks.findings import size
from shoal.cli.output import print_columns, print_json, printable
from shoal.cli.report import plain_text, print_line
from shoal.commands.checkpoints import Verified, VerifiedRun
from shoal.commands.runs import ListedRun, RunList
from shoal.plan.changes import flag_words

_TITLES = ("run", "state", "iterations", "steps", "score", "age", "flags")
_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "min": timedelta(minutes=1), "s": timedelta(seconds=1)}


def print_runs(found: RunList, *, as_json: bool) -> None:
    """Print a line for each run, which ends with the flags that not all runs of its task have in common."""
    if as_json:
        print_json(found.to_plain())
        return
    now = datetime.now().astimezone()
    print_columns([_TITLES, *(_row(each, found, now) for each in found.runs)])
    if found.omitted:
        number = len(found.runs) + found.omitted
        print_line(f"These are {len(found.runs)} of {number:,} runs: pass --limit {number} to list all.")
    for experiment, changed in found.common.items():
        if changed:
            print_line(f"{'These' if found.omitted else 'All'} runs of {experiment}: {flag_words(changed)}")
    if found.best is not None:
        which = "Best checkpoint of these runs" if found.omitted else "Best checkpoint"
        print_line(f"{which} by {found.best.metric}, {found.best.score:.2f}: {found.best.path}")
        others = sum(each.best is not None and not each.best.compares_with(found.best) for each in found.runs)
        if others:
            print_line(
                f"Scores of {others} of these runs are not compared: they are of another metric or of other rewards."
            )


def _row(each: ListedRun, found: RunList, now: datetime) -> tuple[str, ...]:
    common = found.common[each.experiment]
    changed = {name: value for name, value in (each.changed or {}).items() if name not in common}
    return (
        f"{each.experiment}/{each.run.name}" if len(found.common) > 1 else each.run.name,
        f"failed ({each.exit_code})" if each.state == "failed" else each.state,
        "-" if each.max_iterations is None else f"{each.iteration}/{each.max_iterations}",
        "-" if each.steps is None else f"{each.steps:,}",
        "-" if each.score is None else f"{each.score:.2f}",
        "-" if each.started is None else _age(now - each.started),
        each.reason or flag_words(changed),
    )


def _age(age: timedelta) -> str:
    """Return a time as a whole number of its largest unit, such as ``3 h``."""
    name = next((name for name, unit in _UNITS.items() if age >= unit), "s")
    return f"{max(age // _UNITS[name], 0)} {name}"


def print_checkpoints(verified: VerifiedRun, *, as_json: bool) -> None:
    """Print the checkpoints of a run, with the newest undamaged and the best one marked."""
    if as_json:
        print_json(verified.to_plain())
        return
    print_line(f"Run directory: {verified.run.path}")
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("iteration", "written", "size", "ranks", "score", "resumes"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("state")
    for each in verified.checkpoints:
        table.add_row(
            str(each.checkpoint.iteration),
            f"{each.written:%Y-%m-%d %H:%M:%S}",
            "-" if each.size is None else size(each.size),
            plain_text(each.checkpoint.world_size),
            "-" if each.checkpoint.score is None else f"{each.checkpoint.score:.2f}",
            "exactly" if each.is_exact else "learner only" if each.damage is None else "-",
            _state(each, verified),
        )
    Console(highlight=False, soft_wrap=True).print(table)
    if verified.best:
        print_line(
            f"Best by {verified.metric}." if verified.metric else "No score can be compared: the best is the last one."
        )


def _state(each: Verified, verified: VerifiedRun) -> Text:
    if each.damage is not None:
        return Text(printable(f"damaged: {each.damage}"), style="bold red")
    marks = [name for name, marked in (("newest", verified.newest), ("best", verified.best)) if each is marked]
    return Text(", ".join(["whole", *marks]), style="green")
