"""Every collective of this process as a timed phase of its own: a rank that waits is told from one that works.

torch's functions are wrapped where all callers find them, in the module `torch.distributed`: most of an iteration's
collectives are asked for inside rsl_rl. With NCCL a function returns before its collective is done, and the rank waits
later, when it reads a number back; what the device has come to, and how long it took, is then told by events around
each collective.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.heartbeat import Heartbeat

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)


class Spent:
    """The time that this rank has spent in collectives: the host's, or with a GPU the device's."""

    def __init__(self) -> None:
        """Begin with none."""
        self._seconds = 0.0
        self._events: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()  # Around collectives, in order.

    def add(self, seconds: float) -> None:
        """Count a collective that took so long [s]."""
        self._seconds += seconds

    def add_between(self, reached: torch.cuda.Event, passed: torch.cuda.Event) -> None:
        """Count a collective that the device has done, or will do, between two events."""
        self._events.append((reached, passed))

    def take(self) -> float:
        """Return the time spent since the last call [s]. Does not wait for the device: what it has not done is left."""
        while self._events and self._events[0][1].query():
            reached, passed = self._events.popleft()
            self._seconds += reached.elapsed_time(passed) / 1000
        seconds, self._seconds = self._seconds, 0.0
        return seconds


@contextmanager
def marked_collectives(beat: Heartbeat, spent: Spent, device: str) -> Iterator[None]:
    """Let `beat` and `spent` know each collective on `device` while the body runs, and put torch's functions back."""
    stream = _Stream(device) if device.startswith("cuda") else None
    usual: dict[str, Callable[..., Any]] = {name: getattr(dist, name) for name in _COLLECTIVES}
    for name, function in usual.items():
        setattr(dist, name, _marked(function, beat, spent, stream))
    if stream is not None:
        beat.waits_on_device = stream.waits
    try:
        yield
    finally:
        beat.waits_on_device = None
        for name, function in usual.items():
            setattr(dist, name, function)


def _marked(function: Callable[..., Any], beat: Heartbeat, spent: Spent, stream: _Stream | None) -> Callable[..., Any]:
    """Return `function` as a timed phase. After an error the phase stays: that is where this rank ended."""

    @wraps(function)
    def collective(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401  Whatever torch takes and returns.
        before = beat.enter("collective")
        if stream is None:
            started = time.perf_counter()
            result = function(*arguments, **named)
            spent.add(time.perf_counter() - started)
        else:
            stream.renew()
            stream.reached.record()
            result = function(*arguments, **named)
            stream.passed.record()
            spent.add_between(stream.reached, stream.passed)
        beat.enter(before)
        return result

    return collective


class _Stream:
    """How far this rank's stream has come: events before and after the newest collective."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self.renew()

    def renew(self) -> None:
        """Begin with the next collective: the events around the one before are still to be read."""
        self.reached = torch.cuda.Event(enable_timing=True)
        self.passed = torch.cuda.Event(enable_timing=True)

    def waits(self) -> bool:
        """Whether the device has reached the newest collective, and not passed it. Does not wait for the device."""
        torch.cuda.set_device(self._device)  # The watchdog's thread asks; it must not wake another rank's GPU.
        return self.reached.query() and not self.passed.query()
