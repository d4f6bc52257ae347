"""Output of the commands: overviews, the plan, the live view of a training, results, and errors."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from shoal.bench import BenchReport
from shoal.cli.output import print_json, printable
from shoal.commands.export import Exported
from shoal.commands.play import Episodes
from shoal.doctor import Diagnosis
from shoal.errors import ShoalError
from shoal.plan.ranks import RANK_VARIABLES
from shoal.plan.rundir import RunDir
from shoal.plan.training import TrainPlan
from shoal.tasks import registry

if TYPE_CHECKING:
    from shoal.commands.train import Outcome
    from shoal.envs.contract import EnvReport
    from shoal.launch.rank import ProgressReporter

PLAIN_LINE_S = 2.0
"""Least time between two progress lines if standard output is no terminal [s]."""

_PLAN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "TORCHRUNX_LOG_DIR", "OMP_NUM_THREADS")
"""Environment variables that a plan depends on."""

_PHASES = {
    "startup": "Starting workers: importing libraries, building the learner.",
    "compile": "Building environments and compiling kernels.",
    "rollout": "First rollout.",
    "update": "First update.",
}
"""Phases of a heartbeat until the first iteration is done, as shown."""

_LEVEL_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}

_METRICS = (
    ("Mean reward", "Train/mean_reward", "{:.2f}"),
    ("Mean episode length", "Train/mean_episode_length", "{:.1f}"),
    ("Steps per second", "Perf/total_fps", "{:,.0f}"),
    ("Total steps", "Train/total_steps", "{:,.0f}"),
    ("Value loss", "Loss/value", "{:.4g}"),
    ("Surrogate loss", "Loss/surrogate", "{:.4g}"),
    ("Learning rate", "Loss/learning_rate", "{:.2e}"),
    ("Action std", "Policy/mean_std", "{:.2f}"),
)


def _stdout() -> Console:
    return Console(highlight=False, soft_wrap=True)


def print_rows(rows: Iterable[tuple[str | Text, str | Text]]) -> None:
    """Print a table of two columns without a header."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    _stdout().print(table)


def print_line(text: str) -> None:
    """Print one plain line."""
    _stdout().print(printable(text), markup=False)


def print_note(text: str) -> None:
    """Print one plain line on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(printable(text), markup=False)


def print_error(error: ShoalError) -> None:
    """Print the details of an error, and its message as the last line."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if error.details:
        console.print(printable(error.details.rstrip()), markup=False)
    console.print(Text("Error: ", style="bold red") + Text(printable(str(error))))


def print_overview(commands: Mapping[str, str]) -> None:
    """Print the commands of `shoal`."""
    print_line("usage: shoal COMMAND ...\n")
    print_rows(commands.items())
    print_line("\n`shoal COMMAND --help` shows its flags. `train`, `play` and `evaluate` are commands by themselves.")


def print_tasks() -> None:
    """Print the names and summaries of all tasks."""
    print_rows((spec.name, spec.summary) for spec in registry.registered().values())


def print_usage(program: str, more: str = "") -> None:
    """Print the tasks that a command takes, and `more` words behind the task: its flags depend on the task."""
    words = " ".join(["TASK", *more.split()])
    print_line(f"usage: {program} {words} [flags]\n\nTasks:")
    print_tasks()
    print_line(f"\n`{program} {words} --help` shows its flags, with that task's defaults.")
    print_line(f"A task of your own: `{program} path/to/file.py:Class`.")


def print_plan(plan: TrainPlan, environ: Mapping[str, str]) -> None:
    """Print the plan of a training: devices, ranks, batch sizes, directories, and environment variables."""
    for note in plan.notes:
        print_line(note)
    rows = [(name.replace("_", " "), Text(plain_text(value))) for name, value in plan.to_plain().items()]
    suffix = f"_{plan.config.run_name}" if plan.config.run_name else ""
    run = plan.continued or RunDir(Path(plan.config.log_root, plan.spec.experiment, f"<now>{suffix}"))
    rows.append(("run directory", Text(printable(f"{run.path}{' (continued)' if plan.continued else ''}"))))
    rows.append(("rank files", Text(plain_text(plan.log_base(run, environ)))))
    names = (*_PLAN_VARIABLES, *(RANK_VARIABLES if plan.rank else ()))
    print_rows([*rows, *((name, Text(repr(environ[name]))) for name in names if name in environ)])


def plain_text(value: object) -> str:
    """Return a value as a cell of a table."""
    if isinstance(value, list):
        return printable(", ".join(str(each) for each in cast("list[object]", value)))
    return "-" if value is None else printable(str(value))


@contextmanager
def training_view(plan: TrainPlan, *, silent: bool) -> Generator[ProgressReporter]:
    """Show a training while it runs: a live table on a terminal, plain lines elsewhere, nothing when `silent`."""
    if silent:
        yield SilentView()
        return
    for note in plan.notes:
        print_line(note)
    print_line(_headline(plan))
    console = _stdout()
    if not console.is_terminal:
        view = _PlainView()
        yield view
        view.close()
        return
    view = _LiveView(plan, console)
    with Live(view, console=console, refresh_per_second=8, transient=False, redirect_stdout=True) as live:
        view.close = live.stop
        yield view


def _headline(plan: TrainPlan) -> str:
    backend = f" through {plan.backend}" if plan.backend else ""
    machines = f" of {len(plan.nodes)} machines" if len(plan.nodes) > 1 else ""
    return (
        f"Training {plan.spec.name}: {plan.workers}{machines}{backend} ({plan.launch_mode}), {plan.num_envs:,} "
        f"environments each, iterations {plan.start_iteration} to {plan.config.max_iterations}."
    )


class SilentView:
    """Progress of ranks that print nothing."""

    def on_phase(self, phase: str) -> None:
        """Print nothing."""

    def on_row(self, row: Mapping[str, float]) -> None:
        """Print nothing."""

    def on_line(self, line: str) -> None:
        """Print nothing."""

    def close(self) -> None:
        """Print nothing."""


class NotesView(SilentView):
    """Lines of rank 0 on standard error."""

    def on_line(self, line: str) -> None:
        """Print the line."""
        print_note(line)


class _PlainView:
    """One line an iteration, but at most one every `PLAIN_LINE_S`; the last iteration is always printed."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._printed_at = 0.0
        self._phases: set[str] = set()  # Those that were printed.
        self._pending: Mapping[str, float] | None = None

    def on_phase(self, phase: str) -> None:
        text = _PHASES.get(phase)
        if text is not None and not self._printed_at and phase not in self._phases:
            self._phases.add(phase)
            self.on_line(f"[{timedelta(seconds=round(time.monotonic() - self._started))} elapsed] {text}")

    def on_row(self, row: Mapping[str, float]) -> None:
        now = time.monotonic()
        if now - self._printed_at < PLAIN_LINE_S and self._printed_at:
            self._pending = row
            return
        self._printed_at = now
        self._pending = None
        self._print(row)

    def on_line(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Print the newest row if it is pending."""
        if self._pending is not None:
            self._print(self._pending)
            self._pending = None

    def _print(self, row: Mapping[str, float]) -> None:
        parts = [f"{name.lower()} {_value(row, key, form)}" for name, key, form in _METRICS[:4]]
        self.on_line(f"[{int(row['iteration'])}/{int(row['max_iterations'])}] " + ", ".join(parts))


class _LiveView:
    """Progress bar and table of the newest metrics, rendered by rich several times a second."""

    def __init__(self, plan: TrainPlan, console: Console) -> None:
        self._console = console
        self.close: Callable[[], None] = lambda: None
        """Restores the terminal."""
        self._phase = _PHASES["startup"]
        self._row: Mapping[str, float] = {}
        self._first: tuple[float, float] | None = None  # (iteration, time) of the first row, for the time left.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            console=console,
        )
        self._bar = self._progress.add_task(
            plan.spec.name, total=plan.config.max_iterations, completed=plan.start_iteration, left="-"
        )

    def on_phase(self, phase: str) -> None:
        self._phase = _PHASES.get(phase, self._phase)

    def on_row(self, row: Mapping[str, float]) -> None:
        now = time.monotonic()
        self._row = row
        self._first = self._first or (row["iteration"], now)
        done = row["iteration"] - self._first[0]
        left = (row["max_iterations"] - row["iteration"]) * (now - self._first[1]) / done if done else None
        shown = "-" if left is None else str(timedelta(seconds=round(left)))
        self._progress.update(self._bar, completed=row["iteration"], left=shown)

    def on_line(self, line: str) -> None:
        self._console.print(line, markup=False)

    def __rich__(self) -> Group:
        table = Table(box=box.SIMPLE, show_header=False, padding=(0, 2), expand=False)
        if not self._row:
            table.add_row("Phase", self._phase)
            return Group(self._progress, table)
        for name, key, form in _METRICS:
            table.add_row(name, _value(self._row, key, form))
        for key in sorted(self._row):
            if key.startswith("Episode_Reward/"):
                table.add_row(Text(key, style="dim"), f"{self._row[key]:.3f}")
        return Group(self._progress, table)


def _value(row: Mapping[str, Any], key: str, form: str) -> str:
    value = row.get(key)
    return "-" if value is None else form.format(value)


def print_outcome(outcome: Outcome) -> None:
    """Print the result of a training."""
    report = outcome.reports[0]
    reward = _value(report.last_row, "Train/mean_reward", "{:.2f}")
    if len(outcome.reports) > 1:
        print_line(f"All {len(outcome.reports)} ranks hold the same learner, {report.digest}.")
    print_line(f"Finished {report.iteration} iterations, mean reward {reward}. Run directory: {outcome.run.path}")


def print_episodes(episodes: Episodes) -> None:
    """Print each episode, and their mean and spread."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2))
    for title in ("episode", "return", "length"):
        table.add_column(title, justify="right")
    for number, (value, length) in enumerate(zip(episodes.returns, episodes.lengths, strict=True), start=1):
        table.add_row(str(number), f"{value:.2f}", str(length))
    _stdout().print(table)
    print_line(episodes.summary())
    if episodes.video is not None:
        print_line(f"Film: {episodes.video}")


def print_exported(exported: Exported) -> None:
    """Print the files of an export and their metadata."""
    print_rows((name, Text(value)) for name, value in exported.metadata.items())
    print_line(f"Exported the policy to {' and '.join(map(str, exported.files))}.")


def print_env_report(checked: EnvReport) -> None:
    """Print what `shoal check-env` found: a line for each check, what is missing, and the speed."""
    for finding in checked.findings:
        mark = "FAILED" if finding.fault is not None else "ok" if finding.offered else "-"
        print_line(f"{mark:6}  {finding.check}.")
        if finding.fault is not None:
            print_line(f"        {finding.fault}")
    if checked.missing:
        print_line(f"Not offered: {'; '.join(checked.missing)}.")
    print_line(
        f"{checked.steps_per_second:,.0f} steps per second of {checked.config.num_envs} environments on "
        f"{checked.device}, {checked.episodes:,} episodes ended."
    )


def print_bench(report: BenchReport) -> None:
    """Print the measurements."""
    machine = report.machine
    print_line(
        f"{report.task} on {machine['cpu']} ({machine['cores']} cores), GPUs: {', '.join(machine['gpus']) or 'none'}"
    )
    if report.until_return:
        _print_until_return(report)
        return
    rates = Table("engine", "environment steps per second", box=box.SIMPLE_HEAD, padding=(0, 2))
    for engine, rate in report.env_steps_per_second.items():
        rates.add_row(engine, f"{rate:,.0f}")
    _stdout().print(rates)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))  # So that no title is cut on a terminal of 80 columns.
    for title in (
        "workers",
        "training steps per second",
        "efficiency",
        "collectives",
        "first iteration [s]",
        "with a cold cache [s]",
    ):
        table.add_column(Text(title), justify="right")  # Plain: rich would take [s] for a style.
    for row in report.training:
        cold = row.get("first_iteration_cold_s")
        table.add_row(
            f"{row['workers']:.0f}",
            f"{row['steps_per_second']:,.0f}",
            f"{row['efficiency']:.0%}",
            f"{row['collective_part']:.0%}",
            f"{row['first_iteration_warm_s']:.1f}",
            "-" if cold is None else f"{cold:.1f}",
        )
    _stdout().print(table)
    for row in report.training:
        if "checkpoint_cost" in row:
            beside = f"an iteration beside which a checkpoint is written takes {row['checkpoint_cost']:+.1%}"
            print_line(f"{row['workers']:.0f} worker(s): {beside} (median of {row['checkpoints']:.0f})")


def _print_until_return(report: BenchReport) -> None:
    """Print a row for each seed."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2))
    for title in ("seed", "return", "iteration", "steps", "seconds"):
        table.add_column(Text(title), justify="right")
    for row in report.until_return:
        earned = f"{row.mean_return:.1f}" + ("" if row.is_reached else ": too low")
        table.add_row(str(row.seed), earned, str(row.iteration), f"{row.steps:,.0f}", f"{row.seconds:.0f}")
    _stdout().print(table)


def print_diagnosis(diagnosis: Diagnosis, *, as_json: bool) -> None:
    """Print all findings: a row each, with the remedy below the fact."""
    if as_json:
        print_json(diagnosis.to_plain())
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in diagnosis.findings:
        text = Text(printable(finding.truth))
        if finding.remedy:
            text.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(finding.level, style=_LEVEL_STYLES[finding.level]), Text(finding.topic), text)
    _stdout().print(table)
    counts = Counter(finding.level for finding in diagnosis.findings)
    summary = f"{counts['ok']} ok, {counts['note']} to note, {counts['problem']} wrong."
    print_line(summary if diagnosis.error else f"{summary} Training would work.")
