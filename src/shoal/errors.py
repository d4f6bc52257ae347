"""The one family of errors that Shoal raises, each with the exit code it ends a command with.

A message is one string that says what was asked, what is true, and what to do. Rendering lives in `shoal.cli`.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class ShoalError(Exception):
    """Base of every error that Shoal raises on purpose."""

    exit_code: ClassVar[int] = 1
    """What the command exits with when this error ends it."""

    def __init__(self, message: str, *, details: str = "") -> None:
        """Say what happened.

        Args:
            message: What was asked, what is true, what to do; the last line that a person reads.
            details: What is shown above it, such as the traceback of the rank that failed.
        """
        super().__init__(message)
        self.details = details


class UsageError(ShoalError):
    """What was asked cannot be done: a bad flag, GPU, configuration or directory. Nothing was spawned or written."""

    exit_code = 2


class TrainingFailedError(ShoalError):
    """The training itself failed on some rank: an exception in user code, NaN, a full disk."""

    exit_code = 1


class ReplicasDivergedError(TrainingFailedError):
    """Ranks that must hold equal values do not."""


class WorkerLostError(ShoalError):
    """A worker or a machine was lost (killed, crashed, hung): the same command is worth trying again."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h

    def __init__(self, message: str, *, details: str = "", rank: int | None = None, host: str | None = None) -> None:
        """Say what happened.

        Args:
            message: The last line that a person reads.
            details: What is shown above it.
            rank: The rank that was lost, where it is known.
            host: The machine that was lost, if a whole one was.
        """
        super().__init__(message, details=details)
        self.rank = rank
        self.host = host


class MachineBusyError(ShoalError):
    """The machine could do what was asked, but not now: other processes hold what it needs."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class InterruptedRunError(ShoalError):
    """Ctrl-C ended the run, after a checkpoint."""

    exit_code = 130  # 128 + SIGINT


class TerminatedRunError(ShoalError):
    """SIGTERM, or a signal that is taken as such, ended the run, after a checkpoint."""

    exit_code = 143  # 128 + SIGTERM


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a sentence that suggests the nearest of `names`, or an empty string when none is near.

    Returns:
        ``" Did you mean 'x'?"`` with a leading space, ready to follow another sentence.
    """
    spelled = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), spelled, n=1, cutoff=0.6)
    return f" Did you mean '{spelled[near[0]]}'?" if near else ""
