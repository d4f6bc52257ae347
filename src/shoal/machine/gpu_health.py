"""State of the GPUs, read by NVML: free memory and the processes that hold it, errors, modes, and links.

Reading creates no CUDA context, and so takes no memory on any GPU. Counting GPUs is `shoal.machine.gpus`; the state is
judged in `shoal.checks.gpu`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.machine.cgroups import read_text
from shoal.machine.gpus import Gpu, NvmlError, opened_nvml


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
    """Its command. Empty where it is not visible, as from inside a container."""
    memory_bytes: int | None = None
    """None where the driver does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState(Gpu):
    """A visible GPU or MIG device with its state. What the driver does not report is None."""

    problem: str | None = None
    """The driver's error instead of a state, such as that the GPU is lost."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    holders: tuple[Holder, ...] = ()
    compute_mode: str | None = None
    """``default``, ``exclusive process`` or ``prohibited``."""
    temperature_c: int | None = None
    uncorrected_errors: int | None = None
    """Memory errors since the driver was loaded that ECC did not correct."""
    repair_pending: bool | None = None
    """Whether memory rows or pages will be remapped at the next reset."""
    repair_failed: bool | None = None
    """Whether no spare rows were left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """Connection between two visible GPUs."""

    one: int
    other: int
    """Indices among the visible devices."""
    path: str | None
    """Topology as ``nvidia-smi topo`` names it: PIX, PXB, PHB, NODE, SYS, or NV for NVLink."""
    peer_access: str | None
    """``ok``, or why one GPU cannot read the other's memory directly."""


def read_gpu_states(gpus: Sequence[Gpu]) -> tuple[GpuState, ...]:
    """Return the state of each of the visible devices `gpus`; none without a driver."""
    with suppress(NvmlError), opened_nvml() as nvml:
        return tuple(_state(nvml, gpu) for gpu in gpus)
    return ()


def read_gpu_links(gpus: Sequence[Gpu]) -> tuple[GpuLink, ...]:
    """Return the link between each two of `gpus`; none without a driver."""
    with suppress(NvmlError), opened_nvml() as nvml:
        return tuple(_link(nvml, one, other) for one, other in combinations(gpus, 2))
    return ()


def read_driver() -> Driver | None:
    """Return the driver's version, and the version of CUDA that it supports. None without a driver."""
    with suppress(NvmlError), opened_nvml() as nvml:
        optional = partial(_optional, nvml)
        # The first asks libcuda, which may be of a forward-compatibility package; the second works without libcuda.
        cuda = optional(nvml.nvmlSystemGetCudaDriverVersion_v2) or optional(nvml.nvmlSystemGetCudaDriverVersion)
        version = (cuda // 1000, cuda % 1000 // 10) if cuda else None
        return Driver(release=str(nvml.nvmlSystemGetDriverVersion()), cuda=version)
    return None


def _optional(nvml: ModuleType, query: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401  NVML has no types.
    """Return the result of an NVML function, or None where the device, driver or user does not support it.

    Raises:
        NVMLError: The device itself failed: it is lost, or has to be reset.
    """
    try:
        return query(*arguments)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
            raise
        return None


def _state(nvml: ModuleType, gpu: Gpu) -> GpuState:
    optional = partial(_optional, nvml)
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        memory = optional(nvml.nvmlDeviceGetMemoryInfo, handle)
    except nvml.NVMLError as error:
        return GpuState(**asdict(gpu), problem=str(error))
    remapped = optional(nvml.nvmlDeviceGetRemappedRows, handle)
    pending = remapped[2] if remapped else optional(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    modes = {
        nvml.NVML_COMPUTEMODE_DEFAULT: "default",
        nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive process",
    }
    uncorrected, since_driver_loaded = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return GpuState(
        **asdict(gpu),
        total_bytes=int(memory.total) if memory else None,
        free_bytes=int(memory.free) if memory else None,
        holders=tuple(
            Holder(
                pid=process.pid, name=read_text(Path(f"/proc/{process.pid}/comm")), memory_bytes=process.usedGpuMemory
            )
            for process in optional(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        ),
        compute_mode=modes.get(optional(nvml.nvmlDeviceGetComputeMode, handle)),
        temperature_c=optional(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        uncorrected_errors=optional(nvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, since_driver_loaded),
        repair_pending=None if pending is None else bool(pending),
        repair_failed=bool(remapped[3]) if remapped else None,
    )


def _link(nvml: ModuleType, one: Gpu, other: Gpu) -> GpuLink:
    handles = [nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in (one, other)]
    paths = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PSB",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    reasons = {
        nvml.NVML_P2P_STATUS_OK: "ok",
        nvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED: "the chipset does not support it",
        nvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: "these GPUs do not support it",
        nvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "the way between them does not support it",
        nvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: "the driver's settings disable it",
        nvml.NVML_P2P_STATUS_NOT_SUPPORTED: "it is not supported",
    }
    optional = partial(_optional, nvml)
    path = paths.get(optional(nvml.nvmlDeviceGetTopologyCommonAncestor, *handles))
    if optional(nvml.nvmlDeviceGetP2PStatus, *handles, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
        path = "NV"
    access = optional(nvml.nvmlDeviceGetP2PStatus, *handles, nvml.NVML_P2P_CAPS_INDEX_READ)
    peer_access = None if access is None else reasons.get(access, "the driver cannot tell")
    return GpuLink(one=one.index, other=other.index, path=path, peer_access=peer_access)
