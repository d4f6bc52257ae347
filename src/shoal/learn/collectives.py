"""Instrumented collectives: each is a timed phase of the heartbeat, so that a waiting rank differs from a working one.

torch's functions are wrapped in the module `torch.distributed`, as rsl_rl starts most of an iteration's collectives.
With NCCL a function returns before its collective is done, and the rank waits later, when it reads a number back: CUDA
events around each collective tell how long it took and whether the device still waits in it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from shoal.heartbeat import Heartbeat

_COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single"),
    *("barrier", "broadcast", "broadcast_object_list", "gather"),
    *("reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter"),
)


class CollectiveTimer:
    """Sums up the time that this rank has spent in collectives: the host's, or with a GPU the device's."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Durations of collectives that are done [s]."""
        self.events: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        """Before and after each collective that the device runs, in order."""
        self.sizes = Counter[int]()
        """How many collectives there were, by the numbers that they sent."""
        self.last_sizes = self.sizes
        """The same between the last two calls of `take`."""

    def take(self) -> float:
        """Return the time since the last call [s]. Does not synchronise: unfinished collectives count next time."""
        self.last_sizes, self.sizes = self.sizes, Counter[int]()
        while self.events and self.events[0][1].query():
            before, after = self.events.popleft()
            self.seconds += before.elapsed_time(after) / 1000
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@contextmanager
def instrumented_collectives(beat: Heartbeat, timer: CollectiveTimer, device: str) -> Iterator[None]:
    """Report each collective on `device` to `beat` and `timer` during the body, then restore torch's functions."""
    events = _Events(device) if device.startswith("cuda") else None
    original: dict[str, Callable[..., Any]] = {name: getattr(dist, name) for name in _COLLECTIVES}
    for name, function in original.items():
        setattr(dist, name, _instrumented(function, beat, timer, events))
    if events is not None:
        beat.waits_on_device = events.is_waiting
    try:
        yield
    finally:
        beat.waits_on_device = None
        for name, function in original.items():
            setattr(dist, name, function)


def _instrumented(
    function: Callable[..., Any], beat: Heartbeat, timer: CollectiveTimer, events: _Events | None
) -> Callable[..., Any]:
    """Return `function` as a timed phase. After an error the phase stays: it is where this rank ended."""

    @wraps(function)
    def collective(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401  Whatever torch takes and returns.
        phase = beat.enter("collective")
        timer.sizes[max((each.numel() for each in arguments if isinstance(each, torch.Tensor)), default=1)] += 1
        if events is None:
            started = time.perf_counter()
            result = function(*arguments, **named)
            timer.seconds += time.perf_counter() - started
        else:
            events.renew()
            events.before.record()
            result = function(*arguments, **named)
            events.after.record()
            timer.events.append((events.before, events.after))
        beat.enter(phase)
        return result

    return collective


class _Events:
    """CUDA events before and after the newest collective of this rank's stream."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self.renew()

    def renew(self) -> None:
        """Create new events: those of the previous collective are still to be read."""
        self.before = torch.cuda.Event(enable_timing=True)
        self.after = torch.cuda.Event(enable_timing=True)

    def is_waiting(self) -> bool:
        """Whether the device is in the newest collective. Does not synchronise."""
        torch.cuda.set_device(self._device)  # Called by the watchdog's thread, which must not wake another GPU.
        return self.before.query() and not self.after.query()
