"""Draws learning curves from the metrics of runs: mean episode return over environment steps, one line a run.

    python docs/plot_learning_curves.py --out docs/images/NAME.svg --title "..." LABEL=RUN_DIR [LABEL=RUN_DIR ...]

Runs with the same label share a colour, so that seeds can be told from settings.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt


def main() -> None:
    """Read the runs and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--title", required=True)
    parser.add_argument("--max-steps", type=float, default=None, help="cut the figure here [millions of steps]")
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN_DIR")
    asked = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "shoal"  # The same figure for the same runs.
    figure, axes = plt.subplots(figsize=(7.0, 4.0))
    colours: dict[str, str] = {}
    for word in asked.runs:
        label, _, directory = word.partition("=")
        steps, returns = read_curve(Path(directory))
        first = label not in colours
        colours.setdefault(label, f"C{len(colours)}")
        axes.plot(steps, returns, color=colours[label], label=label if first else None, linewidth=1.2)
    axes.set(xlabel="environment steps [millions]", ylabel="mean episode return", title=asked.title)
    axes.set_xlim(0, asked.max_steps)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(asked.out, metadata={"Date": None})


def read_curve(run: Path) -> tuple[list[float], list[float]]:
    """Return environment steps in millions, and mean episode returns, of the iterations that knew one."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    known = [row for row in rows if row.get("Train/mean_reward") is not None]
    return [row["Train/total_steps"] / 1e6 for row in known], [row["Train/mean_reward"] for row in known]


if __name__ == "__main__":
    main()
