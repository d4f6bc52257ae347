"""The device of each worker of this machine: `--gpu-ids` and `--nproc-per-node` applied to the visible GPUs."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.errors import UsageError, counted, did_you_mean
from shoal.machine.gpus import VisibleGpus

GpuIds = tuple[int, ...] | Literal["all", "auto"] | None
"""Indices among the visible GPUs; `all` of them; `auto` when the flag was not given; None for the CPU."""

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
    """About decisions that the user did not request."""


def parse_gpu_ids(words: Sequence[str]) -> GpuIds:
    """Parse the values of `--gpu-ids`: ``0 1``, ``0,1``, ``[0,1]``, ``all`` or ``None``, or its default, ``auto``."""
    if tuple(words) == ("auto",):
        return "auto"
    text = " ".join(words).strip()
    inner = text[1:-1].strip() if text.startswith("[") and text.endswith("]") else text
    if not inner:
        raise UsageError(f"--gpu-ids {text}".strip() + f" names no GPU: {_FORMS}")
    if inner.lower() in ("all", "none"):
        return "all" if inner.lower() == "all" else None
    entries = re.split(r"\s*,\s*|\s+", inner)
    for entry in entries:
        if not re.fullmatch(r"-?[0-9]{1,9}", entry):
            raise UsageError(f"--gpu-ids {text} was asked for, but {_why_no_index(entry)}")
    return tuple(int(entry) for entry in entries)


def _why_no_index(entry: str) -> str:
    """Return what is wrong with one entry of `--gpu-ids`, and what to pass instead."""
    device = re.fullmatch(r"(?:cuda|gpu):?([0-9]{1,9})", entry, re.IGNORECASE)
    span = re.fullmatch(r"([0-9]{1,3})(?:-|:|\.\.)([0-9]{1,3})", entry)
    listed = range(int(span[1]), int(span[2]) + 1) if span else ()
    wrong, remedy = f"'{entry}' is no index", _FORMS + did_you_mean(entry, ("all", "None"))
    if not entry:
        wrong, remedy = "an index is missing beside a comma", _FORMS
    elif entry.lower() in ("all", "none"):
        wrong, remedy = f"'{entry}' stands alone", _FORMS
    elif entry.lower() == "cpu":
        remedy = "pass --gpu-ids None to train on the CPU."
    elif device:
        remedy = f"pass --gpu-ids {int(device[1])}."
    elif 1 < len(listed) <= _LISTED_AT_MOST:
        wrong, remedy = "ranges are not understood", f"pass --gpu-ids {_spaced(listed)}."
    elif entry.startswith(("GPU-", "MIG-")):
        remedy = f"set CUDA_VISIBLE_DEVICES={entry} and pass --gpu-ids 0."
    return f"{wrong}: {remedy}"


def one_device(gpu_ids: Sequence[str], gpus: VisibleGpus) -> str:
    """Return the only device that `--gpu-ids` names, on a machine with `gpus`.

    Raises:
        UsageError: It names several, or one that is not there.
    """
    parsed = parse_gpu_ids(gpu_ids)
    if parsed == "all" or (isinstance(parsed, tuple) and len(parsed) > 1):
        named = " ".join(gpu_ids)
        raise UsageError(f"One device is needed, but --gpu-ids {named} may name several: pass one index, or None.")
    return plan_workers(parsed, 1, gpus).devices[0]


def plan_workers(gpu_ids: GpuIds, nproc_per_node: int | None, gpus: VisibleGpus) -> WorkerDevices:
    """Assign a device to each worker of this machine.

    By default there is one worker for each GPU, and one on the CPU. More workers than GPUs share them in turn. With
    `auto` one worker gets GPU 0, and `nproc_per_node` workers get the first so many GPUs, or share all of them when
    there are fewer.
    """
    if nproc_per_node is not None and nproc_per_node < 1:
        raise UsageError(
            f"--nproc-per-node {nproc_per_node} was asked for, but a run needs at least one worker: "
            "pass --nproc-per-node 1, or leave the flag out."
        )
    if gpu_ids is None or (gpu_ids == "auto" and not gpus):
        notes = () if gpu_ids is None else (f"No GPU is visible ({_why_none(gpus)}): training on the CPU.",)
        return WorkerDevices(devices=("cpu",) * (nproc_per_node or 1), supports_nccl=False, notes=notes)
    indices = tuple(range(min(nproc_per_node or 1, len(gpus))))
    if gpu_ids != "auto":
        indices = _requested(gpu_ids, gpus)
    workers = nproc_per_node or len(indices)
    if workers < len(indices):
        raise UsageError(
            f"{len(indices)} GPUs were asked for ({_commas(indices)}), but only {counted(workers, 'worker')}, "
            f"and a worker uses one GPU: pass --nproc-per-node {len(indices)}, "
            f"or --gpu-ids {_spaced(indices[:workers])}."
        )
    return _on_gpus(indices, workers, gpus)


def _on_gpus(indices: tuple[int, ...], workers: int, gpus: VisibleGpus) -> WorkerDevices:
    """Deal the GPUs to the workers in turn."""
    shared, has_mig = workers > len(indices), any(gpus.gpus[index].is_mig for index in indices)
    why_gloo = None
    if shared:
        sharing = f"{counted(workers, 'worker')} share {counted(len(indices), 'GPU')}"
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


def _requested(gpu_ids: tuple[int, ...] | Literal["all"], gpus: VisibleGpus) -> tuple[int, ...]:
    """Return the requested indices; refuse those that are not visible, or repeated."""
    if not gpus:
        requested = "All GPUs were" if gpu_ids == "all" else _were(gpu_ids)
        remedy = "change or unset it, or pass" if gpus.hidden_count else "pass"
        raise UsageError(
            f"{requested} asked for, but no GPU is visible ({_why_none(gpus)}): "
            f"{remedy} --gpu-ids None to train on the CPU."
        )
    if gpu_ids == "all":
        return tuple(range(len(gpus)))
    names = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus)
    visible = f"{len(gpus)} {'is' if len(gpus) == 1 else 'are'} visible ({names})"
    missing = [index for index in gpu_ids if not 0 <= index < len(gpus)]
    if missing:
        choice = f"--gpu-ids {_spaced(range(len(gpus)))}"
        if len(gpus) > _LISTED_AT_MOST:
            choice = f"--gpu-ids all, or indices from 0 to {len(gpus) - 1}"
        message = f"{_were(missing)} asked for, but {visible}: pass {choice}."
        reasons = (f"{_mask_effect(gpus)}." if gpus.hidden_count else None, _missing_gpus(gpus))
        raise UsageError(" ".join((message, *filter(None, reasons))))
    repeated = [index for index, times in Counter(gpu_ids).items() if times > 1]
    if repeated:
        once = tuple(dict.fromkeys(gpu_ids))
        raise UsageError(
            f"{_were(repeated)} asked for more than once, and {visible}: pass --gpu-ids {_spaced(once)}, with "
            f"--nproc-per-node {len(gpu_ids)} if {len(gpu_ids)} workers shall share {counted(len(once), 'GPU')}."
        )
    return gpu_ids


def _were(indices: Sequence[int]) -> str:
    return f"GPU {indices[0]} was" if len(indices) == 1 else f"GPUs {_commas(indices)} were"


def _why_none(gpus: VisibleGpus) -> str:
    return _mask_effect(gpus) if gpus.hidden_count else gpus.problem or "this machine has no NVIDIA GPU"


def _missing_gpus(gpus: VisibleGpus) -> str | None:
    """Return a note about GPUs of the machine that do not work, beside those that do."""
    return f"{gpus.problem[0].upper()}{gpus.problem[1:]}. Training does without." if gpus.problem else None


def _mask_effect(gpus: VisibleGpus) -> str:
    hidden, total = gpus.hidden_count, gpus.unmasked_count
    every = "the GPU" if total == 1 else f"all {total} GPUs"
    which = every if hidden == total else f"{hidden} of the {total} GPUs"
    return f'CUDA_VISIBLE_DEVICES is "{gpus.mask}" and hides {which} of this machine'


def _commas(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


def _spaced(indices: Sequence[int]) -> str:
    return " ".join(map(str, indices))
