"""Files of a sweep: `results.csv`, `results.json`, the report with its plots, and the workers that trials have lost."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from shoal import __version__
from shoal.config.plain import to_plain
from shoal.config.sweep import SweepFile
from shoal.files import Folder
from shoal.jobs.report import page, table
from shoal.plan.rundir import RunDir
from shoal.reading import parse_object, read_bytes, refusing
from shoal.sweep.file import metric_of

COLUMNS = ("trial", "state", "score", "iterations")
_WIDTH, _HEIGHT, _EDGE = 800, 240, 60
"""Of a plot, and of the space around its axes [px]."""


def write_results(folder: Path, sweep: SweepFile, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table of all trials as CSV, JSON and HTML."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*COLUMNS, *sweep.parameters, "run"])
    lines.writerows([*cells_of(sweep, row), row["run"]] for row in rows)
    Folder(folder).write(folder / "results.csv", text.getvalue())
    results = {"shoal": __version__, "sweep": to_plain(sweep), "metric": metric_of(sweep), "trials": rows}
    Folder(folder).write(folder / "results.json", json.dumps(results, indent=2))
    Folder(folder).write(folder / "report.html", _report(sweep, rows))


def cells_of(sweep: SweepFile, row: Mapping[str, Any]) -> list[Any]:
    """Return the cells of a trial in the table: number, state, score, iterations, and the value of each parameter."""
    values = [row["parameters"].get(name, "") for name in sweep.parameters]
    known = [row[name] for name in COLUMNS]
    return known + [json.dumps(each) if isinstance(each, list) else each for each in values]


def record_loss(folder: Path, rank: int | None, error: str, since: int) -> bool:
    """Record that the trial of a lost rank has lost its worker; return whether the rank had begun a trial.

    `since` is the size of the metrics when the launch began [bytes].
    """
    metrics = RunDir(folder).metrics_jsonl
    with refusing(metrics, "remove it"):
        lines = read_bytes(metrics)[since:].splitlines() if metrics.exists() else []
        rows = [row for row in (parse_object(line, {"rank": int}) for line in lines) if row["rank"] == rank]
    if rows and rows[-1]["state"] == "running":
        run = RunDir(folder / "trials" / f"{rows[-1]['trial']:04d}")
        Folder(folder).append(losses_of(run), error.replace("\n", " "))
    return bool(rows)


def losses_of(run: RunDir) -> Path:
    """Return the file with a line for each time that a trial has lost its worker."""
    return run.path / "losses.txt"


def _report(sweep: SweepFile, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page: the table, the scores in the order of the trials, and against each parameter."""
    header = [*COLUMNS, *sweep.parameters, "error"]
    content = f"<h1>Sweep {escape(sweep.name)}</h1><p>{escape(sweep.task)}: {escape(metric_of(sweep))}, "
    content += f"{escape(sweep.direction)}d. Hollow circles are pruned trials.</p>"
    content += table("trials", header, ([*map(shown, cells_of(sweep, row)), row["error"] or "-"] for row in rows))
    scored = [row for row in rows if row["state"] in ("finished", "pruned")]
    if scored:
        content += _plot("trial", [(row["trial"], row) for row in scored], log=False)
        for name, parameter in sweep.parameters.items():
            # Choices are placed by their number, which the label explains.
            known = [(row["parameters"][name], row) for row in scored]
            choices = [json.dumps(each) for each in parameter.choices]
            numbered = [(choices.index(json.dumps(value)) if choices else value, row) for value, row in known]
            label = f"{name}: {', '.join(f'{n} is {each}' for n, each in enumerate(choices))}" if choices else name
            content += _plot(label, numbered, log=parameter.log)
    return page(f"Sweep {sweep.name}", content)


def shown(cell: object) -> str:
    """Return a cell of the table as words."""
    return "-" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _plot(label: str, points: Sequence[tuple[float, Mapping[str, Any]]], *, log: bool) -> str:
    """Return a drawing of the scores against a value."""
    positions = [math.log10(x) if log else float(x) for x, _ in points]
    scores = [row["score"] for _, row in points]
    (left, right), (low, high) = ((min(values), max(values)) for values in (positions, scores))
    marks: list[str] = []
    for position, (_, row) in zip(positions, points, strict=True):
        x = _EDGE + (position - left) / (right - left or 1) * (_WIDTH - 2 * _EDGE)
        y = _HEIGHT - _EDGE - (row["score"] - low) / (high - low or 1) * (_HEIGHT - 2 * _EDGE)
        fill = ' fill="none"' if row["state"] == "pruned" else ""
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"{fill}><title>trial {row["trial"]}</title></circle>')
    bottom, end = _HEIGHT - _EDGE + 12, _WIDTH - _EDGE
    marks.append(f'<path d="M{_EDGE - 12} {_EDGE}V{bottom}H{end}" fill="none"/>')
    ends = [10**each if log else each for each in (left, right)]
    for x, y, anchor, text in (
        (_EDGE, bottom + 16, "middle", f"{ends[0]:.4g}"),
        (end, bottom + 16, "middle", f"{ends[1]:.4g}"),
        (_WIDTH / 2, bottom + 36, "middle", label),
        (_EDGE - 16, _HEIGHT - _EDGE, "end", f"{low:.4g}"),
        (_EDGE - 16, _EDGE + 4, "end", f"{high:.4g}"),
    ):
        marks.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>')
    name = escape(f"Score against {label}", quote=True)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">{"".join(marks)}</svg>'
