"""Findings of checks: one fact each, with its level and remedy."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]
"""With a `note` training may work differently than expected; with a `problem` it would not work as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check: what is true, and what to do, as clauses without a full stop."""

    topic: str
    level: Level
    truth: str
    remedy: str = ""
    transient: bool = False
    """Whether a problem may go away by itself, because another process causes it."""

    @property
    def sentence(self) -> str:
        """What is true and what to do."""
        return f"{self.truth}: {self.remedy}." if self.remedy else f"{self.truth}."


def ok(topic: str, truth: str) -> Finding:
    """Return a finding without consequences."""
    return Finding(topic=topic, level="ok", truth=truth)


def note(topic: str, truth: str, remedy: str = "") -> Finding:
    """Return a finding with which training works, perhaps not as expected."""
    return Finding(topic=topic, level="note", truth=truth, remedy=remedy)


def problem(topic: str, truth: str, remedy: str, *, transient: bool = False) -> Finding:
    """Return a finding with which training does not work as asked."""
    return Finding(topic=topic, level="problem", truth=truth, remedy=remedy, transient=transient)


def size(count: float) -> str:
    """Return a number of bytes in words, such as ``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:  # noqa: PLR2004  the base of all these units
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"  # noqa: PLR2004
        count /= 1024
    return f"{count:.1f} TiB"
