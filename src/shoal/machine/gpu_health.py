"""State of the GPUs and of the driver, read by NVML, and the CUDA versions that torch and Warp were built with.

Reading creates no CUDA context, and so takes no memory on any GPU. Counting GPUs is `shoal.machine.gpus`; the state is
judged in `shoal.checks.resources`.
"""

import ctypes
import runpy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.machine.gpus import Gpu, NvmlError, opened_nvml
from shoal.machine.host import read_text
from shoal.text import size

Version = tuple[int, int]
"""Major and minor version of CUDA, such as (13, 2)."""
Link = tuple[Gpu, Gpu, str | None, str | None]
"""Two visible GPUs; their topology as ``nvidia-smi topo`` names it: PIX, PXB, PHB, NODE, SYS, or NV for NVLink; and
``ok``, or why one cannot read the other's memory directly, such as ``chipset not supported``. None where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState(Gpu):
    """A visible GPU or MIG device with its state. What the driver does not report is None."""

    problem: str | None = None
    """The driver's error instead of a state, such as that the GPU is lost."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    holders: str = ""
    """The processes that have memory on it, the largest first, such as ``python (process 12, 3.1 GiB)``."""
    compute_mode: str | None = None
    """``default``, ``exclusive process`` or ``prohibited``."""
    temperature_c: int | None = None
    uncorrected_errors: int | None = None
    """Memory errors since the driver was loaded that ECC did not correct."""
    repair_pending: bool | None = None
    """Whether memory rows or pages will be remapped at the next reset."""
    repair_failed: bool | None = None
    """Whether no spare rows were left."""


def read_gpu_states(gpus: Sequence[Gpu]) -> tuple[GpuState, ...]:
    """Return the state of each of the visible devices `gpus`; none without a driver."""
    with suppress(NvmlError), opened_nvml() as nvml:
        return tuple(_state(nvml, gpu) for gpu in gpus)
    return ()


def read_gpu_links(gpus: Sequence[Gpu]) -> tuple[Link, ...]:
    """Return the link between each two of `gpus`; none without a driver."""
    with suppress(NvmlError), opened_nvml() as nvml:
        return tuple(_link(nvml, one, other) for one, other in combinations(gpus, 2))
    return ()


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver of this machine."""

    release: str
    """Its version, such as ``580.65.06``."""
    cuda: Version | None
    """The newest version of CUDA that it supports; None where NVML does not report it."""


def read_driver() -> Driver | None:
    """Return the driver; None where there is none."""
    with suppress(NvmlError), opened_nvml() as nvml:
        optional = partial(_optional, nvml)
        # The first asks libcuda, which may be of a forward-compatibility package; the second works without libcuda.
        cuda = optional(nvml.nvmlSystemGetCudaDriverVersion_v2) or optional(nvml.nvmlSystemGetCudaDriverVersion)
        version = (cuda // 1000, cuda % 1000 // 10) if cuda else None
        return Driver(str(nvml.nvmlSystemGetDriverVersion()), version)
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


def _named(nvml: ModuleType, prefix: str, value: int | None) -> str | None:
    """Return NVML's name of a constant, such as ``exclusive process``; None for a value without a name."""
    names = {number: name for name, number in vars(nvml).items() if name.startswith(prefix)}
    return names[value].removeprefix(prefix).replace("_", " ").lower() if value in names else None


def _state(nvml: ModuleType, gpu: Gpu) -> GpuState:
    try:
        return _read_state(nvml, gpu)
    except nvml.NVMLError as error:
        return GpuState(**asdict(gpu), problem=str(error))


def _read_state(nvml: ModuleType, gpu: Gpu) -> GpuState:
    optional = partial(_optional, nvml)
    handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    memory = optional(nvml.nvmlDeviceGetMemoryInfo, handle)
    remapped = optional(nvml.nvmlDeviceGetRemappedRows, handle)
    pending = remapped[2] if remapped else optional(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    uncorrected, since_driver_loaded = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return GpuState(
        **asdict(gpu),
        total_bytes=int(memory.total) if memory else None,
        free_bytes=int(memory.free) if memory else None,
        holders=_holders(optional(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()),
        compute_mode=_named(nvml, "NVML_COMPUTEMODE_", optional(nvml.nvmlDeviceGetComputeMode, handle)),
        temperature_c=optional(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        uncorrected_errors=optional(nvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, since_driver_loaded),
        repair_pending=None if pending is None else bool(pending),
        repair_failed=bool(remapped[3]) if remapped else None,
    )


def _holders(processes: Sequence[Any]) -> str:
    """Describe NVML's processes. The name of one in another container, and memory for some drivers, are unknown."""
    words: list[str] = []
    for process in sorted(processes, key=lambda each: -(each.usedGpuMemory or 0)):
        memory = None if process.usedGpuMemory is None else size(process.usedGpuMemory)
        name = read_text(Path(f"/proc/{process.pid}/comm"))
        first, *known = filter(None, (name, f"process {process.pid}", memory))
        words.append(f"{first} ({', '.join(known)})" if known else first)
    return ", ".join(words)


def _link(nvml: ModuleType, one: Gpu, other: Gpu) -> Link:
    optional = partial(_optional, nvml)
    try:
        handles = [nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in (one, other)]
        ancestor = optional(nvml.nvmlDeviceGetTopologyCommonAncestor, *handles)
        nvlink = optional(nvml.nvmlDeviceGetP2PStatus, *handles, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        access = optional(nvml.nvmlDeviceGetP2PStatus, *handles, nvml.NVML_P2P_CAPS_INDEX_READ)
    except nvml.NVMLError:  # The GPU is lost, which its state tells.
        ancestor = nvlink = access = None
    paths = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PSB",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    path = "NV" if nvlink == nvml.NVML_P2P_STATUS_OK else paths.get(ancestor)
    return one, other, path, None if access is None else _named(nvml, "NVML_P2P_STATUS_", access) or "unknown"


# CUDA versions of packages, read from their files: importing torch or Warp takes over a second -----------------------


def read_built_with() -> dict[str, Version]:
    """Return the CUDA version that torch and warp-lang were built with. A build without CUDA is left out."""
    found = {"torch": _torch_cuda(), "warp-lang": _warp_cuda()}
    return {name: version for name, version in found.items() if version is not None}


def _torch_cuda() -> Version | None:
    try:
        major, minor = runpy.run_path(str(_directory("torch") / "version.py"))["cuda"].split(".")[:2]
    except (OSError, KeyError, AttributeError):  # Not installed, or a build without CUDA, where `cuda` is None.
        return None
    return int(major), int(minor)


def _warp_cuda() -> Version | None:
    """Ask Warp's library, which needs no driver, and writes 13040 for 13.4."""
    try:
        version = ctypes.CDLL(str(_directory("warp") / "bin" / "warp.so")).wp_cuda_toolkit_version()
    except (OSError, AttributeError):  # Not installed, another system than Linux, or a release without the function.
        return None
    return (version // 1000, version % 1000 // 10) if version else None


def _directory(package: str) -> Path:
    """Return the directory of a package without importing it; one that does not exist where it is not installed."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else Path("/nonexistent")
