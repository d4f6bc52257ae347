"""The device of each worker of this machine: `--gpu-ids` and `--nproc-per-node` applied to the visible GPUs."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shoal.errors import UsageError, did_you_mean
from shoal.machine.gpus import VisibleGpus

GpuIds = tuple[int, ...] | Literal["all", "auto"] | None
"""Indices among the visible GPUs; `all` of them; `auto` when the flag was not given; None for the CPU."""

_INDEX = re.compile(r"-?[0-9]{1,9}")
_RANGE = re.compile(r"(?P<first>[0-9]{1,3})(?:-|:|\.\.)(?P<last>[0-9]{1,3})")
_LISTED_AT_MOST = 8  # indices that a message lists; beyond, it gives bounds
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
    """Sentences about decisions that the user did not request."""


def parse_gpu_ids(words: Sequence[str]) -> GpuIds:
    """Parse the values of `--gpu-ids`: ``0 1``, ``0,1``, ``[0,1]``, ``all`` or ``None``.

    Raises:
        UsageError: They are neither indices nor a keyword.
    """
    text = " ".join(words).strip()
    inner = text[1:-1].strip() if text.startswith("[") and text.endswith("]") else text
    if not inner:
        raise UsageError(f"--gpu-ids {text}".strip() + f" names no GPU: {_FORMS}")
    if inner.lower() in ("all", "none"):
        return "all" if inner.lower() == "all" else None
    entries = re.split(r"\s*,\s*|\s+", inner)
    for entry in entries:
        if not _INDEX.fullmatch(entry):
            raise UsageError(f"--gpu-ids {text} was asked for, but {_why_no_index(entry)}")
    return tuple(int(entry) for entry in entries)


def _why_no_index(entry: str) -> str:
    """Return what is wrong with one entry of `--gpu-ids`, and what to pass instead."""
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
    """Assign a device to each worker of this machine.

    By default there is one worker for each GPU, and one on the CPU. More workers than GPUs share them in turn. With
    `auto` one worker gets GPU 0, and `nproc_per_node` workers get the first so many GPUs, or share all of them when
    there are fewer.

    Args:
        gpu_ids: The requested GPUs.
        nproc_per_node: Workers on this machine, None for the default.
        gpus: The visible GPUs.

    Raises:
        UsageError: The request cannot be met.
    """
    if nproc_per_node is not None and nproc_per_node < 1:
        raise UsageError(
            f"--nproc-per-node {nproc_per_node} was asked for, but a run needs at least one worker: "
            "pass --nproc-per-node 1, or leave the flag out."
        )
    if gpu_ids is None:
        return _on_cpu(nproc_per_node or 1)
    if gpu_ids == "auto" and not gpus:
        return _on_cpu(nproc_per_node or 1, f"No GPU is visible ({_why_none(gpus)}): training on the CPU.")
    indices = _chosen(gpu_ids, nproc_per_node, gpus)
    workers = nproc_per_node or len(indices)
    if workers < len(indices):
        raise UsageError(
            f"{len(indices)} GPUs were asked for ({_commas(indices)}), but only {_count(workers, 'worker')}, "
            f"and a worker uses one GPU: pass --nproc-per-node {len(indices)}, "
            f"or --gpu-ids {_spaced(indices[:workers])}."
        )
    return _on_gpus(indices, workers, gpus)


def plan_bound_workers(gpu_ids: GpuIds, workers: int, gpus: VisibleGpus) -> WorkerDevices:
    """Assign a device to each worker of this machine where each sees other GPUs, which it counts from 0.

    Args:
        gpu_ids: The requested GPUs.
        workers: Workers on this machine.
        gpus: The GPUs that this worker sees.

    Raises:
        UsageError: The request cannot be met.
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
    notes = (_missing_gpus(gpus), _ORDER_NOTE if gpus.order_is_uncertain else None, why_gloo)
    return WorkerDevices(
        devices=tuple(f"cuda:{indices[worker % len(indices)]}" for worker in range(workers)),
        supports_nccl=not shared and not has_mig,
        notes=tuple(filter(None, notes)),
    )


def _chosen(
    gpu_ids: tuple[int, ...] | Literal["all", "auto"], nproc_per_node: int | None, gpus: VisibleGpus
) -> tuple[int, ...]:
    """Return the requested indices.

    Raises:
        UsageError: They are not visible.
    """
    if gpu_ids == "auto":
        return tuple(range(min(nproc_per_node or 1, len(gpus))))
    if not gpus:
        requested = "All GPUs were" if gpu_ids == "all" else _were(gpu_ids)
        remedy = "change or unset it, or pass" if gpus.hidden_count else "pass"
        raise UsageError(
            f"{requested} asked for, but no GPU is visible ({_why_none(gpus)}): "
            f"{remedy} --gpu-ids None to train on the CPU."
        )
    if gpu_ids == "all":
        return tuple(range(len(gpus)))
    message = _why_unavailable(gpu_ids, gpus)
    if message:
        raise UsageError(message)
    return gpu_ids


def _why_unavailable(indices: tuple[int, ...], gpus: VisibleGpus) -> str | None:
    """Return the error about the indices that are invalid, with what to pass instead. None when all are valid."""
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
        reasons = (f"{_mask_effect(gpus)}." if gpus.hidden_count else None, _missing_gpus(gpus))
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
        return _mask_effect(gpus)
    return gpus.problem or "this machine has no NVIDIA GPU"


def _missing_gpus(gpus: VisibleGpus) -> str | None:
    """Return a note about GPUs of the machine that do not work, beside those that do."""
    return f"{gpus.problem[0].upper()}{gpus.problem[1:]}. Training does without." if gpus.problem else None


def _mask_effect(gpus: VisibleGpus) -> str:
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
