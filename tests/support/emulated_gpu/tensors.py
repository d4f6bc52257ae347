"""Torch's side of the emulated GPU: tensors whose device is `cuda:N` and whose bytes are the host's.

A `CudaTensor` holds a tensor of the CPU and computes with it, so that a whole training runs with its real numbers.
To torch's C++ code it is a tensor on the device `meta`; Python sees `cuda:N`. Each operation passes `_dispatch`, which
refuses tensors of several devices, and notes where the host waits for the device. A captured graph of torch is a list
of such operations: a capture leaves all numbers as they were, and refuses waits; a replay runs the list.
"""

# ruff: noqa: FBT003

from __future__ import annotations

import collections
import functools
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from support.emulated_gpu.driver import EmulationError, Settings, Violation, call_stack
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

aten = torch.ops.aten

_WATCHED = ("shoal", "rsl_rl", "tensordict", "torch/optim", "torch/nn/utils", "torch/distributions", "tests")
"""Parts of paths of the code whose line is told where the host waits."""

_COPIES = {aten._to_copy.default, aten.copy_.default}
_READS = {
    aten._local_scalar_dense.default: "item",
    aten.equal.default: "equal",
    aten.is_nonzero.default: "item",
    aten.nonzero.default: "nonzero",
    aten.masked_select.default: "masked_select",
    aten._unique2.default: "unique",
    aten.unique_dim.default: "unique",
    aten.bincount.default: "bincount",
    aten.repeat_interleave.Tensor: "repeat_interleave",
}
"""Operations whose result, or its size, the host has to know."""
_INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class Torch:
    """What torch's side of the emulation keeps, and what was done with it."""

    def __init__(
        self,
        settings: Settings,
        contexts: Mapping[int, Any],
        make_context: Callable[[int], Any],
        capturing: Callable[[], bool],
    ) -> None:
        """Begin.

        Args:
            settings: What the machine is like.
            contexts: GPUs that have a context.
            make_context: Makes the context on a GPU.
            capturing: Whether a stream captures.
        """
        self.settings = settings
        self.contexts = contexts
        self.make_context = make_context
        self.capturing = capturing
        self.violations: list[Violation] = []
        self.waits: collections.Counter[tuple[str, str]] = collections.Counter()
        """Waits of the main thread for the device: kind, and the function of ours or of a library's that asked."""
        self.background_waits: collections.Counter[tuple[str, str]] = collections.Counter()
        """Waits of other threads, which do not hold the training up."""
        self.collectives: list[list[Any]] = []
        """Operation, what it does, and shapes, types and devices of its tensors, in order."""
        self.backend: str | None = None
        """The backend that was asked for; gloo stands in for it."""
        self.refuses_waits = False
        self.launches: collections.Counter[str] = collections.Counter()
        """Operations that were launched, by name, views left out; replays of graphs are called `graph`."""
        self.recording: _Recording | None = None
        """The graph that is being captured."""
        self.random: dict[int, torch.Tensor] = {}
        """State of each GPU's generator."""
        self.random_before: dict[int, torch.Tensor] = {}
        self._thread = threading.local()

    def current_device(self) -> int:
        """Return the current device of this thread; the first one if none was set."""
        return getattr(self._thread, "device", 0)

    def set_device(self, ordinal: int) -> None:
        """Set the current device of this thread."""
        self.make_context(ordinal)
        self._thread.device = ordinal

    def forget_device(self) -> None:
        """Let this thread have no current device, as before the first was set."""
        vars(self._thread).pop("device", None)

    def call_runtime(self, what: str) -> None:
        """Note a call that CUDA answers in the context of the thread's current device, and makes it for."""
        ordinal = self.current_device()
        if not hasattr(self._thread, "device"):
            name = threading.current_thread().name
            self.violations.append(Violation(f"{what} in the thread '{name}', whose device was not set", call_stack()))
        self.make_context(ordinal)

    def wait(self, kind: str) -> None:
        """Note that the host waits.

        Raises:
            RuntimeError: Torch was asked to refuse it.
        """
        if self.refuses_waits:
            message = f"called a synchronizing CUDA operation: {kind}"
            raise RuntimeError(message)
        if self.recording is not None:
            message = f"CUDA error: operation not permitted when stream is capturing ({kind})\nMore about it."
            raise RuntimeError(message)
        is_main = threading.current_thread() is threading.main_thread()
        (self.waits if is_main else self.background_waits)[kind, _line()] += 1
        if self.capturing():
            self.violations.append(Violation(f"torch: {kind} inside a capture", call_stack()))

    def ordinal(self, device: Any) -> int:
        """Return the index of a device however it is named."""
        if isinstance(device, int):
            return device
        if device is None:
            return self.current_device()
        index = torch.device(device).index
        return self.current_device() if index is None else index


state: Torch
"""Of this process, from `patch_torch` on."""


def _line() -> str:
    """Return the innermost function of the code that we watch, as `folder/file:function`."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if "emulated_gpu" not in path and any(f"/{part}/" in path for part in _WATCHED):
            return f"{'/'.join(path.split('/')[-2:])}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "?"


class CudaTensor(torch.Tensor):
    """A tensor on an emulated GPU."""

    host: torch.Tensor
    """Its numbers."""
    ordinal: int

    @staticmethod
    def __new__(cls: type[CudaTensor], host: torch.Tensor, ordinal: int) -> CudaTensor:  # noqa: PYI034
        """Make a tensor on a GPU of a tensor of the CPU, without a copy."""
        if not 0 <= ordinal < state.settings.count:
            message = f"CUDA error: invalid device ordinal (cuda:{ordinal})"
            raise RuntimeError(message)
        state.make_context(ordinal)
        made: Any = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=torch.device("meta"),
        )
        made.host, made.ordinal = host, ordinal
        return made

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return torch.device("cuda", self.ordinal)

    @property
    def is_cuda(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return True

    @property
    def is_cpu(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return False

    @property
    def is_meta(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return False

    def get_device(self) -> int:
        return self.ordinal

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def tolist(self) -> Any:
        state.wait("copy to the host")
        return self.host.tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        if not force:
            message = f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first."
            raise TypeError(message)
        return self.cpu().numpy()

    def record_stream(self, s: Any) -> None:
        pass

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"CudaTensor(cuda:{self.ordinal}, {self.host!r})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else repr(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        message = "A tensor on an emulated GPU cannot be pickled: copy it to the host first."
        raise EmulationError(message)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.to, torch.Tensor.cuda) and isinstance(args[0], CudaTensor):
            return _to(func, *args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


def _to(func: Any, tensor: CudaTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return a tensor elsewhere, or itself where nothing changes: torch decides that by the device that C++ knows."""
    copy = kwargs.pop("copy", False)
    if func is torch.Tensor.cuda:
        device, dtype, non_blocking = args[0] if args else kwargs.get("device"), None, False
        device = torch.device("cuda", state.ordinal(device))
    elif args and isinstance(args[0], torch.Tensor):
        device, dtype, non_blocking = args[0].device, args[0].dtype, False
    else:
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
    if device is not None and device.type == "cuda":
        device = torch.device("cuda", state.ordinal(device))
    stays = (device is None or device == tensor.device) and (dtype is None or dtype == tensor.dtype)
    if stays and not copy:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.to(
            tensor, device=device or tensor.device, dtype=dtype or tensor.dtype, non_blocking=non_blocking, copy=True
        )


class Redirect(TorchDispatchMode):
    """Serves what is asked for on `cuda:N` without a tensor that is there already."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Serve one operation."""
        return _dispatch(func, args, kwargs or {})


def _dispatch(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:  # noqa: C901, PLR0912
    """Run one operation of torch on the host's memory."""
    flat, spec = tree_flatten((args, kwargs))
    ours = [each for each in flat if isinstance(each, CudaTensor)]
    asked = kwargs.get("device")
    if not ours and not (isinstance(asked, torch.device) and asked.type in ("cuda", "meta")):
        is_pinned = kwargs.get("pin_memory")
        return _marked(func(*args, **(kwargs | {"pin_memory": False} if is_pinned else kwargs)), bool(is_pinned))
    if state.capturing():
        state.violations.append(Violation(f"torch: {func} inside a capture", call_stack()))
    if _is_composite(func):  # In inference mode torch leaves it to us to take an operation apart.
        with Redirect():
            return func.decompose(*args, **kwargs)
    if func.namespace == "c10d":
        return _collective(func, flat, spec, ours)
    ordinals = {each.ordinal for each in ours}
    if len(ordinals) > 1 and func not in _COPIES:
        devices = " and ".join(f"cuda:{each}" for each in sorted(ordinals))
        message = f"Expected all tensors to be on the same device, but found {devices} ({func})"
        raise RuntimeError(message)
    _refuse_cpu_tensors(func, flat, ours)
    _note_waits(func, args, kwargs, ours)
    if isinstance(asked, torch.device) and asked.type == "cuda":
        ordinal: int | None = state.ordinal(asked)
    elif isinstance(asked, torch.device) and asked.type == "cpu":
        ordinal = None
    else:
        ordinal = ours[0].ordinal if ours else state.current_device()
    if func is aten.copy_.default:
        ordinal = args[0].ordinal if isinstance(args[0], CudaTensor) else None
    inner_args, inner_kwargs = tree_unflatten([_inner(each) for each in flat], spec)
    if inner_kwargs.get("device") is not None:
        inner_kwargs["device"] = torch.device("cpu")
    is_pinned = bool(inner_kwargs.pop("pin_memory", False))
    recording = state.recording if not _makes_view(func) else None
    if recording is not None:
        recording.save_written(func, inner_args, inner_kwargs)
    elif not _makes_view(func):
        state.launches[func.__name__] += 1
    with _generator(func, ordinal):
        result = func(*inner_args, **inner_kwargs)
    if recording is not None:
        recording.add(func, inner_args, inner_kwargs, ordinal, result)
    if ordinal is None:
        # A copy to the host, or into a tensor of the host, which torch has returned already.
        return args[0] if func is aten.copy_.default else _marked(result, is_pinned)
    if not _has_tensor(result):
        return result
    # A view of a tensor that was made outside of inference mode is none of inference mode either.
    is_inference = torch.is_inference_mode_enabled() and not (_makes_view(func) and ours and not ours[0].is_inference())
    with torch.inference_mode(is_inference):
        wrapped = tree_map(lambda each: CudaTensor(each, ordinal) if isinstance(each, torch.Tensor) else each, result)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


@functools.cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@functools.cache
def _makes_view(func: Any) -> bool:
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


def _marked(result: Any, is_pinned: bool) -> Any:
    if is_pinned and isinstance(result, torch.Tensor):
        result._emulated_pinned = True  # pyright: ignore[reportAttributeAccessIssue]
    return result


def _has_tensor(result: Any) -> bool:
    return any(isinstance(each, torch.Tensor) for each in tree_flatten(result)[0])


def _inner(value: Any) -> Any:
    return value.host if isinstance(value, CudaTensor) else value


def _refuse_cpu_tensors(func: Any, flat: Sequence[Any], ours: Sequence[CudaTensor]) -> None:
    """Refuse tensors of the CPU beside tensors of a GPU, but for plain numbers, indices and the steps of optimizers.

    Raises:
        EmulationError: A list is an index; torch makes a tensor of it on `meta`, where its numbers are lost.
        RuntimeError: A tensor of the CPU, as from torch.
    """
    if ours and any(isinstance(each, torch.Tensor) and each.device.type == "meta" for each in flat):
        message = "A list indexes a tensor on an emulated GPU: index with a tensor on that device."
        raise EmulationError(message)
    if not ours or func in _COPIES or func in _INDEXED or func.__name__.startswith(("_foreach", "_fused")):
        return
    for each in flat:
        if isinstance(each, torch.Tensor) and not isinstance(each, CudaTensor) and each.dim() > 0:
            message = (
                f"Expected all tensors to be on the same device, but found cuda:{ours[0].ordinal} and cpu ({func})"
            )
            raise RuntimeError(message)


def _note_waits(func: Any, args: Sequence[Any], kwargs: dict[str, Any], ours: Sequence[CudaTensor]) -> None:
    """Note where an operation makes the host wait for the device."""
    if func in _READS:
        state.wait(_READS[func])
    elif func is aten._to_copy.default:
        device = kwargs.get("device")
        here, there = bool(ours), device is not None and device.type == "cuda"
        if device is not None and here != there and not (there and kwargs.get("non_blocking")):
            state.wait("copy to the device" if there else "copy to the host")
    elif func is aten.copy_.default:
        to, of = (isinstance(each, CudaTensor) for each in args[:2])
        non_blocking = bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
        pinned = getattr(args[0] if of else args[1], "_emulated_pinned", False)
        if to != of and not (non_blocking and pinned):
            state.wait("copy to the device" if to else "copy to the host")
    elif func in _INDEXED and ours:
        indices = [each for each in (args[1] or ()) if each is not None]
        if any(each.dtype in (torch.bool, torch.uint8) for each in indices):
            state.wait("index by a mask")
        elif any(not isinstance(each, CudaTensor) and each.dim() for each in indices):
            state.wait("copy to the device")


class _generator:  # noqa: N801  A context manager.
    """Draws random numbers of a GPU from that GPU's generator."""

    def __init__(self, func: Any, ordinal: int | None) -> None:
        draws = torch.Tag.nondeterministic_seeded in func.tags
        self._ordinal = ordinal if draws else None

    def __enter__(self) -> None:
        if self._ordinal is not None:
            self._host = torch.get_rng_state()
            if self._ordinal in state.random:
                torch.set_rng_state(state.random[self._ordinal])

    def __exit__(self, *_: object) -> None:
        if self._ordinal is not None:
            state.random[self._ordinal] = torch.get_rng_state()
            torch.set_rng_state(self._host)


def _collective(func: Any, flat: Sequence[Any], spec: Any, ours: Sequence[CudaTensor]) -> Any:
    """Run a collective through gloo, on the host's memory."""
    tensors = [each for each in flat if isinstance(each, torch.Tensor)]
    if state.backend == "nccl":
        own = state.current_device()
        if len(ours) < len(tensors) or any(each.ordinal != own for each in ours):
            message = (
                f"NCCL takes tensors of cuda:{own} only, and got {[str(each.device) for each in tensors]} ({func})"
            )
            raise RuntimeError(message)
    elif ours:
        state.wait("collective through gloo")
    args, kwargs = tree_unflatten([_inner(each) for each in flat], spec)
    state.collectives.append(
        [func.__name__, [[list(each.shape), str(each.dtype), str(each.device)] for each in tensors]]
    )
    result = func(*args, **kwargs)
    theirs = {id(each.host): each for each in ours}
    return tree_map(lambda each: theirs.get(id(each), each), result)


class _Recording:
    """The operations of a graph, on the host's memory."""

    def __init__(self) -> None:
        self._operations: list[tuple[Any, Any, Any, int | None, list[torch.Tensor]]] = []
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []

    def save_written(self, func: Any, args: Any, kwargs: Any) -> None:
        """Keep what an operation is going to write over."""
        values = [*args, *([None] * (len(func._schema.arguments) - len(args)))]
        for argument, value in zip(func._schema.arguments, values, strict=True):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = tree_flatten(kwargs.get(argument.name, value))[0]
                self._saved += [(each, each.clone()) for each in written if isinstance(each, torch.Tensor)]

    def add(self, func: Any, args: Any, kwargs: Any, ordinal: int | None, result: Any) -> None:
        """Note an operation, and the tensors that it made."""
        is_new = not any(each.alias_info is not None for each in func._schema.returns)
        made = [each for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)] if is_new else []
        self._operations.append((func, args, kwargs, ordinal, made))

    def undo(self) -> None:
        """Make all numbers what they were before the capture, and those of new tensors NaN."""
        for tensor, before in reversed(self._saved):
            tensor.copy_(before)
        self._saved.clear()
        for *_, made in self._operations:
            for each in made:
                if each.is_floating_point():
                    each.fill_(torch.nan)

    def replay(self) -> None:
        """Run the operations in order."""
        for func, args, kwargs, ordinal, made in self._operations:
            with _generator(func, ordinal):
                result = func(*args, **kwargs)
            found = [each for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)]
            for old, new in zip(made, found, strict=bool(made)):
                old.copy_(new)


class _Graph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.recorded: _Recording | None = None

    def replay(self) -> None:
        state.launches["graph"] += 1
        if self.recorded is None or state.recording is not None:
            message = "CUDA error: a graph was replayed that is not captured, or in a capture"
            raise RuntimeError(message)
        with torch._C._DisableTorchDispatch(), torch.inference_mode():
            self.recorded.replay()


class _Capture:
    """`torch.cuda.graph`."""

    def __init__(self, graph: _Graph, **_: Any) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        _synchronize()
        state.random_before = dict(state.random)
        state.recording = _Recording()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        recording, state.recording = state.recording, None
        assert recording is not None
        with torch._C._DisableTorchDispatch(), torch.inference_mode():
            recording.undo()
        state.random.update(state.random_before)
        if kind is not None:
            message = "CUDA error: operation failed due to a previous error during capture"
            raise RuntimeError(message)
        if not state.settings.can_instantiate:
            message = "CUDA error: out of memory"
            raise RuntimeError(message)
        self._graph.recorded = recording


class _Generator:
    """A generator of `torch.cuda.default_generators`."""

    def clone_state(self) -> _Generator:
        return self

    def graphsafe_set_state(self, _: _Generator) -> None:
        pass


# torch.cuda -------------------------------------------------------------------------------------------------------


class _Stream:
    def __init__(self, device: Any = None, handle: int | None = None, **_: Any) -> None:
        self.device_index = state.ordinal(device)
        self.device = torch.device("cuda", self.device_index)
        self.cuda_stream = id(self) if handle is None else handle

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        event = event or _Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return state.capturing() or state.recording is not None

    def synchronize(self) -> None:
        state.call_runtime("stream synchronize")
        state.wait("stream synchronize")

    def __enter__(self) -> Self:
        streams = _streams()
        self._before = streams.get(self.device_index)
        streams[self.device_index] = self
        return self

    def __exit__(self, *_: object) -> None:
        streams = _streams()
        if self._before is None:
            streams.pop(self.device_index, None)
        else:
            streams[self.device_index] = self._before


_current = threading.local()


def _streams() -> dict[int, _Stream]:
    if not hasattr(_current, "streams"):
        _current.streams = {}
    return _current.streams


def _current_stream(device: Any = None) -> _Stream:
    ordinal = state.ordinal(device)
    return _streams().get(ordinal) or _Stream(ordinal, handle=0)


class _Event:
    def __init__(self, **_: Any) -> None:
        self._recorded: float | None = None

    def record(self, stream: Any = None) -> None:
        state.make_context(stream.device_index if stream is not None else state.current_device())
        self._recorded = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        state.call_runtime("event query")
        return True

    def synchronize(self) -> None:
        state.call_runtime("event synchronize")
        state.wait("event synchronize")

    def elapsed_time(self, end: _Event) -> float:
        if self._recorded is None or end._recorded is None:
            message = "Both events must be recorded before calculating elapsed time."
            raise RuntimeError(message)
        return (end._recorded - self._recorded) * 1000


class _Device:
    """The context manager `torch.cuda.device`."""

    def __init__(self, device: Any) -> None:
        self._ordinal = state.ordinal(device)

    def __enter__(self) -> None:
        self._before = getattr(state._thread, "device", None)
        state.set_device(self._ordinal)

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del state._thread.device
        else:
            state._thread.device = self._before


class _Properties:
    def __init__(self, device: Any) -> None:
        from support.fake_devices import gpu_uuid

        ordinal = state.ordinal(device)
        self.name, self.uuid = "NVIDIA H200", gpu_uuid(ordinal).partition("-")[2]
        self.total_memory = state.settings.memory_bytes
        self.major, self.minor = divmod(state.settings.arch, 10)
        self.multi_processor_count = state.settings.multiprocessors


def _synchronize(device: Any = None) -> None:
    state.make_context(state.ordinal(device))
    state.wait("device synchronize")


def _get_rng_state(device: Any = "cuda") -> torch.Tensor:
    state.wait("random state")
    return state.random.get(state.ordinal(device), torch.get_rng_state()).clone()


def _set_rng_state(new: torch.Tensor, device: Any = "cuda") -> None:
    state.random[state.ordinal(device)] = new.clone()


def _seed_all(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for ordinal in range(state.settings.count):
        state.random[ordinal] = generator.get_state()


def _memory_info(device: Any = None) -> tuple[int, int]:
    state.make_context(state.ordinal(device))
    return state.settings.memory_bytes, state.settings.memory_bytes


def _sleep(_: int) -> None:
    message = "torch.cuda._sleep: the emulated GPU has no speed. Mark the test `gpu(real=...)`."
    raise EmulationError(message)


def patch_torch(machine: Torch) -> None:
    """Give torch emulated GPUs. Torch has just been imported, and has not touched CUDA."""
    global state  # noqa: PLW0603
    state = machine
    count = machine.settings.count
    cuda: Any = torch.cuda
    for name, value in {
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_available": lambda: count > 0,
        "is_initialized": lambda: bool(machine.random) or hasattr(machine._thread, "device"),
        "device_count": lambda: count,
        "current_device": machine.current_device,
        "set_device": lambda device: machine.set_device(machine.ordinal(device)),
        "current_stream": _current_stream,
        "default_stream": lambda device=None: _Stream(device, handle=0),
        "Stream": _Stream,
        "stream": lambda stream: stream,
        "Event": _Event,
        "device": _Device,
        "synchronize": _synchronize,
        "get_rng_state": _get_rng_state,
        "set_rng_state": _set_rng_state,
        "manual_seed": _seed_all,
        "manual_seed_all": _seed_all,
        "get_device_capability": lambda _=None: divmod(machine.settings.arch, 10),
        "get_device_properties": _Properties,
        "get_device_name": lambda _=None: "NVIDIA H200",
        "can_device_access_peer": lambda _one, _other: True,
        "mem_get_info": _memory_info,
        "empty_cache": lambda: None,
        "set_sync_debug_mode": lambda mode: setattr(machine, "refuses_waits", mode in ("error", 2)),
        "_sleep": _sleep,
        "CUDAGraph": _Graph,
        "is_current_stream_capturing": lambda: machine.recording is not None,
        "graph": _Capture,
        "default_generators": tuple(_Generator() for _ in range(count)),
    }.items():
        setattr(cuda, name, value)
    torch.accelerator.current_stream = _current_stream  # pyright: ignore[reportAttributeAccessIssue]
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")  # noqa: ARG005
    torch._C._cuda_hasPrimaryContext = lambda ordinal: ordinal in machine.contexts
    torch.backends.cudnn.is_acceptable = lambda _: False
    torch._C._set_only_lift_cpu_tensors(True)  # So that `torch.tensor` asks us for a copy to the device.
    # Modules that move keep their parameters' identity, as they do where the kind of tensor stays the same.
    torch.__future__.set_swap_module_params_on_conversion(True)
    # On a GPU, Adam runs over all parameters at once.
    _foreach_utils._foreach_supported_types.append(CudaTensor)
    _patch_functions()
    _patch_distributed()
    _enter_in_every_thread()


def _patch_functions() -> None:
    load, as_tensor, tensor = torch.load, torch.as_tensor, torch.tensor

    def tensor_there(data: Any, *args: Any, **named: Any) -> torch.Tensor:
        if isinstance(data, list):  # torch reads numbers on a device back, one by one.
            data = [each.item() if isinstance(each, CudaTensor) else each for each in data]
        return tensor(data, *args, **named)

    def load_there(file: Any, map_location: Any = None, **named: Any) -> Any:
        if not (isinstance(map_location, str | torch.device) and torch.device(map_location).type == "cuda"):
            return load(file, map_location=map_location, **named)
        ordinal = state.ordinal(map_location)
        loaded = load(file, map_location="cpu", **named)
        return tree_map(lambda each: CudaTensor(each, ordinal) if isinstance(each, torch.Tensor) else each, loaded)

    def as_tensor_there(data: Any, *args: Any, **named: Any) -> torch.Tensor:
        if isinstance(data, torch.Tensor) or not hasattr(data, "__cuda_array_interface__"):
            return as_tensor(data, *args, **named)
        about = data.__cuda_array_interface__

        host = SimpleNamespace(__array_interface__={**about, "version": 3})
        numbers = np.asarray(host)
        tensor = CudaTensor(torch.from_numpy(numbers), state.ordinal(named.get("device")))
        tensor._warp_array = data  # pyright: ignore[reportAttributeAccessIssue]  It owns the memory.
        return tensor

    torch.load, torch.as_tensor, torch.tensor = load_there, as_tensor_there, tensor_there
    group = torch._C._group_tensors_by_device_and_dtype

    def grouped(lists: Any, with_indices: bool = False) -> Any:  # noqa: FBT002
        """Group tensors as torch does, with the names of our devices."""
        found = group(lists, with_indices)
        return {
            (next((each.device for each in tensors[0][0] if each is not None), device), dtype): tensors
            for (device, dtype), tensors in found.items()
        }

    torch._C._group_tensors_by_device_and_dtype = grouped


def _patch_distributed() -> None:
    """Let gloo stand in for NCCL."""
    distributed: Any = torch.distributed
    begin = distributed.init_process_group

    def init_process_group(backend: str | None = None, **named: Any) -> None:
        state.backend = backend
        device = named.pop("device_id", None)
        state.collectives.append(["init_process_group", backend, str(device)])
        begin(backend="gloo", **named)

    distributed.init_process_group = init_process_group


def _enter_in_every_thread() -> None:
    """Serve every thread, those that start later too."""
    Redirect().__enter__()
    run = threading.Thread.run

    def run_redirected(self: threading.Thread) -> None:
        with Redirect():
            run(self)

    threading.Thread.run = run_redirected
    sys.modules.setdefault("support.emulated_gpu.tensors", sys.modules[__name__])
