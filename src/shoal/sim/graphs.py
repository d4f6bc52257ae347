"""A sequence of kernel launches, recorded once and replayed for each step.

On a GPU the record is a CUDA graph; on the CPU it is Warp's own list of launches, replayed in C++. What is
launched is not decided here, and neither is when.
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import warp as wp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)


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
