"""Draws learning curves from the metrics of runs: mean episode return over environment steps, one line a run.

`--metric NAME --unit TEXT` draws another column of the metrics instead.

    python docs/plot_learning_curves.py --out docs/images/NAME.svg --title "..." LABEL=RUN_DIR [LABEL=RUN_DIR ...]

Runs with the same label share a colour, which distinguishes seeds from settings. With `--panels` each label has a panel
of its own instead, for tasks whose returns cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = "environment steps [millions]"
Curve = tuple[list[float], list[float]]
COLUMNS = 4
"""Panels beside each other."""


def main() -> None:
    """Read the runs and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--title", required=True)
    parser.add_argument("--max-steps", type=float, default=None, help="cut the figure here [millions of steps]")
    parser.add_argument("--metric", default="Train/mean_reward", help="the column of metrics.jsonl that is drawn")
    parser.add_argument("--unit", default="mean episode return", help="what is written beside the axis")
    parser.add_argument("--panels", action="store_true", help="draw each label in a panel of its own")
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN_DIR")
    asked = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "shoal"  # The same figure for the same runs.
    curves: dict[str, list[Curve]] = {}
    for word in asked.runs:
        label, _, directory = word.partition("=")
        curves.setdefault(label, []).append(read_curve(Path(directory), asked.metric))
    if asked.panels:
        figure = draw_panels(curves, asked.max_steps, asked.unit)
        figure.suptitle(asked.title)
    else:
        figure = draw_together(curves, asked.max_steps, asked.unit)
        figure.axes[0].set_title(asked.title)
    figure.tight_layout()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(asked.out, metadata={"Date": None})


def draw_together(curves: dict[str, list[Curve]], max_steps: float | None, unit: str) -> Figure:
    """Return a figure with all runs in one panel, a colour for each label."""
    figure, axes = plt.subplots(figsize=(7.0, 4.0))
    for number, (label, seeds) in enumerate(curves.items()):
        for seed, curve in enumerate(seeds):
            axes.plot(*curve, color=f"C{number}", label=None if seed else label, linewidth=1.2)
    axes.set(xlabel=STEPS, ylabel=unit)
    axes.set_xlim(0, max_steps)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def draw_panels(curves: dict[str, list[Curve]], max_steps: float | None, unit: str) -> Figure:
    """Return a figure with a panel for each label, and axes of its own for each panel."""
    rows = math.ceil(len(curves) / COLUMNS)
    figure, grid = plt.subplots(rows, COLUMNS, figsize=(9.0, 2.2 * rows), squeeze=False)
    panels = grid.flatten()
    for axes, (label, seeds) in zip(panels, curves.items(), strict=False):
        for curve in seeds:
            axes.plot(*curve, color="C0", linewidth=1.2)
        axes.set_title(label, fontsize="small")
        axes.set_xlim(0, max_steps)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize="small")
    for axes in panels[len(curves) :]:
        axes.remove()
    figure.supxlabel(STEPS)
    figure.supylabel(unit)
    return figure


def read_curve(run: Path, metric: str) -> Curve:
    """Return environment steps in millions, and the metric, of the iterations that knew it."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    known = [row for row in rows if row.get(metric) is not None]
    return [row["Train/total_steps"] / 1e6 for row in known], [row[metric] for row in known]


if __name__ == "__main__":
    main()
