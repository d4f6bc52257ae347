"""Trainings inside the test's own process, through the functions that the `train` command calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.commands import SMALL

from shoal.cli.parse import parse_train
from shoal.commands.train import Outcome, make_plan, train
from shoal.launch.rank import ProgressReporter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shoal.errors import ShoalError
    from shoal.plan.training import TrainPlan


class Listener(ProgressReporter):
    """A view that remembers."""

    def __init__(self) -> None:
        """Begin with nothing heard."""
        self.rows: list[dict[str, float]] = []
        self.lines: list[str] = []

    def on_row(self, row: Mapping[str, float]) -> None:
        """Take the metrics of one more iteration."""
        self.rows.append(dict(row))

    def on_line(self, line: str) -> None:
        """Take one line of output."""
        self.lines.append(line)


def never_abort(error: ShoalError) -> None:
    """Nothing gets stuck in a test's own process: its watchdog would end the tests."""
    raise AssertionError(error)


def plan_of(log_root: Path, *words: str, small: Sequence[str] = SMALL) -> TrainPlan:
    """Plan what `train WORDS` means, with a small training's flags."""
    return make_plan(parse_train([*words, *small, "--log-root", str(log_root)]))


def carry_out(log_root: Path, *words: str, listener: Listener | None = None, small: Sequence[str] = SMALL) -> Outcome:
    """Do what `train WORDS` does, with a small training's flags."""
    return train(plan_of(log_root, *words, small=small), listener or Listener(), never_abort)
