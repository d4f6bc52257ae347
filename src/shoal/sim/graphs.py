"""A sequence of kernel launches, recorded once and replayed for each step.

On a GPU the record is a CUDA graph; on the CPU it is Warp's own list of launches, replayed in C++. What is
launched is not decided here, and neither is when. A step that computes on the host in between is a `Script`.
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
import warp as wp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

logger = logging.getLogger(__name__)

Stage: TypeAlias = "Callable[[], None] | HostCall"
"""A part of a step: a function that launches kernels and does nothing else, or a `HostCall`."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """A part of a step that computes on the host, and is called each time. It has waited for nothing it needs."""

    run: Callable[[], None]

    def __call__(self) -> None:
        """Compute."""
        self.run()


class Script:
    """Replays a step whose stages are recorded as far as possible: all that lie between two host calls as one."""

    def __init__(self, stages: Sequence[Stage], device: wp.Device) -> None:
        """Record.

        Args:
            stages: What is done, in order. See `Program` for what launches.
            device: Where the kernels run.
        """
        self._parts: list[HostCall | Program] = []
        launching: list[Callable[[], None]] = []
        for stage in (*stages, None):
            if stage is not None and not isinstance(stage, HostCall):
                launching.append(stage)
                continue
            if launching:
                self._parts.append(Program(partial(_run_all, launching), device))
                launching = []
            if stage is not None:
                self._parts.append(stage)

    @property
    def is_recorded(self) -> bool:
        """Whether everything is recorded that can be."""
        return all(part.is_recorded for part in self._parts if isinstance(part, Program))

    def replay(self) -> None:
        """Run the recorded kernels and the host calls."""
        for part in self._parts:
            if isinstance(part, Program):
                part.replay()
            else:
                part()


def _run_all(stages: Iterable[Stage]) -> None:
    for stage in stages:
        stage()


class Program:
    """Replays what `launches` launched while it was recorded.

    Recording calls `launches` once, without running a kernel. A replay launches the same kernels on the same
    arrays with the same numbers, whatever has become of Python's variables in between. Where recording is
    impossible, each replay calls `launches` again, which is slower and does the same.

    Measured on one core of a 2.5 GHz Xeon with Warp 1.19, five launches over one environment, so that nearly
    all of it is overhead: plain 88 us, recorded commands (``record_cmd=True``) 14 us, this replay 2 us.
    """

    def __init__(self, launches: Callable[[], None], device: wp.Device) -> None:
        """Record.

        Args:
            launches: Launches kernels on `device` and does nothing else. Their modules must have been loaded,
                by a first plain call: compiling inside a CUDA capture is not possible with every driver.
            device: Where the kernels run.
        """
        self._launches = launches
        self._device = device
        self._stream: wp.Stream | None = None
        self._graph: wp.Graph | None = None
        try:
            with _no_garbage_collection(), wp.ScopedCapture(device=device) as capture:
                launches()
            self._graph = capture.graph
        except RuntimeError as error:
            logger.warning(
                "The step could not be recorded on %s (%s): it launches its kernels one by one, which is slower.",
                device,
                str(error).strip(),
            )

    @property
    def is_recorded(self) -> bool:
        """Whether a replay costs one launch, and not one for each kernel."""
        return self._graph is not None

    def replay(self) -> None:
        """Run the recorded kernels. On a GPU they queue up behind torch's work, and the host does not wait."""
        if self._graph is None:
            with torch_stream(self._device):
                self._launches()
        elif self._device.is_cuda:
            self._stream = _stream_of_torch(self._device, known=self._stream)
            wp.capture_launch(self._graph, stream=self._stream)
        else:
            wp.capture_launch(self._graph)


@contextmanager
def torch_stream(device: wp.Device) -> Iterator[None]:
    """Queue the body's kernels on the stream that torch works on now. On the CPU nothing is queued.

    On the stream that also writes the inputs and reads the results, order needs no event and no waiting.
    """
    if not device.is_cuda:
        yield
        return
    with wp.ScopedStream(_stream_of_torch(device), sync_enter=False):
        yield


def _stream_of_torch(device: wp.Device, known: wp.Stream | None = None) -> wp.Stream:
    """Return torch's current stream in Warp's words: `known`, if it is that one."""
    current = torch.cuda.current_stream(device.ordinal)
    if known is not None and (known.cuda_stream or 0) == current.cuda_stream:
        return known
    return wp.stream_from_torch(current)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep the collector from freeing GPU memory in the middle of a capture, which would spoil it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
