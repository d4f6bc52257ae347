"""Every collective of this process as a phase of its own, so that a rank that waits is told from one that works.

torch's functions are wrapped where all callers find them, in the module `torch.distributed`: most of an iteration's
collectives are asked for inside rsl_rl. With NCCL a function returns before its collective is done, and the rank waits
later, when it reads a number back; what the device has come to is then told by events around each collective.
"""

from __future__ import annotations

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


@contextmanager
def marked_collectives(beat: Heartbeat, device: str) -> Iterator[None]:
    """Let `beat` tell of each collective on `device` while the body runs, and put torch's functions back."""
    stream = _Stream(device) if device.startswith("cuda") else None
    usual: dict[str, Callable[..., Any]] = {name: getattr(dist, name) for name in _COLLECTIVES}
    for name, function in usual.items():
        setattr(dist, name, _marked(function, beat, stream))
    if stream is not None:
        beat.waits_on_device = stream.waits
    try:
        yield
    finally:
        beat.waits_on_device = None
        for name, function in usual.items():
            setattr(dist, name, function)


def _marked(function: Callable[..., Any], beat: Heartbeat, stream: _Stream | None) -> Callable[..., Any]:
    """Return `function` as a phase. After an error the phase stays: that is where this rank ended."""

    @wraps(function)
    def collective(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401  Whatever torch takes and returns.
        before = beat.enter("collective")
        if stream is None:
            result = function(*arguments, **named)
        else:
            stream.reached.record()
            result = function(*arguments, **named)
            stream.passed.record()
        beat.enter(before)
        return result

    return collective


class _Stream:
    """How far this rank's stream has come: events before and after the newest collective."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self.reached = torch.cuda.Event()
        self.passed = torch.cuda.Event()

    def waits(self) -> bool:
        """Whether the device has reached the newest collective, and not passed it. Does not wait for the device."""
        torch.cuda.set_device(self._device)  # The watchdog's thread asks; it must not wake another rank's GPU.
        return self.reached.query() and not self.passed.query()
