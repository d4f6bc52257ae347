"""The report of an evaluation: one HTML page that needs neither network nor scripts."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shoal.plan.job import JobFiles
from shoal.text import join_command, or_dash

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid GrayText; padding: .3rem .8rem; text-align: left; }
td { overflow-wrap: anywhere; min-width: 4rem; }
.returns td:nth-child(2) { min-width: 14rem; }
th:first-child, td:first-child { min-width: 2rem; }
svg { display: block; width: 100%; max-width: 50rem; fill: currentColor; stroke: currentColor; }
svg text { stroke: none; font-size: 12px; }
video { max-width: 24rem; width: 100%; }
"""

_POLICY = ("default-src 'none'", "style-src 'unsafe-inline'", "media-src 'self' file:")
"""Whatever a name in the results holds, the page runs no script and loads videos only."""

_COLUMNS = ("#", "policy", "variation", "jobs", "episodes", "return", "length", "success", "ended")
_LEFT, _WIDTH, _LINE = 40, 800, 24
"""Of a plot: where its axis begins, its width, and the height of a row [px]."""


def report_html(results: Mapping[str, Any], out: Path) -> str:
    """Return the page about the results of `write_results`, to be written into `out`, whose videos it shows."""
    tasks: dict[str, list[Mapping[str, Any]]] = {}
    for group in results["groups"]:
        tasks.setdefault(group["task"], []).append(group)
    jobs = results["jobs"]
    states = ", ".join(f"{count} {state}" for state, count in Counter(job["state"] for job in jobs).items())
    about = f"{len(jobs)} jobs: {states}. Started: {results['started']}. Shoal {results['shoal']}."
    content = f"""<h1>Evaluation</h1><p>{escape(about)}</p>
<p><code>{escape(join_command(map(str, results["command"] or ())))}</code></p>
<p>Brackets hold {results["confidence"]:.0%} intervals: of a mean return, by the bootstrap (BCa), and of a success
rate, by Wilson's score. Episodes of all seeds are pooled. Means leave out returns that are not finite; success rates
leave out episodes whose success condition held at reset.</p>"""
    content += "".join(_task(task, groups) for task, groups in tasks.items())
    content += _troubles(jobs)
    content += _videos(jobs, out)
    return page("Evaluation", content)


def page(title: str, content: str) -> str:
    """Return a page of HTML that needs neither network nor scripts."""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{"; ".join(_POLICY)}">
<title>{escape(title)}</title><style>{_STYLE}</style></head>
<body>{content}</body></html>
"""


def table(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table, each of whose cells holds plain text."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table class="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _interval(values: Mapping[str, Any], mean: str, form: str) -> str:
    text = or_dash(values[mean], form)
    return text if values["low"] is None else f"{text} [{values['low']:{form}}, {values['high']:{form}}]"


def _task(task: str, groups: Sequence[Mapping[str, Any]]) -> str:
    rows = [(number, group, group["summary"]) for number, group in enumerate(groups, 1)]
    finished = [(number, summary) for number, _, summary in rows if summary is not None]
    text = f"<section><h2>{escape(task)}</h2>"
    text += table("returns", _COLUMNS, (_cells(number, group, summary) for number, group, summary in rows))
    text += _plot(
        [(number, summary["return"]) for number, summary in finished if summary["return"]["mean"] is not None]
    )
    for kind, heading in (("terms", "Reward terms"), ("metrics", "Metrics")):
        names = list(dict.fromkeys(name for _, summary in finished for name in summary[kind]))
        if names:
            means = (
                (number, *(or_dash(summary[kind].get(name), ".4g") for name in names)) for number, summary in finished
            )
            text += f"<h3>{heading}, means of episodes</h3>" + table(kind, ("#", *names), means)
    return text + "</section>"


def _cells(number: int, group: Mapping[str, Any], summary: Mapping[str, Any] | None) -> list[object]:
    policy = " ".join((group["policy"], *([json.dumps(group["config"])] if group["config"] else [])))
    policy += " (zero-action control)" if group["control"] else ""
    variation = ", ".join(f"{name}={json.dumps(value)}" for name, value in group["variation"].items())
    known = [number, policy, variation or "-", f"{len(group['finished'])} of {len(group['jobs'])}"]
    if summary is None:
        return [*known, *"-----"]
    returns, success = summary["return"], summary["success"]
    left_out = f", {returns['left_out']} left out" if returns["left_out"] else ""
    succeeded = "-" if success is None else _interval(success, "rate", ".1%")
    at_reset = f", {summary['met_at_reset']} at reset left out" if summary["met_at_reset"] else ""
    ended = ", ".join(f"{count} {how}" for how, count in summary["ended"].items())
    returned, length = _interval(returns, "mean", ".4g") + left_out, or_dash(summary["length"]["mean"], ".4g")
    return [*known, summary["episodes"], returned, length, succeeded + at_reset, ended]


def _plot(rows: Sequence[tuple[int, Mapping[str, float]]]) -> str:
    """Return a drawing of the mean returns and their intervals, under the numbers of the table's rows."""
    if not rows:
        return ""
    first, last = min(row["low"] for _, row in rows), max(row["high"] for _, row in rows)
    scale = (_WIDTH - 2 * _LEFT) / (last - first or 1.0)
    marks: list[str] = []
    for index, (number, row) in enumerate(rows):
        y = _LINE * (index + 0.5)
        low, mean, high = (_LEFT + (row[name] - first) * scale for name in ("low", "mean", "high"))
        marks.append(f'<text x="0" y="{y + 4}">{number}</text><circle cx="{mean:.1f}" cy="{y}" r="4"/>')
        marks.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke-width="2"/>')
    y = _LINE * len(rows)
    marks.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{y}" y2="{y}"/>')
    for x, value in ((_LEFT, first), (_WIDTH - _LEFT, last)):
        marks.append(f'<text x="{x}" y="{y + 16}" text-anchor="middle">{value:.4g}</text>')
    shapes = "".join(marks)
    return f'<svg viewBox="0 0 {_WIDTH} {y + _LINE}" role="img" aria-label="Mean return of each row">{shapes}</svg>'


def _troubles(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the jobs that have not finished, and of those with failed attempts."""
    shown = [job for job in jobs if job["state"] != "finished" or job["failed_attempts"]]
    if not shown:
        return ""
    errors = [(str(job["last_error"] or "").strip().splitlines() or ["-"])[-1] for job in shown]
    rows = (
        (job["name"], job["state"], job["failed_attempts"], error) for job, error in zip(shown, errors, strict=True)
    )
    return "<h2>Failures</h2>" + table("failures", ("job", "state", "failed attempts", "last error"), rows)


def _videos(jobs: Sequence[Mapping[str, Any]], out: Path) -> str:
    names = [job["name"] for job in jobs if JobFiles(out / job["name"]).video.is_file()]
    videos = (
        f"<figure><figcaption>{escape(name)}</figcaption>"
        f'<video controls preload="metadata" src="./{quote(name)}/episode_000000.mp4"></video></figure>'
        for name in names
    )
    return f"<h2>Videos</h2>{''.join(videos)}" if names else ""
