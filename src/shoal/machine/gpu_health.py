"""How the GPUs are right now, told by NVML: free memory and who holds it, errors, modes, and the links between them.

Read without a CUDA context, so that looking takes no memory on any GPU. Counting GPUs is `shoal.plan.devices`; what
follows from what is read here is decided in `shoal.checks.preflight` and `shoal.doctor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.machine.cgroups import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from shoal.machine.visibility import Gpu

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver of this machine."""

    release: str
    """Version of the driver, such as ``580.65.06``."""
    cuda: tuple[int, int] | None = None
    """Newest version of CUDA that it supports, such as (13, 0). None where NVML does not return it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that has memory on a GPU."""

    pid: int
    name: str = ""
    """What the kernel calls it. Empty where it is not ours to see, as from inside a container."""
    memory_bytes: int | None = None
    """None where the driver does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One visible GPU, or MIG device, as it is now. What the driver does not tell is None."""

    index: int
    """Position among the visible devices: torch's ``cuda:<index>``."""
    name: str
    uuid: str
    problem: str | None = None
    """What the driver answers instead of telling anything, such as that the GPU is lost."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    holders: tuple[Holder, ...] = ()
    """Processes that compute on it."""
    compute_mode: str | None = None
    """``default``, ``exclusive process`` or ``prohibited``."""
    temperature_c: int | None = None
    uncorrected_errors: int | None = None
    """Memory errors since the driver was loaded that ECC could not correct."""
    repair_pending: bool | None = None
    """Whether rows or pages are to be replaced at the next reset."""
    repair_failed: bool | None = None
    """Whether there was nothing left to replace them with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two visible GPUs reach each other."""

    one: int
    other: int
    """Positions among the visible devices."""
    path: str | None
    """Where their ways meet, in the words of ``nvidia-smi topo``: PIX, PXB, PHB, NODE, SYS, or NV for NVLink."""
    peer_access: str | None
    """``ok``, or why one cannot read the other's memory directly."""


def read_gpu_states(gpus: Sequence[Gpu]) -> tuple[GpuState, ...]:
    """Return how the visible devices `gpus` are. One that the driver cannot ask has a `problem`."""
    nvml = _nvml()
    return tuple(_with_nvml(nvml, lambda: [_state(nvml, gpu) for gpu in gpus])) if nvml is not None else ()


def read_gpu_links(gpus: Sequence[Gpu]) -> tuple[GpuLink, ...]:
    """Return how each two of `gpus` reach each other."""
    nvml = _nvml()
    pairs = [(one, other) for at, one in enumerate(gpus) for other in gpus[at + 1 :]]
    if nvml is None:
        return ()
    return tuple(_with_nvml(nvml, lambda: [_link(nvml, one, other) for one, other in pairs]))


def read_driver() -> Driver | None:
    """Return the driver's version, and the version of CUDA that it supports. None without a driver."""
    nvml = _nvml()
    found = [] if nvml is None else _with_nvml(nvml, lambda: [_driver(nvml)])
    return found[0] if found else None


def _driver(nvml: ModuleType) -> Driver:
    # The first asks libcuda, which may be of a forward-compatibility package; the second also works without libcuda.
    cuda = _told(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2) or _told(nvml, nvml.nvmlSystemGetCudaDriverVersion)
    return Driver(
        release=str(nvml.nvmlSystemGetDriverVersion()), cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None
    )


def _nvml() -> ModuleType | None:
    try:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]  # used as a plain module
    except ImportError:
        return None
    return pynvml


def _with_nvml(nvml: ModuleType, ask: Callable[[], list[T]]) -> list[T]:
    """Ask, and let go: a process that will spawn others holds no handle of the driver. Nothing without a driver."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return ask()
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def _state(nvml: ModuleType, gpu: Gpu) -> GpuState:
    """Ask one device everything. A device that answers nothing at all has a problem."""
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        # What is unsupported is no problem; what the driver says to every question is.
        told: Any = _told(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    except nvml.NVMLError as error:
        return GpuState(index=gpu.index, name=gpu.name, uuid=gpu.uuid, problem=str(error))
    remapped: Any = _told(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    pending = (
        bool(remapped[2]) if remapped else _told(nvml, lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    )
    return GpuState(
        index=gpu.index,
        name=gpu.name,
        uuid=gpu.uuid,
        total_bytes=int(told.total) if told else None,
        free_bytes=int(told.free) if told else None,
        holders=_holders(nvml, handle),
        compute_mode=_compute_mode(nvml, handle),
        temperature_c=_told(nvml, lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        uncorrected_errors=_uncorrected(nvml, handle),
        repair_pending=None if pending is None else bool(pending),
        repair_failed=bool(remapped[3]) if remapped else None,
    )


def _told(nvml: ModuleType, ask: Callable[[], T]) -> T | None:
    """Return an answer, or None where this device, driver or user does not get one.

    Raises:
        NVMLError: The device itself is in trouble: it is lost, or has to be reset.
    """
    try:
        return ask()
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
            raise
        return None


def _holders(nvml: ModuleType, handle: object) -> tuple[Holder, ...]:
    running: Any = _told(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return tuple(
        Holder(
            pid=int(each.pid),
            name=read_text(Path(f"/proc/{each.pid}/comm")),
            memory_bytes=None if each.usedGpuMemory is None else int(each.usedGpuMemory),
        )
        for each in running or ()
    )


def _compute_mode(nvml: ModuleType, handle: object) -> str | None:
    names = {
        nvml.NVML_COMPUTEMODE_DEFAULT: "default",
        nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive process",
    }
    return names.get(_told(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle)))


def _uncorrected(nvml: ModuleType, handle: object) -> int | None:
    kind, since_load = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return _told(nvml, lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, since_load)))


def _link(nvml: ModuleType, one: Gpu, other: Gpu) -> GpuLink:
    here, there = (nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in (one, other))
    paths = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PSB",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    path = paths.get(_told(nvml, lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(here, there)))
    if _p2p(nvml, here, there, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == "ok":
        path = "NV"
    access = _p2p(nvml, here, there, nvml.NVML_P2P_CAPS_INDEX_READ)
    return GpuLink(one=one.index, other=other.index, path=path, peer_access=access)


def _p2p(nvml: ModuleType, here: object, there: object, capability: int) -> str | None:
    words = {
        nvml.NVML_P2P_STATUS_OK: "ok",
        nvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED: "the chipset does not support it",
        nvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: "these GPUs do not support it",
        nvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "the way between them does not support it",
        nvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: "the driver's settings disable it",
        nvml.NVML_P2P_STATUS_NOT_SUPPORTED: "it is not supported",
    }
    status = _told(nvml, lambda: nvml.nvmlDeviceGetP2PStatus(here, there, capability))
    return None if status is None else words.get(status, "the driver cannot tell")
