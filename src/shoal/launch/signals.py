"""Signals that ask a run to stop, as flags that are read between iterations, never as exceptions in one's middle."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shoal.errors import InterruptedRunError, TerminatedRunError
from shoal.launch.exit_records import resume_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.plan.rundir import RunDir

ERRORS: dict[str, type[InterruptedRunError | TerminatedRunError]] = {
    "SIGINT": InterruptedRunError,
    "SIGHUP": TerminatedRunError,  # The terminal was closed.
    "SIGUSR1": TerminatedRunError,  # SLURM's usual warning before a job's time is over.
    "SIGTERM": TerminatedRunError,
}
"""The signals that end a run in order, and the error, with its exit code, that tells of each.

When several came, the first of this order is named: launchers send a SIGTERM after all others.
"""

STOPPING = frozenset(signal.Signals[name] for name in ERRORS)
"""The same, as the system numbers them."""


class StopRequests:
    """How often this process was asked to stop, by the signal's name."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(ERRORS, 0)

    def flags(self) -> dict[str, bool]:
        """Return which signals have come, in a fixed order."""
        return {name: count > 0 for name, count in self.counts.items()}

    @property
    def first(self) -> str | None:
        """The signal that came, if any; when several came, the first in the order of `ERRORS`."""
        return next((name for name, count in self.counts.items() if count), None)


def heard(name: str) -> str:
    """Say that a signal has come and what happens now."""
    return f"{name}: stopping after this iteration, with a checkpoint. Ctrl-C again stops at once."


def ended_at_once(name: str, run: RunDir) -> InterruptedRunError | TerminatedRunError:
    """Return the error of a run that was not given the time for a checkpoint."""
    return ERRORS[name](f"{name} ended the run at once. {resume_hint(run)}")


@contextmanager
def stop_requests(*, insist: bool, announce: Callable[[str], None] | None = None) -> Iterator[StopRequests]:
    """Count these signals while the body runs; outside the main thread, where Python forbids it, count none.

    A SIGHUP that is ignored stays ignored, as `nohup` wants it.

    Args:
        insist: Whether a second SIGINT raises KeyboardInterrupt at once. Spawned workers are told several times by
            their launcher and must be patient. The other signals are sent by programs, which repeat themselves.
        announce: Called with the name of the first signal, in a thread of its own: the signal may have come in the
            middle of a print.
    """
    requests = StopRequests()
    previous: dict[int, Any] = {}

    def note(number: int, _frame: object) -> None:
        name = signal.Signals(number).name
        if announce is not None and requests.first is None:
            threading.Thread(target=announce, args=(name,), daemon=True).start()
        requests.counts[name] += 1
        if insist and name == "SIGINT":
            signal.signal(number, previous[number])

    if threading.current_thread() is threading.main_thread():
        for name in requests.counts:
            number = signal.Signals[name]
            if name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, note)
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
