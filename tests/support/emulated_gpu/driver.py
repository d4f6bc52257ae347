"""An emulated CUDA driver, at the border between Warp's Python code and its C library.

Everything above the border is Warp's own code: devices, streams, the memory-pool allocator, modules, launches,
captures, conditional nodes. Below it, device memory is the host's, a kernel runs as Warp's CPU build of it on the same
arguments, and a graph is a list of operations. With `Settings.compiles`, NVRTC compiles real CUBINs, whose symbols are
looked up.

The emulation refuses and counts what CUDA refuses inside a capture: synchronising, copies from pageable memory, work on
the NULL stream, allocations in the body of a conditional node. Memory is filled with NaN when it is allocated, when it
is freed, and at each replay of an allocation node. A function of the C library that is not emulated raises.

Not covered: asynchrony, races between the threads of a kernel, the order of atomic operations, speed.
"""

# One function for each of the C library's, with its name and its arguments. `WARP_RELEASE` pins them.
# ruff: noqa: ARG002, PLR0917, FBT003

from __future__ import annotations

import collections
import ctypes
import inspect
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WARP_RELEASE = "1.19"
"""The release of Warp whose border is emulated. Another one may pass other arguments."""

FIRST_CONTEXT = 1000
"""Handle of the context on GPU 0; the one on GPU 1 is one more."""
_CURRENT_STREAM = 0xFFFFFFFFFFFFFFFF
_NAN, _FREED = 0xFF, 0xFE
"""Bytes that fill memory: four of either make a NaN of 32 bits."""
_OUTPUT_PATH = 16
"""Place of the path among the arguments of `wp_cuda_compile_program`."""
_RELAXED = 2
"""cudaStreamCaptureModeRelaxed: streams that do not capture may be waited for during a capture."""
_MOST_ROUNDS = 100_000
_KEPT_BYTES = 256 << 20
"""Freed memory that is kept, so that a use after it is noticed."""
_OWN_FRAMES = 12

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


class EmulationError(RuntimeError):
    """Something that the emulation does not cover, or that would have ended the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the emulated machine is like."""

    count: int = 2
    """Number of GPUs."""
    arch: int = 90
    multiprocessors: int = 132
    driver_version: int = 13020
    """CUDA version of the driver, times 1000."""
    driver_release: int = 595
    """Release of the driver, as NVML returns it."""
    memory_bytes: int = 80 << 30
    """Memory of each GPU."""
    has_memory_pools: bool = True
    can_instantiate: bool = True
    """Whether a captured graph can be made executable."""
    compiles: bool = False
    """Whether kernels are compiled by NVRTC. It takes minutes, and `tests/gpu/test_compilation.py` does it too."""


@dataclass
class _Graph:
    """A captured graph, or the body of a conditional node: operations in their order."""

    id: int = 0
    operations: list[_Operation] = field(default_factory=list)

    def run(self) -> None:
        for operation in self.operations:
            operation.run()


@dataclass(frozen=True, slots=True)
class _Operation:
    kind: str
    """CUDA's name of the node."""
    name: str
    run: Callable[[], object]
    arguments: bytes = b""
    """Of a kernel: the values that were passed."""


@dataclass
class _Stream:
    context: int
    capture: _Graph | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that CUDA refuses, or that makes a context where none belongs."""

    what: str
    stack: tuple[str, ...]
    """Where, the innermost call last."""


def call_stack(skip: int = 2) -> tuple[str, ...]:
    """Return the newest calls, the innermost last."""
    frames = traceback.extract_stack()[-_OWN_FRAMES - skip : -skip]
    return tuple(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)


class Driver:
    """The state of the emulated driver, and what was done with it."""

    def __init__(self, library: Any, settings: Settings, make_context: Callable[[int], int]) -> None:
        """Start it.

        Args:
            library: Warp's C library.
            settings: What the machine is like.
            make_context: Returns the handle of the context on a GPU, which is made if need be.
        """
        self.library = library
        self.settings = settings
        self.make_context = make_context
        self.error = b""
        self.violations: list[Violation] = []
        self.waits: collections.Counter[str] = collections.Counter()
        """Calls that wait for the device, by their kind."""
        self.graph_launches = 0
        self.kernel_launches: collections.Counter[tuple[str, int]] = collections.Counter()
        """Launches outside of graphs and captured ones, by kernel and block size."""
        self.live_bytes = 0
        self.peak_bytes = 0
        """Device memory in use, and the most that ever was. Memory of graphs counts as in use once it is captured."""
        self._thread = threading.local()
        self._runs_kernel = threading.Lock()  # Blocks of threads share memory in Warp's CPU build of kernels.
        self._next_handle = 0x7000
        self._streams: dict[int, _Stream] = {}
        self._current_streams: dict[int, int] = {}  # By context.
        self._memory: dict[int, tuple[int, bool]] = {}  # Size, and whether a graph owns it.
        self._graphs: dict[int, _Graph] = {}
        self._executables: dict[int, _Graph] = {}
        self._modules: dict[int, bytes] = {}
        self._names: dict[int, bytes] = {}
        self._freed: collections.deque[tuple[int, int]] = collections.deque()
        self._freed_bytes = 0
        self._uses_tiles: dict[str, bool] = {}
        self.declared: dict[str, Any] = {}
        """Functions that Warp has declared the types of."""

    # What tests look at.

    def graph_of(self, graph: Any) -> list[tuple[str, bytes]]:
        """Return the operations of a `warp.Graph` with the arguments of its kernels."""
        return [(operation.name, operation.arguments) for operation in self._graphs[_number(graph.graph)].operations]

    def nodes_of(self, graph: Any) -> collections.Counter[str]:
        """Return how many nodes of each kind a `warp.Graph` has, but for those in bodies of conditional nodes."""
        return collections.Counter(operation.kind for operation in self._graphs[_number(graph.graph)].operations)

    @property
    def is_capturing(self) -> bool:
        """Whether any stream is."""
        return any(stream.capture is not None for stream in self._streams.values())

    def refuse(self, what: str) -> bool:
        """Note a violation. Returns False, which is CUDA's way to report it."""
        self.error = what.encode()
        self.violations.append(Violation(what, call_stack()))
        return False

    def wait(self, kind: str) -> bool:
        """Note that the host waits for the device."""
        if self.is_capturing:
            return self.refuse(f"{kind} inside a capture")
        self.waits[kind] += 1
        return True

    # Parts of several calls.

    def handle(self) -> int:
        """Return a new handle."""
        self._next_handle += 16
        return self._next_handle

    def resolve_stream(self, context: Any, stream: Any) -> int:
        """Return the handle of a stream. The current one of a context has a number of its own."""
        number = _number(stream)
        return self._current_streams.get(_number(context), 0) if number == _CURRENT_STREAM else number

    def submit(self, stream: int, operation: _Operation) -> bool:
        """Run an operation on a stream, or append it to the graph that the stream captures."""
        info = self._streams.get(stream)
        if info is not None and info.capture is not None:
            info.capture.operations.append(operation)
            return True
        if stream == 0 and self.is_capturing:
            return self.refuse(f"{operation.name}: work on the NULL stream while another stream captures")
        operation.run()
        return True

    def run_on_stream(self, stream: Any, name: str, run: Callable[[], None]) -> None:
        """Run a function as if it were a kernel on a stream of Warp's, which may capture."""
        self.submit(_number(stream.cuda_stream), _Operation("kernel", name, run))

    def uses_tiles(self, kernel: Any) -> bool:
        """Whether the threads of a block work together in a kernel, so that its CPU build needs blocks too."""
        if kernel.key not in self._uses_tiles:
            functions = (getattr(kernel.adj, "fun_closure", None) or {}).values()
            sources = [kernel.adj.source, *(getattr(getattr(each, "adj", None), "source", "") for each in functions)]
            self._uses_tiles[kernel.key] = any(
                "tile" in (text or "") or "syncthreads" in (text or "") for text in sources
            )
        return self._uses_tiles[kernel.key]

    # Devices -----------------------------------------------------------------------------------------------------

    def wp_get_error_string(self) -> bytes:
        return self.error or self.library.wp_get_error_string()

    def wp_cuda_driver_version(self) -> int:
        return self.settings.driver_version

    def wp_cuda_device_get_count(self) -> int:
        return self.settings.count

    def wp_cuda_device_get_arch(self, ordinal: int) -> int:
        return self.settings.arch

    def wp_cuda_device_get_sm_count(self, ordinal: int) -> int:
        return self.settings.multiprocessors

    def wp_cuda_device_get_max_shared_memory(self, ordinal: int) -> int:
        # CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", less 1 KiB for the system.
        return {75: 65536, 80: 166912, 90: 232448, 100: 232448}.get(self.settings.arch, 101376)

    def wp_cuda_device_is_mempool_supported(self, ordinal: int) -> int:
        return int(self.settings.has_memory_pools)

    def wp_cuda_device_get_pci_bus_id(self, ordinal: int) -> int:
        return ordinal

    def wp_cuda_device_get_memory_info(self, ordinal: int, free: Any, total: Any) -> None:
        self.make_context(ordinal)
        if free is not None:
            free._obj.value = self.settings.memory_bytes - self.live_bytes
        if total is not None:
            total._obj.value = self.settings.memory_bytes

    # Contexts and streams ----------------------------------------------------------------------------------------

    def wp_cuda_device_get_primary_context(self, ordinal: int) -> int:
        return self.make_context(ordinal)

    def wp_cuda_context_get_current(self) -> int | None:
        return getattr(self._thread, "context", None)

    def wp_cuda_context_set_current(self, context: Any) -> None:
        self._thread.context = context

    def wp_cuda_context_push_current(self, context: Any) -> None:
        below = getattr(self._thread, "below", ())
        self._thread.below = (*below, self.wp_cuda_context_get_current())
        self._thread.context = context

    def wp_cuda_context_pop_current(self) -> None:
        *below, self._thread.context = self._thread.below
        self._thread.below = tuple(below)

    def wp_cuda_context_get_device_ordinal(self, context: Any) -> int:
        return _number(context) - FIRST_CONTEXT

    def wp_cuda_context_set_stream(self, context: Any, stream: Any, sync: int) -> None:
        self._current_streams[_number(context)] = _number(stream)

    def wp_cuda_context_synchronize(self, context: Any) -> bool:
        return self.wait("context synchronize")

    def wp_cuda_stream_create(self, context: Any, priority: int) -> int:
        handle = self.handle()
        self._streams[handle] = _Stream(_number(context))
        return handle

    def wp_cuda_stream_register(self, context: Any, stream: Any) -> None:
        self._streams.setdefault(_number(stream), _Stream(_number(context)))

    def wp_cuda_stream_is_capturing(self, stream: Any) -> int:
        info = self._streams.get(_number(stream))
        return int(info is not None and info.capture is not None)

    def wp_cuda_stream_get_capture_id(self, stream: Any) -> int:
        info = self._streams.get(_number(stream))
        return info.capture.id if info is not None and info.capture is not None else 0

    def wp_cuda_stream_synchronize(self, stream: Any) -> bool:
        is_relaxed = getattr(self._thread, "capture_mode", 0) == _RELAXED
        if is_relaxed and not self.wp_cuda_stream_is_capturing(stream):
            return True
        return self.wait("stream synchronize")

    def wp_cuda_event_create(self, context: Any, flags: int) -> int:
        return self.handle()

    def wp_cuda_event_synchronize(self, event: Any) -> bool:
        return self.wait("event synchronize")

    # Memory ------------------------------------------------------------------------------------------------------

    def wp_alloc_device_async(self, context: Any, size: Any, stream: Any, tag: Any = None) -> int | None:
        count = max(int(size), 1)
        if self.live_bytes + count > self.settings.memory_bytes:
            self.error = b"CUDA error 2: out of memory"
            return None
        pointer = _libc.malloc(count + 64)
        info = self._streams.get(self.resolve_stream(context, stream))
        capture = info.capture if info is not None else None
        _fill(pointer, count, _NAN)
        self._memory[pointer] = (count, capture is not None)
        self.live_bytes += count
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        if capture is not None:
            capture.operations.append(_Operation("memory allocation", "allocate", lambda: _fill(pointer, count, _NAN)))
        return pointer

    def wp_free_device_async(self, context: Any, pointer: Any, node: Any) -> None:
        number = _number(pointer)
        count, is_of_graph = self._memory[number]
        self.live_bytes -= count
        if is_of_graph:
            for info in self._streams.values():
                if info.capture is not None:
                    info.capture.operations.append(
                        _Operation("memory deallocation", "free", lambda: _fill(number, count, _FREED))
                    )
                    break
            return
        # It stays allocated for a while, so that a use after it shows.
        _fill(number, count, _FREED)
        self._freed.append((number, count))
        self._freed_bytes += count
        while self._freed_bytes > _KEPT_BYTES:
            oldest, size = self._freed.popleft()
            self._freed_bytes -= size
            _libc.free(oldest)

    def wp_alloc_device_default(self, context: Any, size: Any, tag: Any) -> int | None:
        if self.is_capturing:
            self.refuse("cudaMalloc inside a capture")
            return None
        return self.wp_alloc_device_async(context, size, 0, tag)

    def wp_free_device_default(self, context: Any, pointer: Any) -> None:
        self.wp_free_device_async(context, pointer, None)

    def wp_alloc_pinned(self, size: Any, *more: Any) -> Any:
        return self.library.wp_alloc_host(size, *more)

    def wp_free_pinned(self, pointer: Any) -> None:
        self.library.wp_free_host(pointer)

    def wp_memcpy_h2d(self, context: Any, target: Any, source: Any, size: Any, stream: Any) -> bool:
        if self.is_capturing:
            return self.refuse("copy from pageable memory inside a capture")
        self.waits["copy to the device"] += 1
        ctypes.memmove(_number(target), _number(source), size)
        return True

    def wp_memcpy_d2h(self, context: Any, target: Any, source: Any, size: Any, stream: Any) -> bool:
        if not self.wait("copy to the host"):
            return False
        ctypes.memmove(_number(target), _number(source), size)
        return True

    def wp_memcpy_d2d(self, context: Any, target: Any, source: Any, size: Any, stream: Any) -> bool:
        to, of, count = _number(target), _number(source), int(size)
        run = lambda: ctypes.memmove(to, of, count)  # noqa: E731
        return self.submit(self.resolve_stream(context, stream), _Operation("memcpy", "copy", run))

    def wp_memset_device(self, context: Any, pointer: Any, value: int, size: Any, stream: Any) -> bool:
        number, count = _number(pointer), int(size)
        run = lambda: _fill(number, count, value)  # noqa: E731
        return self.submit(self.resolve_stream(context, stream), _Operation("memset", "set", run, bytes([value & 255])))

    def wp_memtile_device(self, context: Any, pointer: Any, source: Any, size: int, repeats: int) -> bool:
        number, item = _number(pointer), ctypes.string_at(ctypes.cast(source, ctypes.c_void_p), size)
        run = lambda: ctypes.memmove(number, item * repeats, size * repeats)  # noqa: E731
        return self.submit(self.resolve_stream(context, _CURRENT_STREAM), _Operation("kernel", "tile", run, item))

    def wp_array_fill_device(self, context: Any, array: Any, kind: int, value: Any, size: int) -> bool:
        own = type(array.contents).from_buffer_copy(array.contents)
        item = ctypes.create_string_buffer(ctypes.string_at(value, size), size)

        def run() -> None:
            self.library.wp_array_fill_host(ctypes.pointer(own), kind, ctypes.cast(item, ctypes.c_void_p), size)

        return self.submit(self.resolve_stream(context, _CURRENT_STREAM), _Operation("kernel", "fill", run, item.raw))

    def wp_array_copy_device(
        self, context: Any, target: Any, source: Any, target_kind: int, source_kind: int, size: int
    ) -> bool:
        to, of = (type(array.contents).from_buffer_copy(array.contents) for array in (target, source))

        def run() -> None:
            self.library.wp_array_copy_host(ctypes.pointer(to), ctypes.pointer(of), target_kind, source_kind, size)

        return self.submit(self.resolve_stream(context, _CURRENT_STREAM), _Operation("kernel", "copy array", run))

    def _as_on_host(self, name: str, *arguments: Any) -> bool:
        """Run a routine of the library for the device as its counterpart for the host."""
        stream = self.resolve_stream(self.wp_cuda_context_get_current(), _CURRENT_STREAM)
        function = getattr(self.library, name)
        return self.submit(stream, _Operation("kernel", name, lambda: function(*arguments)))

    def wp_array_scan_int_device(self, *arguments: Any) -> bool:
        return self._as_on_host("wp_array_scan_int_host", *arguments)

    def wp_segmented_sort_pairs_float_device(self, *arguments: Any) -> bool:
        return self._as_on_host("wp_segmented_sort_pairs_float_host", *arguments)

    def wp_bvh_create_device(self, context: Any, *arguments: Any) -> int:
        return self.library.wp_bvh_create_host(*arguments)

    def wp_bvh_refit_device(self, bvh: int) -> bool:
        return self._as_on_host("wp_bvh_refit_host", bvh)

    def wp_bvh_destroy_device(self, bvh: int) -> None:
        self.library.wp_bvh_destroy_host(bvh)

    def wp_mesh_create_device(self, context: Any, *arguments: Any) -> int:
        return self.library.wp_mesh_create_host(*arguments)

    def wp_mesh_destroy_device(self, mesh: int) -> None:
        self.library.wp_mesh_destroy_host(mesh)

    # A kernel's CPU build runs its threads one after the other and adds at once: nothing is left to sort. The counting
    # pass of a kernel that uses what an atomic counter returns is not launched.

    def wp_deterministic_sort_reduce_workspace_size(self, count: int, *arguments: Any) -> int:
        return 64 * count  # At least what the keys and values of a sort that is not in place need.

    def wp_deterministic_counter_scan_workspace_size(self, count: int) -> int:
        return 64 * count

    def wp_cuda_thread_exchange_capture_mode(self, mode: int) -> int:
        previous = getattr(self._thread, "capture_mode", 0)
        self._thread.capture_mode = mode
        return previous

    # Modules and launches ----------------------------------------------------------------------------------------

    def wp_cuda_compile_program(self, source: bytes, *arguments: Any) -> int:
        if not self.settings.compiles:
            output: bytes = arguments[_OUTPUT_PATH - 1]
            Path(output.decode()).write_bytes(source)  # It has the names of the kernels in it, as a CUBIN does.
            return 0
        compile_program = self.library.wp_cuda_compile_program
        compile_program.argtypes = self.declared["wp_cuda_compile_program"].argtypes
        compile_program.restype = ctypes.c_size_t
        return compile_program(source, *arguments)

    def wp_cuda_compile_solver(self, *arguments: Any) -> bool:
        if not self.settings.compiles:
            for output in arguments[:2]:
                Path(output.decode()).touch()
            return True
        compile_solver = self.library.wp_cuda_compile_solver
        compile_solver.argtypes = self.declared["wp_cuda_compile_solver"].argtypes
        compile_solver.restype = ctypes.c_bool
        return compile_solver(*arguments)

    def wp_cuda_load_module(self, context: Any, path: bytes) -> int:
        handle = self.handle()
        self._modules[handle] = Path(path.decode()).read_bytes()
        return handle

    def wp_cuda_get_kernel(self, context: Any, module: Any, name: bytes) -> int | None:
        if name not in self._modules[_number(module)]:
            self.refuse(f"the compiled module has no symbol {name.decode()}")
            return None
        handle = self.handle()
        self._names[handle] = name
        return handle

    def wp_cuda_configure_kernel_shared_memory(self, kernel: Any, size: int) -> int:
        return int(size <= self.wp_cuda_device_get_max_shared_memory(0))

    def wp_cuda_get_suggested_block_size(self, context: Any, kernel: Any, shared: int, block: Any, grid: Any) -> bool:
        block._obj.value = 256
        grid._obj.value = self.settings.multiprocessors * 4
        return True

    def wp_cuda_launch_kernel(
        self,
        context: Any,
        hook: Any,
        size: int,
        max_blocks: int,
        block_dim: int,
        grid_stride: int,
        cluster_dim: int,
        shared: int,
        addresses: Any,
        stream: Any,
        recording: Any,
    ) -> int:
        import warp._src.context as warp_context

        kernel, params, is_counting = _launched()
        if is_counting:
            return 0
        own = [_copy_of(value) for value in params]
        block = block_dim if block_dim > 1 and self.uses_tiles(kernel) else 1
        self.kernel_launches[kernel.key, block_dim] += 1
        runtime: Any = warp_context.runtime
        executable = kernel.module.load(runtime.cpu_device, block)
        hooks = executable.get_kernel_hooks(kernel)
        invoke: Any = warp_context.invoke_cpu_blocks if block > 1 else warp_context.invoke

        def run(_keep: Any = (params, executable)) -> None:
            with self._runs_kernel:
                invoke(kernel, hooks, own, False)

        values = b"".join(bytes(value) for value in own if isinstance(value, _PLAIN))
        return int(not self.submit(self.resolve_stream(context, stream), _Operation("kernel", kernel.key, run, values)))

    # Graphs ------------------------------------------------------------------------------------------------------

    def wp_cuda_graph_begin_capture(self, context: Any, stream: Any, external: int, mode: int) -> bool:
        self._streams[_number(stream)].capture = _Graph(id=self.handle())
        return True

    def wp_cuda_graph_end_capture(self, context: Any, stream: Any, graph: Any) -> bool:
        graph._obj.value = self._end(stream)
        return True

    def _end(self, stream: Any) -> int:
        info = self._streams[_number(stream)]
        if info.capture is None:
            message = "a capture ended that had not begun"
            raise EmulationError(message)
        handle = self.handle()
        self._graphs[handle] = info.capture
        info.capture = None
        return handle

    def wp_cuda_graph_create_exec(self, context: Any, stream: Any, graph: Any, executable: Any) -> bool:
        if not self.settings.can_instantiate:
            return self.refuse("CUDA error 801: operation not supported (graph instantiation)")
        handle = self.handle()
        self._executables[handle] = self._graphs[_number(graph)]
        executable._obj.value = handle
        return True

    def wp_cuda_graph_launch(self, executable: Any, stream: Any) -> bool:
        if self.is_capturing:
            return self.refuse("graph launch inside a capture")
        self.graph_launches += 1
        self._executables[_number(executable)].run()
        return True

    def wp_cuda_graph_insert_while(
        self, context: Any, stream: Any, arch: int, ptx: int, condition: Any, body: Any, handle: Any
    ) -> bool:
        graph, value, number = _Graph(), ctypes.cast(condition, ctypes.POINTER(ctypes.c_int32)), self.handle()
        self._graphs[number] = graph
        body._obj.value = handle._obj.value = number

        def run() -> None:
            for _ in range(_MOST_ROUNDS):
                if not value.contents.value:
                    return
                graph.run()
            message = f"a while node did not end within {_MOST_ROUNDS} rounds"
            raise EmulationError(message)

        return self.submit(_number(stream), _Operation("conditional", "while", run))

    def wp_cuda_graph_insert_if_else(
        self, context: Any, stream: Any, arch: int, ptx: int, condition: Any, on_true: Any, on_false: Any
    ) -> bool:
        value = ctypes.cast(condition, ctypes.POINTER(ctypes.c_int32))
        bodies: list[_Graph | None] = []
        for out in (on_true, on_false):
            bodies.append(None if out is None else _Graph())
            if out is not None:
                out._obj.value = self.handle()
                self._graphs[out._obj.value] = bodies[-1]  # pyright: ignore[reportArgumentType]

        def run() -> None:
            body = bodies[0] if value.contents.value else bodies[1]
            if body is not None:
                body.run()

        return self.submit(_number(stream), _Operation("conditional", "if", run))

    def wp_cuda_graph_pause_capture(self, context: Any, stream: Any, graph: Any) -> bool:
        graph._obj.value = self._end(stream)
        return True

    def wp_cuda_graph_resume_capture(self, context: Any, stream: Any, graph: Any) -> bool:
        resumed = self._graphs[_number(graph)]
        resumed.id = self.handle()
        self._streams[_number(stream)].capture = resumed
        return True

    def wp_cuda_graph_check_conditional_body(self, graph: Any) -> bool:
        for operation in self._graphs[_number(graph)].operations:
            if operation.kind.startswith("memory"):
                return self.refuse(f"a conditional body with an unsupported operation ({operation.kind})")
        return True


_CONSTANTS: dict[str, Any] = {
    "wp_cuda_driver_is_initialized": 1,
    "wp_cuda_device_get_name": b"Emulated GPU",
    "wp_cuda_device_is_uva": 1,
    "wp_cuda_device_get_pageable_memory_access": 0,
    "wp_cuda_device_get_direct_managed_mem_access_from_host": 0,
    "wp_cuda_device_get_host_native_atomic_supported": 0,
    "wp_cuda_device_get_managed_memory_supported": 1,
    "wp_cuda_device_get_concurrent_managed_access_supported": 1,
    "wp_cuda_device_is_ipc_supported": 1,
    "wp_cuda_device_get_uuid": None,
    "wp_cuda_device_get_pci_domain_id": 0,
    "wp_cuda_device_get_pci_device_id": 0,
    "wp_cuda_is_peer_access_supported": 1,
    "wp_cuda_context_is_primary": 1,
    "wp_cuda_context_check": 0,
    "wp_cuda_stream_unregister": None,
    "wp_cuda_stream_destroy": None,
    "wp_cuda_stream_is_blocking": 1,
    "wp_cuda_stream_query": 0,
    "wp_cuda_stream_wait_stream": None,
    "wp_cuda_stream_wait_event": None,
    "wp_cuda_event_destroy": None,
    "wp_cuda_event_record": None,
    "wp_deterministic_sort_reduce_device": None,
    "wp_deterministic_counter_scan_device": None,
    "wp_deterministic_counter_validate_replay_device": None,
    "wp_deterministic_counter_writeback_device": None,
    "wp_cuda_unload_module": None,
    "wp_cuda_get_kernel_static_shared_memory": 0,
    "wp_cuda_set_kernel_cluster_attrs": 1,
    "wp_cuda_graph_destroy": None,
    "wp_cuda_graph_exec_destroy": None,
    "wp_cuda_graph_set_condition": True,
}
"""Functions that return the same whatever is asked, and do nothing."""

_REAL = {f"wp_cuda_{name}" for name in ("toolkit_version", "compile_dot", "compile_fft")}
"""Functions of the C library that need no driver."""


class Proxy:
    """Stands for Warp's C library: functions that need a GPU are the emulation's, all others the library's own."""

    def __init__(self, driver: Driver) -> None:
        """Stand for the library of a driver."""
        object.__setattr__(self, "_driver", driver)

    def __getattr__(self, name: str) -> Any:
        driver: Driver = self._driver
        if name in _CONSTANTS or (name.startswith("wp_") and hasattr(Driver, name)):
            emulated = getattr(driver, name, lambda *_: _CONSTANTS[name])

            # A function of its own, since Warp declares the types of arguments on the functions of its library.
            function: Any = _own(emulated)
            driver.declared[name] = function
        elif needs_gpu(name):
            function = _lacking(name)
        else:
            function = getattr(driver.library, name)
        object.__setattr__(self, name, function)
        return function


def _own(emulated: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: emulated(*arguments)  # noqa: PLW0108


def _lacking(name: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        message = f"The emulated GPU lacks {name}: add it to {__name__}."
        raise EmulationError(message)

    return refuse


def needs_gpu(name: str) -> bool:
    """Whether a function of Warp's C library needs a GPU."""
    return name not in _REAL and (name.startswith("wp_cuda_") or name.endswith("_device") or "device_async" in name)


_PLAIN = (ctypes.Structure, ctypes.Array, ctypes._SimpleCData)


def _copy_of(value: Any) -> Any:
    """Return a copy of an argument, as a launch takes it."""
    return type(value).from_buffer_copy(value) if isinstance(value, _PLAIN) else value


def _launched() -> tuple[Any, list[Any], bool]:
    """Return the kernel, the arguments, and whether this is the counting pass, of the launch that calls.

    They are locals of Warp's own functions. A deterministic launch may have a counting pass.
    """
    frame, all_params = sys._getframe(2), list[Any]()
    while frame is not None:
        found = frame.f_locals
        all_params = found.get("params_list", all_params)
        itself: Any = found.get("self")
        if "kernel" in found and "params" in found:
            kernel, params = found["kernel"], found["params"]
        elif hasattr(itself, "kernel") and hasattr(itself, "params"):
            kernel, params = itself.kernel, itself.params
        else:
            frame = frame.f_back
            continue
        # The arguments of a deterministic launch go on with the pass: 0 counts, 1 computes.
        return kernel, params, len(all_params) > len(params) and all_params[len(params)].value == 0
    message = "The caller of wp_cuda_launch_kernel has no kernel and params: look at what changed in Warp."
    raise EmulationError(message)


def _fill(pointer: int, count: int, value: int) -> None:
    ctypes.memset(pointer, value, count)


def _number(handle: Any) -> int:
    """Return a handle or pointer as a number, however Warp passes it."""
    if handle is None:
        return 0
    if isinstance(handle, int):
        return handle
    if hasattr(handle, "value"):
        return handle.value or 0
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def patch_warp(context: Any, open_driver: Callable[[Any], Driver]) -> None:
    """Let Warp start with emulated GPUs.

    Args:
        context: The module `warp._src.context`, just imported.
        open_driver: Makes the driver over Warp's C library.
    """
    import warp

    if not warp.config.version.startswith(f"{WARP_RELEASE}."):
        message = (
            f"The emulated GPU knows Warp {WARP_RELEASE}, and this is {warp.config.version}: compare the calls into "
            f"the C library in warp/_src/context.py with {inspect.getfile(Driver)}, run `make test-emulated`, and "
            "raise WARP_RELEASE there."
        )
        raise EmulationError(message)
    warp.config.enable_cpu_blocks = True
    # A kernel that reads the memory of another device ends a GPU's context; here it would read it.
    warp.config.launch_array_access_mode = warp.config.LaunchArrayAccessMode.STRICT
    load_library = context.Runtime.load_dll

    def load_dll(self: Any, path: str) -> Any:
        library = load_library(self, path)
        if "clang" in Path(path).name:
            return library
        return Proxy(open_driver(library))

    context.Runtime.load_dll = load_dll
