"""Captured graphs: kernel launches that are captured once and launched together in every step.

On a GPU this is a CUDA graph; on the CPU it is Warp's own list of launches, run in C++.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, groupby, zip_longest
from typing import Any, TypeAlias
from weakref import ref

import torch
import warp as wp

from shoal.errors import ShoalError

Call: TypeAlias = Callable[[], None]
"""What runs a part of a step: a function that only launches kernels, or a `HostStage`."""


class HostStage(partial[None]):
    """Uncaptured host stage, run every step; does not synchronise."""


class StepGraph:
    """One step: a captured graph for each run of stages between two host stages."""

    def __init__(self, stages: Sequence[Call], device: wp.Device, *, captures: bool = True) -> None:
        """Capture the stages, in order; see `CapturedGraph`."""
        self._graphs: list[CapturedGraph] = []
        self._calls: list[Callable[[], None]] = []
        for is_on_host, group in groupby(stages, lambda stage: isinstance(stage, HostStage)):
            if is_on_host:
                self._calls += [CapturedGraph(stage, device, captures=False).launch for stage in group]
            else:
                self._graphs.append(CapturedGraph(partial(run_all, [*group]), device, captures=captures))
                self._calls.append(self._graphs[-1].launch)

    @property
    def is_captured(self) -> bool:
        """Whether all stages but the host's are captured."""
        return all(graph.is_captured for graph in self._graphs)

    @property
    def is_whole(self) -> bool:
        """Whether all of the step is one captured graph."""
        return self.is_captured and len(self._calls) == 1

    @property
    def launches(self) -> list[Launch]:
        """The captured kernel launches, in order."""
        return list(chain.from_iterable(graph.launches for graph in self._graphs))

    def launch(self) -> None:
        """Run the step."""
        run_all(self._calls)


def run_all(stages: Sequence[Call]) -> None:
    """Run stages one by one."""
    for stage in stages:
        stage()


class CapturedGraph:
    """The kernel launches of one function, captured once: same kernels, same arrays, same numbers in every launch.

    Measured on one core of a 2.5 GHz Xeon with Warp 1.19, five launches over one environment, so that nearly
    all of it is overhead: plain 88 us, recorded commands (``record_cmd=True``) 14 us, this graph 2 us.
    """

    def __init__(self, function: Callable[[], None], device: wp.Device, *, captures: bool = True) -> None:
        """Capture. Calls `function` once, without running a kernel.

        Args:
            function: Launches kernels on `device` and does nothing else. Their modules must have been loaded,
                by a first plain call: compiling inside a CUDA capture is not possible with every driver.
            device: Where the kernels run.
            captures: Whether to capture. If not, each launch calls `function` again.

        Raises:
            ShoalError: The launches cannot be captured.
        """
        self._function = function
        self._device = device
        self._graph: wp.Graph | None = None
        self.launches: Sequence[Launch] = ()
        """The captured kernel launches, in order."""
        if not captures:
            return
        log = LaunchLog()
        try:
            with _no_garbage_collection(), wp.ScopedCapture(device=device) as capture, log:
                function()
        except RuntimeError as error:
            raise capture_error(device, error) from error
        self._graph = capture.graph
        self.launches = log.entries

    @property
    def is_captured(self) -> bool:
        """Whether there is a graph, and not one launch for each kernel."""
        return self._graph is not None

    def launch(self) -> None:
        """Run the kernels. On a GPU they queue up behind torch's work, and the host does not wait."""
        if self._graph is None:
            with torch_stream(self._device):
                self._function()
        elif self._device.is_cuda:
            wp.capture_launch(self._graph, stream=_stream_of_torch(self._device))
        else:
            wp.capture_launch(self._graph)


def capture_error(device: wp.Device, error: RuntimeError) -> ShoalError:
    """Return the error of a graph that cannot be captured or launched."""
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
    """Kind and value of each argument. Of an array: address, shape, strides and type."""


class LaunchLog(wp.Tape):
    """Describes each launch in its body, with weak references alone to its arrays, which are freed as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Launch] = []
        self.arrays: list[tuple[wp.Kernel, str, ref[wp.array]]] = []
        """The arrays that kernels take, and those in structs, with the name of the argument."""

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
        for spec, argument in zip(kernel.adj.args, (*inputs, *outputs), strict=False):
            self.arrays += [(kernel, spec.label, ref(array)) for array in arrays_in(argument)]

    def record_func(self, backward: object, arrays: object) -> None:
        """Leave out what a tape keeps for gradients."""


def arrays_in(argument: Any) -> Iterator[wp.array]:  # noqa: ANN401  Whatever a kernel takes.
    """Yield the arrays of an argument: itself, or those in a struct."""
    if isinstance(argument, wp.array):
        yield argument
    elif hasattr(argument, "__ctype__"):  # An instance of a `wp.struct`.
        for name in argument._cls.vars:  # noqa: SLF001  It knows its type by no other name.
            yield from arrays_in(getattr(argument, name))


def _described(argument: Any) -> tuple[Any, ...]:  # noqa: ANN401  Whatever a kernel takes.
    if isinstance(argument, wp.array):
        return ("array", argument.ptr, argument.shape, argument.strides, str(argument.dtype))
    if hasattr(argument, "__ctype__"):  # An instance of a `wp.struct`.
        return (type(argument).__name__, bytes(argument.__ctype__()))
    try:
        return (type(argument).__name__, tuple(argument))
    except TypeError:
        return (type(argument).__name__, repr(argument))


def difference(before: Sequence[Launch], now: Sequence[Launch], lasting: Collection[int]) -> str | None:
    """Return the first difference of two captures of the same stages, as a clause; None where there is none.

    `lasting` are addresses of arrays that outlive a step. Others are temporary, and may be elsewhere in each capture.
    """
    for one, other in zip_longest(before, now):
        if one is None or other is None:
            return f"{len(before)} launches then, and {len(now)} now"
        if (one.kernel, one.dim, one.block_dim) != (other.kernel, other.dim, other.block_dim):
            return (
                f"the kernel '{one.kernel.key}' over {one.dim} threads then, '{other.kernel.key}' over {other.dim} now"
            )
        labels = [argument.label for argument in one.kernel.adj.args]
        for label, was, is_ in zip_longest(labels, one.arguments, other.arguments):
            if was == is_:
                continue
            if was[0] == is_[0] == "array":
                if was[2:] == is_[2:] and not {was[1], is_[1]} & {*lasting}:
                    continue
                return f"the kernel '{one.kernel.key}' got another array as '{label}'"
            return f"the kernel '{one.kernel.key}' got {label}={_shown(was)} then, and {_shown(is_)} now"
    return None


def _shown(argument: tuple[Any, ...]) -> str:
    return str(argument[1]) if not isinstance(argument[1], bytes) else f"another {argument[0]}"


@contextmanager
def torch_stream(device: wp.Device) -> Iterator[None]:
    """Run the body's kernels on `device`; a GPU's queue on torch's current stream, without an event or waiting."""
    stream = wp.ScopedStream(_stream_of_torch(device), sync_enter=False) if device.is_cuda else nullcontext()
    with wp.ScopedDevice(device), stream:
        yield


def _stream_of_torch(device: wp.Device) -> wp.Stream:
    """Return torch's current stream, which is that of this thread, as a Warp stream."""
    return _known_stream(device.alias, torch.cuda.current_stream(device.ordinal).cuda_stream)


@cache
def _known_stream(alias: str, handle: int) -> wp.Stream:
    """Return a stream of torch's, of which there are few, and which it keeps, as a Warp stream."""
    return wp.Stream(wp.get_device(alias), cuda_stream=handle)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable the collector: freeing GPU memory in the middle of a capture would spoil it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
