"""`shoal runs`: list the runs of a task or of all tasks, or verify the checkpoints of one.

For the list, only files of the listed runs are read, and for `--sort score` all manifests of checkpoints.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

from shoal.commands.checkpoints import VerifiedRun, verify
from shoal.config import RunsConfig
from shoal.config.learners import LEARNERS
from shoal.errors import InterruptedRunError, TerminatedRunError, UsageError
from shoal.plan.changes import changed_fields, defaults_of, flag_words, flatten
from shoal.plan.checkpoints import Checkpoint, best_first, best_good, list_checkpoints
from shoal.plan.rundir import RunDir, experiment_dir, list_all_runs, list_runs
from shoal.reading import opened, parse_json, parse_object, parse_yaml, read_bytes
from shoal.run_record import is_in_use
from shoal.tasks import registry
from shoal.text import columns, or_dash
from shoal.user_code import absolute

State = Literal["running", "finished", "interrupted", "failed", "lost", "unknown", "unreadable"]
"""`lost` is a run without an exit code that no process trains; `unknown` if the file system does not tell that."""

_WITHOUT_END: dict[bool | None, State] = {True: "running", False: "lost", None: "unknown"}
"""State of a run whose newest launch has not ended by itself, by whether its lock is held."""
_STATES: dict[int, State] = {
    0: "finished",
    InterruptedRunError.exit_code: "interrupted",
    TerminatedRunError.exit_code: "interrupted",
}
"""States by exit code; the others are failures."""
_TABLE_LENGTH = 20
"""Number of runs that are listed without `--limit`, except as JSON."""
_TAIL_BYTES = 65536
"""More than a line of metrics has."""
_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "min": timedelta(minutes=1), "s": timedelta(seconds=1)}


@dataclass(slots=True, kw_only=True)
class ListedRun:
    """A run, as its files describe it."""

    run: RunDir
    state: State = "unreadable"
    reason: str | None = None
    """Why it cannot be read."""
    exit_code: int | None = None
    """Exit code of the newest launch; None if it has not ended by itself."""
    started: datetime | None = None
    """Local time of the first launch."""
    iteration: int = 0
    """Finished iterations."""
    max_iterations: int | None = None
    steps: int | None = None
    """Environment steps of all workers."""
    best: Checkpoint | None = None
    """The best checkpoint by the manifests; its other files may be corrupt."""
    score: float | None = None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """Configuration, by dotted names."""
    changed: dict[str, Any] | None = None
    """Fields that differ from the task's defaults, or where those are not known, between the runs of the task."""

    def to_plain(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "run": str(self.run.path),
            "state": self.state,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "started": self.started.isoformat() if self.started else None,
            "iteration": self.iteration,
            "max_iterations": self.max_iterations,
            "steps": self.steps,
            "best": self.best.iteration if self.best else None,
            "score": self.score,
            "metric": self.best.metric if self.best else None,
            "changed": self.changed,
            "flags": flag_words(self.changed or {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """Runs in the order that was asked for."""

    runs: tuple[ListedRun, ...]
    best: Checkpoint | None
    """The best checkpoint of these runs, which is valid; None without a score, and for the runs of several tasks."""
    common: dict[str, dict[str, Any]]
    """For each experiment the changed fields that are the same in all of these runs, if it has several."""
    omitted: int
    """Number of further runs."""

    def lines(self) -> Iterator[str]:
        """Yield a line for each run, which ends with the flags that not all runs of its task have in common."""
        now = datetime.now().astimezone()
        titles = ("run", "state", "iterations", "steps", "score", "age", "flags")
        yield from columns(titles, [self._row(each, now) for each in self.runs])
        if self.omitted:
            number = len(self.runs) + self.omitted
            yield f"These are {len(self.runs)} of {number:,} runs: pass --limit {number} to list all."
        for experiment, changed in self.common.items():
            if changed:
                yield f"{'These' if self.omitted else 'All'} runs of {experiment}: {flag_words(changed)}"
        best = self.best
        if best is not None:
            which = "Best checkpoint of these runs" if self.omitted else "Best checkpoint"
            yield f"{which} by {best.metric}, {best.score:.2f}: {best.path}"
            others = sum(each.best is not None and not each.best.compares_with(best) for each in self.runs)
            if others:
                yield (
                    f"Scores of {others} of these runs are not compared: they are of another metric or of other "
                    "rewards."
                )

    def _row(self, each: ListedRun, now: datetime) -> tuple[str, ...]:
        common = self.common[each.run.experiment]
        changed = {name: value for name, value in (each.changed or {}).items() if name not in common}
        return (
            f"{each.run.experiment}/{each.run.name}" if len(self.common) > 1 else each.run.name,
            f"failed ({each.exit_code})" if each.state == "failed" else each.state,
            "-" if each.max_iterations is None else f"{each.iteration}/{each.max_iterations}",
            or_dash(each.steps, ","),
            or_dash(each.score, ".2f"),
            "-" if each.started is None else _age(now - each.started),
            each.reason or flag_words(changed),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        runs = [each.to_plain() for each in self.runs]
        return {"best": str(self.best.path) if self.best else None, "runs": runs, "omitted": self.omitted}


def _age(age: timedelta) -> str:
    """Return a time as a whole number of its largest unit, such as ``3 h``."""
    name = next((name for name, unit in _UNITS.items() if age >= unit), "s")
    return f"{max(age // _UNITS[name], 0)} {name}"


def list_or_verify(config: RunsConfig) -> RunList | VerifiedRun:
    """List runs with state, steps, score, age and changed flags; or verify the checkpoints of one."""
    return collect(config) if config.run is None else verify(config.run, config.log_root)


def collect(config: RunsConfig) -> RunList:
    """Find the runs, and read what their files say.

    Raises:
        UsageError: There is no such task, or there are no runs.
    """
    specs = dict(registry.registered())
    directory, runs = Path(config.log_root), list_all_runs(config.log_root)
    if config.task is not None:
        experiment = config.task  # Perhaps of a task that is not installed here, or whose file is not to be imported.
        if "/" in experiment or not (directory / experiment).is_dir():
            specs[absolute(config.task)] = registry.resolve(config.task)
            experiment = specs[absolute(config.task)].experiment
        directory = experiment_dir(directory, experiment)
        runs = list_runs(directory)
    if not runs:
        raise UsageError(f"There are no runs in {directory.absolute()} yet: train first, or pass --log-root.")

    @cache
    def defaults(task: str, learner: str) -> dict[str, Any] | None:
        return defaults_of(specs[task], learner) if task in specs and learner in LEARNERS else None

    newest_first = runs[::-1]
    limit = config.limit or (None if config.json else _TABLE_LENGTH)
    shown = (_by_score(newest_first) if config.sort == "score" else newest_first)[:limit]
    listed = {run: _listed(run, defaults) for run in shown}
    experiments = dict.fromkeys(run.experiment for run in newest_first)
    groups = {name: [each for each in listed.values() if each.run.experiment == name] for name in experiments}
    best = best_good(*(run for run in runs if run in listed)) if len(groups) == 1 else None
    return RunList(
        runs=tuple(listed.values()),
        best=best if best is not None and best.score is not None else None,
        common={name: _fill_in_changes(group) for name, group in groups.items()},
        omitted=len(runs) - len(listed),
    )


def _listed(run: RunDir, defaults: Callable[[str, str], dict[str, Any] | None]) -> ListedRun:
    try:
        return _read(run, defaults)
    except Exception as error:  # noqa: BLE001  A corrupt file holds anything.
        # Python would print the path as a string of Python, which no shell takes.
        what = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error)
        reason = " ".join([f"{type(error).__name__}: {what}".partition("\n")[0], *getattr(error, "__notes__", [])])
        return ListedRun(run=run, reason=reason)


def _read(run: RunDir, defaults: Callable[[str, str], dict[str, Any] | None]) -> ListedRun:
    launches = _parsed(run.run_json, parse_json)["launches"]
    held, row = is_in_use(run), _last_row(run)
    ended = None if held else launches[-1]["ended"]  # A launch that goes on is recorded once all ranks have restored.
    plain = _parsed(run.train_yaml, parse_yaml)
    fields, known = flatten(plain), defaults(plain["task"], plain["learner"])
    best = _best(run)
    return ListedRun(
        run=run,
        state=_STATES.get(ended["exit_code"], "failed") if ended else _WITHOUT_END[held],
        exit_code=ended["exit_code"] if ended else None,
        started=datetime.fromisoformat(launches[0]["started"]),
        iteration=int(row.get("iteration", 0)),
        max_iterations=int(fields["max_iterations"]),
        steps=int(row["Train/total_steps"]) if "Train/total_steps" in row else None,
        best=best,
        score=best.score if best else None,
        fields=fields,
        changed=None if known is None else changed_fields(fields, known),
    )


def _parsed(file: Path, parse: Callable[[bytes], Any]) -> Any:  # noqa: ANN401  Whatever the file holds.
    try:
        return parse(read_bytes(file))
    except ValueError as error:
        error.add_note(f"in {file.name}")
        raise


def _last_row(run: RunDir) -> dict[str, Any]:
    """Return the last complete line of the metrics; empty without one."""
    if not run.metrics_jsonl.is_file():
        return {}
    with opened(run.metrics_jsonl) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        *lines, _incomplete = file.read().split(b"\n")
    return parse_object(lines[-1], {}) if lines else {}


def _fill_in_changes(group: Sequence[ListedRun]) -> dict[str, Any]:
    """Return the changed fields that are the same in all runs that can be read, if these are several.

    Those of runs whose defaults are not known are filled in first: the fields in which they differ from each other.
    """
    unknown = [each for each in group if each.changed is None and each.fields]
    names = {name for each in unknown for name in each.fields}
    differing = {name for name in names if len({repr(each.fields.get(name)) for each in unknown}) > 1}
    for each in unknown:
        each.changed = {name: value for name, value in each.fields.items() if name in differing}
    first, *others = [each.changed or {} for each in group if each.fields] or [{}]
    same = {name: value for name, value in first.items() if all((name, value) in each.items() for each in others)}
    return same if others else {}


def _best(run: RunDir) -> Checkpoint | None:
    """Return a run's best checkpoint by the manifests."""
    return next((each for each in best_first(list_checkpoints(run)) if each.model.is_file()), None)


def _by_score(newest_first: Sequence[RunDir]) -> list[RunDir]:
    """Return the best run of each experiment first; last those whose score does not compare with its newest run's."""
    found: dict[RunDir, Checkpoint | None] = dict.fromkeys(newest_first)
    for run in newest_first:
        with suppress(OSError):  # Its line gives the reason.
            found[run] = _best(run)
    newest = {run.experiment: best for run, best in reversed(found.items()) if best is not None}
    experiments = list(dict.fromkeys(run.experiment for run in newest_first))

    def key(run: RunDir) -> tuple[int, float]:
        best = found[run]
        score = best.score if best is not None and best.compares_with(newest[run.experiment]) else None
        return experiments.index(run.experiment), math.inf if score is None else -score

    return sorted(newest_first, key=key)
