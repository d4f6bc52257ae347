"""Captured graphs: a sequence of kernel launches, captured once and replayed for each step.

On a GPU this is a CUDA graph; on the CPU it is Warp's own list of launches, replayed in C++. What is launched, and
when, is decided elsewhere. A step that computes on the host between kernels is a `Script`.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import warp as wp

from shoal.errors import ShoalError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

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

    def __init__(self, stages: Sequence[Stage], device: wp.Device, *, captures: bool = True) -> None:
        """Capture.

        Args:
            stages: What is done, in order. See `Program` for what launches.
            device: Where the kernels run.
            captures: Whether kernels are captured at all.
        """
        self._parts: list[HostCall | Program] = []
        launching: list[Callable[[], None]] = []
        for stage in (*stages, None):
            if stage is not None and not isinstance(stage, HostCall):
                launching.append(stage)
                continue
            if launching:
                self._parts.append(Program(partial(_run_all, launching), device, captures=captures))
                launching = []
            if stage is not None:
                self._parts.append(stage)

    @property
    def is_recorded(self) -> bool:
        """Whether everything is captured that can be."""
        return all(part.is_recorded for part in self._parts if isinstance(part, Program))

    @property
    def launches(self) -> list[Launch]:
        """What was captured, in order."""
        return list(chain.from_iterable(part.captured for part in self._parts if isinstance(part, Program)))

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
    """Replays what `launches` launched while it was captured.

    Capturing calls `launches` once, without running a kernel. A replay launches the same kernels on the same arrays
    with the same numbers, whatever has become of Python's variables in between.

    Measured on one core of a 2.5 GHz Xeon with Warp 1.19, five launches over one environment, so that nearly
    all of it is overhead: plain 88 us, recorded commands (``record_cmd=True``) 14 us, this replay 2 us.
    """

    def __init__(self, launches: Callable[[], None], device: wp.Device, *, captures: bool = True) -> None:
        """Capture.

        Args:
            launches: Launches kernels on `device` and does nothing else. Their modules must have been loaded,
                by a first plain call: compiling inside a CUDA capture is not possible with every driver.
            device: Where the kernels run.
            captures: Whether to capture. If not, each replay calls `launches` again.

        Raises:
            ShoalError: The launches cannot be captured.
        """
        self._launches = launches
        self._device = device
        self._stream: wp.Stream | None = None
        self._graph: wp.Graph | None = None
        self.captured: Sequence[Launch] = ()
        """What was captured, in order."""
        if not captures:
            return
        log = _LaunchLog()
        try:
            with _no_garbage_collection(), wp.ScopedCapture(device=device) as capture, log:
                launches()
        except RuntimeError as error:
            raise refuse_capture(device, error) from error
        self._graph = capture.graph
        self.captured = log.entries

    @property
    def is_recorded(self) -> bool:
        """Whether a replay costs one launch, and not one for each kernel."""
        return self._graph is not None

    def replay(self) -> None:
        """Run the captured kernels. On a GPU they queue up behind torch's work, and the host does not wait."""
        if self._graph is None:
            with torch_stream(self._device):
                self._launches()
        elif self._device.is_cuda:
            self._stream = _stream_of_torch(self._device, known=self._stream)
            wp.capture_launch(self._graph, stream=self._stream)
        else:
            wp.capture_launch(self._graph)


def refuse_capture(device: wp.Device, error: RuntimeError) -> ShoalError:
    """Return the error of launches that cannot be captured, or not be replayed."""
    cause = str(error).strip().rstrip(".")
    return ShoalError(
        f"The step cannot be captured as a graph on {device.alias} ({cause}): `shoal doctor` checks the driver. Pass "
        "--env.no-step-graph to launch its kernels one by one, which is much slower."
    )


@dataclass(frozen=True, slots=True)
class Launch:
    """One captured launch of a kernel."""

    kernel: wp.Kernel
    dim: tuple[int, ...]
    block_dim: int
    arguments: tuple[tuple[Any, ...], ...]
    """Of each argument its kind and its value. Of an array: address, shape, strides and type."""

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.key)


class _LaunchLog(wp.Tape):
    """Keeps a description of each launch in its body, and no reference to its arrays, which are freed as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Launch] = []

    def record_launch(
        self,
        kernel: wp.Kernel,
        dim: int | Sequence[int],
        max_blocks: int,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        device: wp.Device,
        block_dim: int = 0,
        metadata: object = None,
    ) -> None:
        """Describe a launch."""
        del max_blocks, device, metadata
        size = (dim,) if isinstance(dim, int) else tuple(dim)
        arguments = tuple(_described(argument) for argument in (*inputs, *outputs))
        self.entries.append(Launch(kernel, size, block_dim, arguments))

    def record_func(self, backward: object, arrays: object) -> None:
        """Leave out what a tape keeps for gradients."""


def _described(argument: Any) -> tuple[Any, ...]:  # noqa: ANN401  Whatever a kernel takes.
    """Return the kind and the value of an argument of a launch."""
    if isinstance(argument, wp.array):
        return ("array", argument.ptr, argument.shape, argument.strides, str(argument.dtype))
    if hasattr(argument, "__ctype__"):  # An instance of a `wp.struct`.
        return (type(argument).__name__, bytes(argument.__ctype__()))
    try:
        return (type(argument).__name__, tuple(argument))
    except TypeError:
        return (type(argument).__name__, repr(argument))


def difference(before: Sequence[Launch], now: Sequence[Launch], lasting: Collection[int]) -> str | None:
    """Return how two captures of the same stages differ, as a clause; None where they do not.

    Args:
        before: Launches of the first capture.
        now: Launches of the second one.
        lasting: Addresses of arrays that outlive a step. Others are temporary, and may be elsewhere in each capture.
    """
    for one, other in zip_longest(before, now):
        if one is None or other is None:
            return f"{len(before)} launches then, and {len(now)} now"
        if (one.kernel, one.dim, one.block_dim) != (other.kernel, other.dim, other.block_dim):
            return f"the kernel '{one.name}' over {one.dim} threads then, '{other.name}' over {other.dim} now"
        labels = [argument.label for argument in one.kernel.adj.args]
        for label, was, is_ in zip_longest(labels, one.arguments, other.arguments):
            if was == is_:
                continue
            if was[0] == is_[0] == "array":
                if was[2:] == is_[2:] and not {was[1], is_[1]} & {*lasting}:
                    continue
                return f"the kernel '{one.name}' got another array as '{label}'"
            return f"the kernel '{one.name}' got {label}={_shown(was)} then, and {_shown(is_)} now"
    return None


def _shown(argument: tuple[Any, ...]) -> str:
    return str(argument[1]) if not isinstance(argument[1], bytes) else f"another {argument[0]}"


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
