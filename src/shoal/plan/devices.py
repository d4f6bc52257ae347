"""Which device each worker of this machine gets: what the driver counts, and what `--gpu-ids` makes of it.

GPUs are counted by NVML, which needs no torch and makes no CUDA context, so that a refusal is fast. This is
the only home of `pynvml`. CUDA's rules about `CUDA_VISIBLE_DEVICES` are `shoal.machine.visibility`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from shoal.errors import UsageError, did_you_mean
from shoal.machine.visibility import Gpu, Inventory, MigDevice, PhysicalGpu, VisibleGpus, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

__all__ = [
    "Gpu",
    "GpuIds",
    "Inventory",
    "VisibleGpus",
    "WorkerDevices",
    "parse_gpu_ids",
    "plan_bound_workers",
    "plan_workers",
    "read_inventory",
    "visible_gpus",
]

GpuIds = tuple[int, ...] | Literal["all", "auto"] | None
"""Indices among the visible GPUs; `all` of them; `auto` when the flag was not given; None for the CPU."""

_INDEX = re.compile(r"-?[0-9]{1,9}")
_RANGE = re.compile(r"(?P<first>[0-9]{1,3})(?:-|:|\.\.)(?P<last>[0-9]{1,3})")
_LISTED_AT_MOST = 8  # indices spelled out in advice: those of the usual machine; beyond, bounds read better
_FORMS = "pass indices, such as --gpu-ids 0 1, or all, or None for the CPU."
_ORDER_NOTE = (
    "The GPUs of this machine differ, and CUDA_DEVICE_ORDER is not PCI_BUS_ID, so CUDA counts the fastest one first: "
    "a name may stand beside the wrong index. Set CUDA_DEVICE_ORDER=PCI_BUS_ID to count them as nvidia-smi does."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDevices:
    """The workers of one node, each with its device."""

    devices: tuple[str, ...]
    """Device of each worker as torch writes it, by local rank: ``cuda:0``, or ``cpu``."""
    supports_nccl: bool
    """Whether each worker has a whole GPU of its own, as NCCL needs."""
    notes: tuple[str, ...] = ()
    """Sentences that the user should read: what was decided that was not asked for."""


def visible_gpus(environ: Mapping[str, str] = os.environ, probe: Callable[[], Inventory] | None = None) -> VisibleGpus:
    """Return the GPUs that CUDA will show to this process.

    Args:
        environ: Environment variables.
        probe: What counts the machine's GPUs, `read_inventory` by default.
    """
    return resolve(
        (probe or read_inventory)(),
        environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=environ.get("CUDA_DEVICE_ORDER"),
    )


def read_inventory() -> Inventory:
    """Count the machine's GPUs and MIG devices. A machine that cannot count them has none, and says why."""
    try:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]  # `_ask` takes it as a plain module
    except ImportError as error:
        return Inventory(problem=f"the package nvidia-ml-py cannot be imported: {error}")
    return _ask(pynvml)


def _ask(nvml: ModuleType) -> Inventory:
    """Count by NVML, and let go of it: a process that will spawn others holds no handle of the driver."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return Inventory(problem="no NVIDIA driver was found")
    except nvml.NVMLError as error:
        return Inventory(problem=f"the NVIDIA driver answers: {error}")
    try:
        asked = [_physical_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        release = re.match(r"[0-9]+", nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        return Inventory(problem=f"the NVIDIA driver answers: {error}")
    finally:
        nvml.nvmlShutdown()
    silent = [
        f"the NVIDIA driver says of GPU {index}: {gpu}" for index, gpu in enumerate(asked) if isinstance(gpu, str)
    ]
    return Inventory(
        gpus=tuple(gpu for gpu in asked if isinstance(gpu, PhysicalGpu)),
        driver_release=int(release[0]) if release else None,
        problem=", ".join(silent) or None,
    )


def _physical_gpu(nvml: ModuleType, index: int) -> PhysicalGpu | str:
    """Ask for one GPU; return the driver's words when it cannot be had, as one that has fallen off the bus."""
    try:
        return _described(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        return str(error)


def _described(nvml: ModuleType, handle: object) -> PhysicalGpu:
    return PhysicalGpu(
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        memory_bytes=_memory_bytes(nvml, handle),
        mig_devices=_mig_devices(nvml, handle),
    )


def _mig_devices(nvml: ModuleType, gpu: object) -> tuple[MigDevice, ...] | None:
    """Return the MIG devices of a GPU, None when MIG mode is off or unknown to it."""
    try:
        mode, _pending = nvml.nvmlDeviceGetMigMode(gpu)
    except nvml.NVMLError:  # GPUs without MIG, and drivers older than MIG
        return None
    if mode != nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    devices: list[MigDevice] = []
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)
        except nvml.NVMLError_NotFound:  # nothing was made in this slot
            continue
        devices.append(
            MigDevice(
                name=nvml.nvmlDeviceGetName(handle),
                uuid=nvml.nvmlDeviceGetUUID(handle),
                memory_bytes=_memory_bytes(nvml, handle),
                gpu_instance=nvml.nvmlDeviceGetGpuInstanceId(handle),
                compute_instance=nvml.nvmlDeviceGetComputeInstanceId(handle),
            )
        )
    return tuple(devices)


def _memory_bytes(nvml: ModuleType, handle: object) -> int | None:
    try:
        memory: Any = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:  # memory shared with the host, or a MIG parent that this user may not ask
        return None
    return int(memory.total)


def parse_gpu_ids(words: Sequence[str]) -> GpuIds:
    """Read the words after `--gpu-ids`: ``0 1``, ``0,1``, ``[0,1]``, ``all`` or ``None``.

    Raises:
        UsageError: They are something else.
    """
    asked = " ".join(words).strip()
    inner = asked[1:-1].strip() if asked.startswith("[") and asked.endswith("]") else asked
    if not inner:
        message = f"--gpu-ids {asked}".strip() + f" names no GPU: {_FORMS}"
        raise UsageError(message)
    if inner.lower() in ("all", "none"):
        return "all" if inner.lower() == "all" else None
    entries = re.split(r"\s*,\s*|\s+", inner)
    for entry in entries:
        if not _INDEX.fullmatch(entry):
            message = f"--gpu-ids {asked} was asked for, but {_why_no_index(entry)}"
            raise UsageError(message)
    return tuple(int(entry) for entry in entries)


def _why_no_index(entry: str) -> str:
    """Say what is wrong with one entry of `--gpu-ids`, and what to pass instead."""
    device = re.fullmatch(r"(?:cuda|gpu):?(?P<index>[0-9]{1,9})", entry, re.IGNORECASE)
    span = _RANGE.fullmatch(entry)
    wrong, remedy = f"'{entry}' is no index", _FORMS + did_you_mean(entry, ("all", "None"))
    if not entry:
        wrong, remedy = "an index is missing beside a comma", _FORMS
    elif entry.lower() in ("all", "none"):
        wrong, remedy = f"'{entry}' stands alone", _FORMS
    elif entry.lower() == "cpu":
        remedy = "pass --gpu-ids None to train on the CPU."
    elif device:
        remedy = f"pass --gpu-ids {int(device['index'])}."
    elif span and 0 < int(span["last"]) - int(span["first"]) < _LISTED_AT_MOST:
        wrong = "ranges are not understood"
        remedy = f"pass --gpu-ids {_spaced(range(int(span['first']), int(span['last']) + 1))}."
    elif entry.startswith(("GPU-", "MIG-")):
        remedy = f"set CUDA_VISIBLE_DEVICES={entry} and pass --gpu-ids 0."
    return f"{wrong}: {remedy}"


def plan_workers(gpu_ids: GpuIds, nproc_per_node: int | None, gpus: VisibleGpus) -> WorkerDevices:
    """Give each worker of this machine its device.

    There is one worker for each GPU, and one on the CPU, unless `nproc_per_node` says otherwise. More workers
    than GPUs share them in turn. With `auto` one worker takes GPU 0, and `nproc_per_node` workers take the
    first so many GPUs, or share all of them when there are fewer.

    Args:
        gpu_ids: What was asked for.
        nproc_per_node: Workers on this machine, None for the default.
        gpus: What is visible.

    Raises:
        UsageError: What was asked for cannot be had.
    """
    if nproc_per_node is not None and nproc_per_node < 1:
        message = (
            f"--nproc-per-node {nproc_per_node} was asked for, but a run needs at least one worker: "
            "pass --nproc-per-node 1, or leave the flag out."
        )
        raise UsageError(message)
    if gpu_ids is None:
        return _on_cpu(nproc_per_node or 1)
    if gpu_ids == "auto" and not gpus:
        return _on_cpu(nproc_per_node or 1, f"No GPU is visible ({_why_none(gpus)}): training on the CPU.")
    indices = _chosen(gpu_ids, nproc_per_node, gpus)
    workers = nproc_per_node or len(indices)
    if workers < len(indices):
        message = (
            f"{len(indices)} GPUs were asked for ({_commas(indices)}), but only {_count(workers, 'worker')}, "
            f"and a worker uses one GPU: pass --nproc-per-node {len(indices)}, "
            f"or --gpu-ids {_spaced(indices[:workers])}."
        )
        raise UsageError(message)
    return _on_gpus(indices, workers, gpus)


def plan_bound_workers(gpu_ids: GpuIds, workers: int, gpus: VisibleGpus) -> WorkerDevices:
    """Give each worker of this machine its device where each sees other GPUs: all count their own from 0.

    Args:
        gpu_ids: What was asked for.
        workers: Workers on this machine.
        gpus: What is visible to this worker.

    Raises:
        UsageError: What was asked for cannot be had.
    """
    own = plan_workers(gpu_ids, 1, gpus)
    return replace(own, devices=own.devices * workers)


def _on_cpu(workers: int, *notes: str) -> WorkerDevices:
    return WorkerDevices(devices=("cpu",) * workers, supports_nccl=False, notes=notes)


def _on_gpus(indices: tuple[int, ...], workers: int, gpus: VisibleGpus) -> WorkerDevices:
    """Deal the GPUs to the workers in turn."""
    shared, has_mig = workers > len(indices), any(gpus.gpus[index].is_mig for index in indices)
    why_gloo = None
    if shared:
        sharing = f"{_count(workers, 'worker')} share {_count(len(indices), 'GPU')}"
        why_gloo = f"{sharing} and talk through gloo: NCCL refuses two ranks on one GPU."
    elif workers > 1 and has_mig:
        # To NCCL two slices of one GPU are one GPU, and its support for slices of several is experimental.
        why_gloo = f"{workers} workers use MIG devices and talk through gloo: NCCL takes whole GPUs only."
    notes = (_what_is_lost(gpus), _ORDER_NOTE if gpus.order_is_uncertain else None, why_gloo)
    return WorkerDevices(
        devices=tuple(f"cuda:{indices[worker % len(indices)]}" for worker in range(workers)),
        supports_nccl=not shared and not has_mig,
        notes=tuple(filter(None, notes)),
    )


def _chosen(
    gpu_ids: tuple[int, ...] | Literal["all", "auto"], nproc_per_node: int | None, gpus: VisibleGpus
) -> tuple[int, ...]:
    """Return the indices that were asked for, after making sure that they can be had."""
    if gpu_ids == "auto":
        return tuple(range(min(nproc_per_node or 1, len(gpus))))
    if not gpus:
        asked = "All GPUs were" if gpu_ids == "all" else _were(gpu_ids)
        remedy = "change or unset it, or pass" if gpus.hidden_count else "pass"
        message = (
            f"{asked} asked for, but no GPU is visible ({_why_none(gpus)}): "
            f"{remedy} --gpu-ids None to train on the CPU."
        )
        raise UsageError(message)
    if gpu_ids == "all":
        return tuple(range(len(gpus)))
    trouble = _trouble(gpu_ids, gpus)
    if trouble:
        raise UsageError(trouble)
    return gpu_ids


def _trouble(indices: tuple[int, ...], gpus: VisibleGpus) -> str | None:
    """Say which of the indices cannot be had and what to pass instead. None when all can."""
    names = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus)
    visible = f"{len(gpus)} {'is' if len(gpus) == 1 else 'are'} visible ({names})"
    choice = f"--gpu-ids {_spaced(range(len(gpus)))}"
    if len(gpus) > _LISTED_AT_MOST:
        choice = f"--gpu-ids all, or indices from 0 to {len(gpus) - 1}"
    negative = [index for index in indices if index < 0]
    if negative:
        return (
            f"{_were(negative)} asked for, but an index is never negative, and {visible}: "
            f"pass {choice}, or --gpu-ids None for the CPU."
        )
    missing = [index for index in indices if index >= len(gpus)]
    if missing:
        reasons = (f"{_what_hides(gpus)}." if gpus.hidden_count else None, _what_is_lost(gpus))
        return " ".join((f"{_were(missing)} asked for, but {visible}: pass {choice}.", *filter(None, reasons)))
    repeated = [index for index, times in Counter(indices).items() if times > 1]
    if repeated:
        once = tuple(dict.fromkeys(indices))
        return (
            f"{_were(repeated)} asked for more than once, and {visible}: pass --gpu-ids {_spaced(once)}, "
            f"with --nproc-per-node {len(indices)} if {len(indices)} workers shall share "
            f"{_count(len(once), 'GPU')}."
        )
    return None


def _were(indices: Sequence[int]) -> str:
    return f"GPU {indices[0]} was" if len(indices) == 1 else f"GPUs {_commas(indices)} were"


def _why_none(gpus: VisibleGpus) -> str:
    if gpus.hidden_count:
        return _what_hides(gpus)
    return gpus.problem or "this machine has no NVIDIA GPU"


def _what_is_lost(gpus: VisibleGpus) -> str | None:
    """Tell of GPUs that the machine has and that cannot be had, beside those that can."""
    return f"{gpus.problem[0].upper()}{gpus.problem[1:]}. Training does without." if gpus.problem else None


def _what_hides(gpus: VisibleGpus) -> str:
    hidden, total = gpus.hidden_count, gpus.unmasked_count
    every = "the GPU" if total == 1 else f"all {total} GPUs"
    which = every if hidden == total else f"{hidden} of the {total} GPUs"
    return f'CUDA_VISIBLE_DEVICES is "{gpus.mask}" and hides {which} of this machine'


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _commas(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


def _spaced(indices: Sequence[int]) -> str:
    return " ".join(map(str, indices))
