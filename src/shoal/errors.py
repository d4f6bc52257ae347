"""The errors that Shoal raises, each with the exit code of the command that it ends.

A message is one string that says what was asked, what is true, and what to do.
"""

import difflib
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import ClassVar


class ShoalError(Exception):
    """Base of every error that Shoal raises on purpose."""

    exit_code: ClassVar[int] = 1
    """Exit code of the command that this error ends."""

    def __init__(self, message: str, *, details: str = "") -> None:
        """Set the message, which is printed last, and details above it, such as the traceback of a rank."""
        super().__init__(message)
        self.details = details


class UsageError(ShoalError):
    """What was asked cannot be done: a bad flag, GPU, configuration or directory. Nothing was spawned or written."""

    exit_code = 2


class NoPictureError(UsageError):
    """The environments of a task have nothing that could be drawn."""


class TrainingFailedError(ShoalError):
    """The training itself failed on some rank: an exception in user code, NaN, a full disk."""


class ReplicasDivergedError(TrainingFailedError):
    """Ranks that must hold equal values do not."""


class WorkerLostError(ShoalError):
    """A worker or a node was lost (killed, crashed, hung): the same command is worth trying again."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h

    def __init__(self, message: str, *, details: str = "", rank: int | None = None) -> None:
        """Set the message, details, and the rank that was lost, if one is known."""
        super().__init__(message, details=details)
        self.rank = rank


class MachineBusyError(ShoalError):
    """Other processes hold what was asked for: the same command is worth trying again later."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class InterruptedRunError(ShoalError):
    """Ctrl-C ended the run, after a checkpoint."""

    exit_code = 130  # 128 + SIGINT


class TerminatedRunError(ShoalError):
    """SIGTERM, SIGHUP or SIGUSR1 ended the run, after a checkpoint."""

    exit_code = 143  # 128 + SIGTERM


@contextmanager
def refusing_os_errors(what: str, remedy: str, kind: type[ShoalError] = UsageError) -> Generator[None]:
    """Turn an OSError of the body into one sentence: what cannot be done, why, and the remedy.

    Raises:
        ShoalError: The body has raised an OSError. It is of the given kind.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{what} ({error.strerror or error}): {remedy}.") from error


def reason_of(error: Exception) -> str:
    """Return what an exception says, with its class unless it is one of Shoal's own."""
    return str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"


def shown(numbers: Sequence[int]) -> str:
    """Return the first eight numbers of a list, such as ``0, 3, 5, ...``."""
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")  # noqa: PLR2004


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 worker`` or ``4,096 environments``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` with the nearest of `names`, or an empty string when none is near."""
    spelled = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), spelled, n=1, cutoff=0.6)
    return f" Did you mean '{spelled[near[0]]}'?" if near else ""
