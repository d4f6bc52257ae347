"""What is shown of a training and of other launches: the plan, and the progress; and of `bench` and `doctor`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from shoal.cli.output import print_line, print_lines, print_note
from shoal.launch.rank import ProgressReporter
from shoal.plan.ranks import RANK_VARIABLES
from shoal.plan.rundir import RunDir
from shoal.plan.training import TrainPlan
from shoal.text import columns, or_dash, pairs, printable

if TYPE_CHECKING:
    from shoal.bench import BenchReport
    from shoal.doctor import Diagnosis

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

_METRICS = (
    ("Mean reward", "Train/mean_reward", ".2f"),
    ("Mean episode length", "Train/mean_episode_length", ".1f"),
    ("Steps per second", "Perf/total_fps", ",.0f"),
    ("Total steps", "Train/total_steps", ",.0f"),
    ("Value loss", "Loss/value", ".4g"),
    ("Surrogate loss", "Loss/surrogate", ".4g"),
    ("Learning rate", "Loss/learning_rate", ".2e"),
    ("Action std", "Policy/mean_std", ".2f"),
)
_TRAINING = (
    ("workers", "workers", ".0f"),
    ("training steps per second", "steps_per_second", ",.0f"),
    ("efficiency", "efficiency", ".0%"),
    ("collectives", "collective_part", ".0%"),
    ("first iteration [s]", "first_iteration_warm_s", ".1f"),
    ("with a cold cache [s]", "first_iteration_cold_s", ".1f"),
)
"""Columns of the trainings: title, name of the measurement, format."""
_LEVEL_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def print_plan(plan: TrainPlan, environ: Mapping[str, str]) -> None:
    """Print the plan of a training: devices, ranks, batch sizes, directories, and environment variables."""
    print_lines(plan.notes)
    suffix = f"_{plan.config.run_name}" if plan.config.run_name else ""
    run = plan.continued or RunDir(Path(plan.config.log_root, plan.spec.experiment, f"<now>{suffix}"))
    names = (*_PLAN_VARIABLES, *(RANK_VARIABLES if plan.rank else ()))
    rows = {
        **plan.summary(),
        "run directory": f"{run.path}{' (continued)' if plan.continued else ''}",
        "logs of ranks": plan.log_base(run, environ),
        **{name: repr(environ[name]) for name in names if name in environ},
    }
    print_plain(rows)


def print_plain(values: Mapping[str, object]) -> None:
    """Print plain values by name, a line each."""

    def text(value: object) -> str:
        if isinstance(value, list):
            return ", ".join(str(each) for each in cast("list[object]", value))
        return "-" if value is None else str(value)

    shown = {name if name.isupper() else name.replace("_", " "): text(value) for name, value in values.items()}
    print_lines(pairs(shown.items()))


def training_view(plan: TrainPlan) -> ProgressReporter:
    """Show a training until the view is closed: a live table on a terminal, plain lines elsewhere."""
    print_lines(plan.notes)
    backend = f" through {plan.backend}" if plan.backend else ""
    nodes = f" of {len(plan.nodes)} nodes" if len(plan.nodes) > 1 else ""
    print_line(
        f"Training {plan.spec.name}: {plan.workers}{nodes}{backend} ({plan.launch_mode}), {plan.config.num_envs:,} "
        f"environments each, iterations {plan.start_iteration} to {plan.config.max_iterations}."
    )
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        return _PlainView()
    view = _LiveView(plan, console)
    view.live.start(refresh=True)
    return view


class NotesView(ProgressReporter):
    """Lines of rank 0 on standard error."""

    def on_line(self, line: str) -> None:
        """Print the line."""
        print_note(line)


class _PlainView(ProgressReporter):
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
        self._pending = row
        if not self._printed_at or time.monotonic() - self._printed_at >= PLAIN_LINE_S:
            self._print_pending()

    def on_line(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        self._print_pending()

    def _print_pending(self) -> None:
        row, self._pending = self._pending, None
        if row is not None:
            self._printed_at = time.monotonic()
            parts = [f"{name.lower()} {or_dash(row.get(key), form)}" for name, key, form in _METRICS[:4]]
            self.on_line(f"[{int(row['iteration'])}/{int(row['max_iterations'])}] " + ", ".join(parts))


class _LiveView(ProgressReporter):
    """Progress bar and table of the newest metrics, rendered by rich several times a second."""

    def __init__(self, plan: TrainPlan, console: Console) -> None:
        self._console = console
        self.live = Live(self, console=console, refresh_per_second=8, transient=False, redirect_stdout=True)
        self._phase = _PHASES["startup"]
        self._row: Mapping[str, float] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._bar = self._progress.add_task(
            plan.spec.name, total=plan.config.max_iterations, completed=plan.start_iteration
        )

    def on_phase(self, phase: str) -> None:
        self._phase = _PHASES.get(phase, self._phase)

    def on_row(self, row: Mapping[str, float]) -> None:
        self._row = row
        self._progress.update(self._bar, completed=row["iteration"])

    def on_line(self, line: str) -> None:
        self._console.print(line, markup=False)

    def close(self) -> None:
        """Restore the terminal."""
        self.live.stop()

    def __rich__(self) -> Group:
        table = Table(box=box.SIMPLE, show_header=False, padding=(0, 2), expand=False)
        if not self._row:
            table.add_row("Phase", self._phase)
            return Group(self._progress, table)
        for name, key, form in _METRICS:
            table.add_row(name, or_dash(self._row.get(key), form))
        for key in sorted(self._row):
            if key.startswith("Episode_Reward/"):
                table.add_row(Text(key, style="dim"), f"{self._row[key]:.3f}")
        return Group(self._progress, table)


def lines_of_jobs(jobs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a row for each job of an evaluation; of a single one its reward terms and metrics, and the rest below."""
    from shoal.jobs.statistics import sentence_of

    if len(jobs) == 1 and (summary := jobs[0]["summary"]):
        means = {**summary["terms"], **summary["metrics"]}
        if means:
            yield from columns(("term", "mean"), [(name, or_dash(mean, ".4g")) for name, mean in means.items()])
        yield sentence_of(summary)
        return
    rows = [(job["name"], *_statistics_of(job["summary"], job["state"])) for job in jobs]
    yield from columns(("job", "episodes", "return", "low", "high", "length", "success"), rows)


def _statistics_of(summary: Mapping[str, Any] | None, state: str) -> list[str]:
    if summary is None:
        return [state, *"-----"]
    returns, success = summary["return"], cast("dict[str, float]", summary["success"] or {})
    numbers = (*(returns[name] for name in ("mean", "low", "high")), summary["length"]["mean"])
    cells = [or_dash(number, ".2f") for number in numbers]
    return [str(summary["episodes"]), *cells, or_dash(success.get("rate"), ".0%")]


def lines_of_bench(report: BenchReport) -> Iterator[str]:
    """Yield the measurements of `shoal bench`."""
    from shoal.bench.training import PARTS

    machine = report.machine
    gpus = ", ".join(machine["gpus"]) or "none"
    yield f"{report.task} on {machine['cpu']} ({machine['cores']} cores), GPUs: {gpus}"
    if report.until_return:
        rows = [
            (
                str(row["seed"]),
                f"{row['mean_return']:.1f}" + ("" if row["is_reached"] else ": too low"),
                str(row["iteration"]),
                f"{row['steps']:,.0f}",
                f"{row['seconds']:.0f}",
            )
            for row in report.until_return
        ]
        yield from columns(("seed", "return", "iteration", "steps", "seconds"), rows)
        return
    if report.startup:
        rows = [(part, *(f"{seconds[part]:.2f}" for seconds in report.startup.values())) for part in PARTS]
        yield from columns(("seconds", *(f"{workers} worker(s)" for workers in report.startup)), rows)
        return
    rates = [(engine, f"{rate:,.0f}") for engine, rate in report.env_steps_per_second.items()]
    yield from columns(("engine", "environment steps per second"), rates)
    rows = [[or_dash(row.get(name), form) for _, name, form in _TRAINING] for row in report.training]
    yield from columns([title for title, _, _ in _TRAINING], rows)
    for row in report.training:
        if "checkpoint_cost" in row:
            beside = f"an iteration beside which a checkpoint is written takes {row['checkpoint_cost']:+.1%}"
            yield f"{row['workers']:.0f} worker(s): {beside} (median of {row['checkpoints']:.0f})"


def lines_of_diagnosis(diagnosis: Diagnosis) -> Iterator[str | Table]:
    """Yield all findings of `shoal doctor`, a row each with the remedy below the fact, and their numbers."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in diagnosis.findings:
        text = Text(printable(finding.truth))
        if finding.remedy:
            text.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(finding.level, style=_LEVEL_STYLES[finding.level]), Text(finding.topic), text)
    yield table
    counts = Counter(finding.level for finding in diagnosis.findings)
    summary = f"{counts['ok']} ok, {counts['note']} to note, {counts['problem']} wrong."
    yield summary if diagnosis.error else f"{summary} Training would work."
