"""Signals that ask a run to stop, counted as flags that are read between iterations, never raised inside one."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shoal.errors import InterruptedRunError, TerminatedRunError

ERRORS: dict[str, type[InterruptedRunError | TerminatedRunError]] = {
    "SIGINT": InterruptedRunError,
    "SIGHUP": TerminatedRunError,  # The terminal was closed.
    "SIGUSR1": TerminatedRunError,  # SLURM's usual warning before a job's time is over.
    "SIGTERM": TerminatedRunError,
}
"""The error, with its exit code, of each signal that ends a run after a checkpoint.

When several came, the first of this order is reported: launchers send a SIGTERM after all others.
"""

STOPPING = frozenset(signal.Signals[name] for name in ERRORS)
"""The same signals by number."""


STOPPING_TRAINING = "stopping after this iteration, with a checkpoint. Ctrl-C again stops at once."
"""How a training acknowledges a stop signal."""

_SAME_KEY_S = 0.3
"""SIGINTs within this time are one: `timeout` signals its child, and then the group of both."""


class StopRequests:
    """Number of stop signals that this process has received, by name."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(ERRORS, 0)
        self.at_once = False
        """Whether a signal raises KeyboardInterrupt with its name, as long as nothing would be lost."""
        self._last_key = -math.inf

    def repeats_key(self) -> bool:
        """Whether a SIGINT that came now is the same key press as the last."""
        last, self._last_key = self._last_key, time.monotonic()
        return self._last_key - last < _SAME_KEY_S

    def flags(self) -> dict[str, bool]:
        """Return which signals were received, in a fixed order."""
        return {name: count > 0 for name, count in self.counts.items()}

    @property
    def first(self) -> str | None:
        """The received signal that comes first in `ERRORS`; None without any."""
        return next((name for name, count in self.counts.items() if count), None)


@contextmanager
def stop_requests(*, insist: bool, announce: Callable[[str], None] | None = None) -> Iterator[StopRequests]:
    """Count stop signals during the body. Outside the main thread, where Python forbids handlers, count none.

    An ignored SIGHUP stays ignored, as `nohup` requires.

    Args:
        insist: Whether a second SIGINT raises KeyboardInterrupt. Launchers repeat signals to their workers, and
            programs repeat all signals but SIGINT.
        announce: Called with the name of the first signal, in its own thread: the handler may interrupt a print.
    """
    requests = StopRequests()
    previous: dict[int, Any] = {}

    def count(number: int, _frame: object) -> None:
        name, is_first = signal.Signals(number).name, requests.first is None
        if name == "SIGINT" and requests.repeats_key():
            return
        requests.counts[name] += 1
        if requests.at_once or (insist and requests.counts["SIGINT"] > 1):
            if name != "SIGINT":
                signal.signal(number, previous[number])
            raise KeyboardInterrupt(name)
        if announce is not None and is_first:  # Last: a second signal may answer it at once.
            threading.Thread(target=announce, args=(name,), daemon=True).start()

    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, count)
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
