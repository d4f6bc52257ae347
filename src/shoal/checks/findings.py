"""Findings of checks: one fact each, with its level and remedy."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from shoal.errors import MachineBusyError, ShoalError, UsageError, WorkerLostError

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

    def as_note(self) -> "Finding":
        """Return a problem as a note, where training does not depend on it."""
        return replace(self, level="note", transient=False) if self.level == "problem" else self


def ok(topic: str, truth: str) -> Finding:
    """Return a finding without consequences."""
    return Finding(topic=topic, level="ok", truth=truth)


def note(topic: str, truth: str, remedy: str = "") -> Finding:
    """Return a finding with which training works, perhaps not as expected."""
    return Finding(topic=topic, level="note", truth=truth, remedy=remedy)


def problem(topic: str, truth: str, remedy: str, *, transient: bool = False) -> Finding:
    """Return a finding with which training does not work as asked."""
    return Finding(topic=topic, level="problem", truth=truth, remedy=remedy, transient=transient)


def problem_of(topic: str, error: ShoalError) -> Finding:
    """Return an error as a problem; its remedy stands behind the last colon."""
    truth, _, remedy = str(error).rstrip(".").rpartition(": ")
    truth, remedy = (truth, remedy) if truth else (remedy, "")
    lines = "\n".join(filter(None, (error.details.strip(), truth)))
    return problem(topic, lines, remedy, transient=isinstance(error, WorkerLostError))


def refusal_of(findings: Iterable[Finding]) -> UsageError | MachineBusyError | None:
    """Return the error of the first problem that stays, or else of the first that may pass by; None without any."""
    problems = sorted((finding for finding in findings if finding.level == "problem"), key=lambda each: each.transient)
    if not problems:
        return None
    return (MachineBusyError if problems[0].transient else UsageError)(problems[0].sentence)
