"""Everything that Shoal prints: overviews, the plan, the live view of a training, results, and errors."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from shoal.cli.output import finish_output, printable
from shoal.plan.ranks import RANK_VARIABLES
from shoal.plan.rundir import RunDir
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from shoal.bench import BenchReport
    from shoal.commands.export import Exported
    from shoal.commands.play import Episodes
    from shoal.commands.train import Outcome
    from shoal.doctor import Diagnosis
    from shoal.errors import ShoalError
    from shoal.launch.progress import ProgressReporter
    from shoal.plan.training import TrainPlan

PLAIN_LINE_S = 2.0
"""Least time between two progress lines where the output is no terminal [s]."""

_TOLD_VARIABLES = ("CUDA_VISIBLE_DEVICES", "TORCHRUNX_LOG_DIR", "OMP_NUM_THREADS")
"""Environment variables that a plan depends on."""

_LEVEL_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}

_SHOWN_FIRST = (
    ("Mean reward", "Train/mean_reward", "{:.2f}"),
    ("Mean episode length", "Train/mean_episode_length", "{:.1f}"),
    ("Steps per second", "Perf/total_fps", "{:,.0f}"),
    ("Total steps", "Train/total_steps", "{:,.0f}"),
    ("Value loss", "Loss/value", "{:.4g}"),
    ("Surrogate loss", "Loss/surrogate", "{:.4g}"),
    ("Learning rate", "Loss/learning_rate", "{:.2e}"),
    ("Action std", "Policy/mean_std", "{:.2f}"),
)


def _out() -> Console:
    return Console(highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print one plain line."""
    _out().print(printable(text), markup=False)


def say_aside(text: str) -> None:
    """Print one plain line that is no part of the result."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(printable(text), markup=False)


def print_error(error: ShoalError) -> None:
    """Print what is known of an error, and its message as the last line."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if error.details:
        console.print(printable(error.details.rstrip()), markup=False)
    console.print(Text("Error: ", style="bold red") + Text(printable(str(error))))


def _leave_with(error: ShoalError) -> NoReturn:
    """Print an error and end this process, whatever its other threads are about."""
    print_error(error)
    finish_output()
    os._exit(error.exit_code)


def print_overview(commands: Mapping[str, str]) -> None:
    """Print what `shoal` can do."""
    say("usage: shoal COMMAND ...\n")
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, summary in commands.items():
        table.add_row(name, summary)
    _out().print(table)
    say("\n`shoal COMMAND --help` tells a command's flags. `train`, `play` and `evaluate` are commands by themselves.")


def print_tasks() -> None:
    """Print what can be trained."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    for spec in registry.registered().values():
        table.add_row(spec.name, spec.summary)
    _out().print(table)


def print_usage(program: str) -> None:
    """Print the tasks that a command takes: its flags depend on the task."""
    say(f"usage: {program} TASK [flags]\n\nTasks:")
    print_tasks()
    say(f"\n`{program} TASK --help` shows its flags, with that task's defaults.")
    say(f"A task of your own: `{program} path/to/file.py:Class`.")


def print_plan(plan: TrainPlan, environ: Mapping[str, str]) -> None:
    """Print what a training would do: devices, ranks, batch sizes, directories, and the variables that were read."""
    for note in plan.notes:
        say(note)
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, value in plan.to_plain().items():
        table.add_row(name.replace("_", " "), Text(_plain(value)))
    run = plan.continued or RunDir(Path(_planned_directory(plan)))
    table.add_row("run directory", Text(printable(f"{run.path}{' (continued)' if plan.continued else ''}")))
    table.add_row("rank files", Text(_plain(plan.log_base(run, environ))))
    for name in (*_TOLD_VARIABLES, *(RANK_VARIABLES if plan.rank else ())):
        if name in environ:
            table.add_row(name, Text(repr(environ[name])))
    _out().print(table)


def _plain(value: object) -> str:
    if isinstance(value, list):
        return printable(", ".join(str(each) for each in cast("list[object]", value)))
    return "-" if value is None else printable(str(value))


def _planned_directory(plan: TrainPlan) -> str:
    suffix = f"_{plan.config.run_name}" if plan.config.run_name else ""
    return f"{plan.config.log_root}/{plan.spec.experiment}/<now>{suffix}"


@contextmanager
def training_view(plan: TrainPlan, *, silent: bool) -> Generator[ProgressReporter]:
    """Show a training while it runs: a live table on a terminal, plain lines elsewhere, nothing when `silent`."""
    if silent:
        yield _SilentView()
        return
    for note in plan.notes:
        say(note)
    say(_headline(plan))
    console = _out()
    if not console.is_terminal:
        view = _PlainView()
        yield view
        view.flush()
        return
    view = _LiveView(plan, console)
    with Live(view, console=console, refresh_per_second=8, transient=False, redirect_stdout=True) as live:
        view.close = live.stop
        yield view


def _headline(plan: TrainPlan) -> str:
    workers = "1 worker" if plan.world_size == 1 else f"{plan.world_size} workers"
    devices = ", ".join(dict.fromkeys(plan.devices))
    talk = f" through {plan.backend}" if plan.backend else ""
    where = f" of {len(plan.machines)} machines" if len(plan.machines) > 1 else ""
    return (
        f"Training {plan.spec.name}: {workers} on {devices}{where}{talk} ({plan.launch_mode}), {plan.num_envs:,} "
        f"environments each, iterations {plan.start_iteration} to {plan.config.max_iterations}."
    )


class _SilentView:
    """For ranks that do not speak."""

    def on_row(self, row: Mapping[str, float]) -> None:
        del row

    def on_line(self, line: str) -> None:
        del line

    def leave(self, error: ShoalError) -> NoReturn:
        _leave_with(error)


class _PlainView:
    """One line an iteration, but not more than one every `PLAIN_LINE_S`; the last iteration is always told."""

    def __init__(self) -> None:
        self._told = 0.0
        self._held_back: Mapping[str, float] | None = None

    def on_row(self, row: Mapping[str, float]) -> None:
        now = time.monotonic()
        if now - self._told < PLAIN_LINE_S and self._told:
            self._held_back = row
            return
        self._told = now
        self._held_back = None
        self._print(row)

    def on_line(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def leave(self, error: ShoalError) -> NoReturn:
        self.flush()
        _leave_with(error)

    def flush(self) -> None:
        """Tell the newest row if it was held back."""
        if self._held_back is not None:
            self._print(self._held_back)
            self._held_back = None

    def _print(self, row: Mapping[str, float]) -> None:
        parts = [f"{name.lower()} {_value(row, key, form)}" for name, key, form in _SHOWN_FIRST[:4]]
        self.on_line(f"[{int(row['iteration'])}/{int(row['max_iterations'])}] " + ", ".join(parts))


class _LiveView:
    """Progress bar and table of the newest metrics; rendered by rich, several times a second."""

    def __init__(self, plan: TrainPlan, console: Console) -> None:
        self._console = console
        self.close: Callable[[], None] = lambda: None
        """Gives the terminal back."""
        self._row: Mapping[str, float] = {}
        self._first: tuple[float, float] | None = None  # (iteration, time) of the first row, for the time left.
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, TextColumn("left {task.fields[left]}"), console=console)
        self._bar = self._progress.add_task(
            plan.spec.name, total=plan.config.max_iterations, completed=plan.start_iteration, left="-"
        )

    def on_row(self, row: Mapping[str, float]) -> None:
        now = time.monotonic()
        self._row = row
        self._first = self._first or (row["iteration"], now)
        done = row["iteration"] - self._first[0]
        left = (row["max_iterations"] - row["iteration"]) * (now - self._first[1]) / done if done else None
        told = "-" if left is None else str(timedelta(seconds=round(left)))
        self._progress.update(self._bar, completed=row["iteration"], left=told)

    def on_line(self, line: str) -> None:
        self._console.print(line, markup=False)

    def leave(self, error: ShoalError) -> NoReturn:
        self.close()
        _leave_with(error)

    def __rich__(self) -> Group:
        table = Table(box=box.SIMPLE, show_header=False, padding=(0, 2), expand=False)
        for name, key, form in _SHOWN_FIRST:
            table.add_row(name, _value(self._row, key, form))
        for key in sorted(self._row):
            if key.startswith("Episode_Reward/"):
                table.add_row(Text(key, style="dim"), f"{self._row[key]:.3f}")
        return Group(self._progress, table)


def _value(row: Mapping[str, Any], key: str, form: str) -> str:
    value = row.get(key)
    return "-" if value is None else form.format(value)


def print_outcome(outcome: Outcome) -> None:
    """Print what a training came to."""
    report = outcome.reports[0]
    reward = _value(report.last_row, "Train/mean_reward", "{:.2f}")
    if len(outcome.reports) > 1:
        say(f"All {len(outcome.reports)} ranks hold the same learner, {report.digest}.")
    say(f"Finished {report.iteration} iterations, mean reward {reward}. Run directory: {outcome.run.path}")


def print_episodes(episodes: Episodes) -> None:
    """Print each episode, and their mean and spread."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2))
    for title in ("episode", "return", "length"):
        table.add_column(title, justify="right")
    for number, (value, length) in enumerate(zip(episodes.returns, episodes.lengths, strict=True), start=1):
        table.add_row(str(number), f"{value:.2f}", str(length))
    _out().print(table)
    told = episodes.summary()
    say(
        f"return {told['return_mean']:.2f} ± {told['return_std']:.2f}, "
        f"length {told['length_mean']:.1f} ± {told['length_std']:.1f}"
    )
    if episodes.video is not None:
        say(f"Film: {episodes.video}")


def print_evaluation(episodes: Episodes) -> None:
    """Print the statistics of all episodes as JSON."""
    sys.stdout.write(json.dumps(episodes.summary(), indent=2) + "\n")


def print_exported(exported: Exported) -> None:
    """Print which files were written, and what they say beside the network."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, value in exported.metadata.items():
        table.add_row(name, Text(value))
    _out().print(table)
    say(f"Exported the policy to {' and '.join(map(str, exported.files))}.")


def print_bench(report: BenchReport) -> None:
    """Print what was measured."""
    machine = report.machine
    say(f"{report.task} on {machine['cpu']} ({machine['cores']} cores), GPUs: {', '.join(machine['gpus']) or 'none'}")
    rates = Table("engine", "environment steps per second", box=box.SIMPLE_HEAD, padding=(0, 2))
    for engine, rate in report.env_steps_per_second.items():
        rates.add_row(engine, f"{rate:,.0f}")
    _out().print(rates)
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
    _out().print(table)
    for row in report.training:
        if "checkpoint_cost" in row:
            beside = f"an iteration beside which a checkpoint is written takes {row['checkpoint_cost']:+.1%}"
            say(f"{row['workers']:.0f} worker(s): {beside} (median of {row['checkpoints']:.0f})")


def print_diagnosis(diagnosis: Diagnosis, *, as_json: bool) -> None:
    """Print everything that was found: a row each, with what to do below what is true."""
    if as_json:
        sys.stdout.write(json.dumps(diagnosis.to_plain(), indent=2) + "\n")
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in diagnosis.findings:
        told = Text(printable(finding.truth))
        if finding.remedy:
            told.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(finding.level, style=_LEVEL_STYLES[finding.level]), Text(finding.topic), told)
    _out().print(table)
    counts = Counter(finding.level for finding in diagnosis.findings)
    told = f"{counts['ok']} ok, {counts['note']} to note, {counts['problem']} wrong."
    say(told if diagnosis.error else f"{told} Training would work.")
