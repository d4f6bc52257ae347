"""Which workers run on which device of which node, how they communicate, and at which address they meet.

`--gpu-ids` and `--nproc-per-node` are applied to the visible GPUs of each node.
"""

import ipaddress
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from shoal.errors import UsageError, counted, did_you_mean, shown
from shoal.machine.gpus import VisibleGpus
from shoal.plan.environment_parity import Fingerprint
from shoal.timing import CLOCK_OFFSET_S

LOCALHOST = "localhost"
"""The name of this machine where it is the only node; rank files are named after it."""

GpuIds = tuple[int, ...] | Literal["all", "auto"] | None
"""Indices among the visible GPUs; `all` of them; `auto` when the flag was not given; None for the CPU."""

_LISTED_AT_MOST = 8  # indices that a message lists; beyond, it gives bounds
_FORMS = "pass indices, such as --gpu-ids 0 1, or all, or None for the CPU."
_ORDER_NOTE = (
    "The GPUs of this machine differ, and CUDA_DEVICE_ORDER is not PCI_BUS_ID, so CUDA counts the fastest one first: "
    "a name may stand beside the wrong index. Set CUDA_DEVICE_ORDER=PCI_BUS_ID to count them as nvidia-smi does."
)


def choose_backend(supports_nccl: Iterable[bool], world_size: int) -> Literal["nccl", "gloo"] | None:
    """Return the backend of a process group: NCCL where every node (or rank) supports it; None for one rank."""
    if world_size == 1:
        return None
    return "nccl" if all(supports_nccl) else "gloo"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What `shoal.launch.remote.host_probe` finds out about a node."""

    host: str
    """The name that was passed to `--hosts`."""
    name: str
    """The node's own host name."""
    gpus: VisibleGpus
    addresses: Mapping[str, tuple[str, ...]]
    """Its addresses, by interface."""
    reached_at: str | None
    """The address at which ssh has reached it."""
    clock_offset: float
    """How far its clock is ahead of the launching process's [s]."""
    shares_runs: bool
    """Whether it sees the directory in which the launching process makes runs."""
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """The workers of one node."""

    host: str = LOCALHOST
    """The name that was passed to `--hosts`, by which ssh knows it."""
    devices: tuple[str, ...]
    """Device of each worker as torch writes it, by local rank: ``cuda:0``, or ``cpu``."""
    uuids: tuple[str, ...] = ()
    """UUID of the GPU of each worker, by local rank, or `cpu`."""
    supports_nccl: bool = False
    """Whether each worker has a whole GPU of its own, as NCCL needs."""
    network: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables by which gloo and NCCL take the interface that leads to the other nodes."""
    shares_runs: bool = True
    """Whether it sees the run's directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Nodes with their workers."""

    nodes: tuple[NodePlan, ...] = ()
    rendezvous: str | None = None
    """Address at which the ranks of several nodes meet."""
    notes: tuple[str, ...] = ()
    """What the user should read before the workers start: about decisions that were not requested."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of each worker, in the order of their ranks."""
        return tuple(device for node in self.nodes for device in node.devices)


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


def plan_workers(gpu_ids: GpuIds, nproc_per_node: int | None, gpus: VisibleGpus) -> Nodes:
    """Assign a device to each worker of this machine, or of another one with these GPUs.

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
        devices = ("cpu",) * (nproc_per_node or 1)
        notes = () if gpu_ids is None else (f"No GPU is visible ({_why_none(gpus)}): training on the CPU.",)
        return Nodes(nodes=(NodePlan(devices=devices, uuids=devices),), notes=notes)
    indices = tuple(range(min(nproc_per_node or 1, len(gpus))))
    if gpu_ids != "auto":
        indices = _requested(gpu_ids, gpus)
    workers = nproc_per_node or len(indices)
    if workers < len(indices):
        raise UsageError(
            f"{len(indices)} GPUs were asked for ({shown(indices)}), but only {counted(workers, 'worker')}, "
            f"and a worker uses one GPU: pass --nproc-per-node {len(indices)}, "
            f"or --gpu-ids {_spaced(indices[:workers])}."
        )
    return _on_gpus(indices, workers, gpus)


def _on_gpus(indices: tuple[int, ...], workers: int, gpus: VisibleGpus) -> Nodes:
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
    devices = tuple(f"cuda:{indices[worker % len(indices)]}" for worker in range(workers))
    node = NodePlan(devices=devices, uuids=gpus.uuids(devices), supports_nccl=not shared and not has_mig)
    return Nodes(nodes=(node,), notes=tuple(filter(None, notes)))


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
    return f"GPU {indices[0]} was" if len(indices) == 1 else f"GPUs {shown(indices)} were"


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


def _spaced(indices: Sequence[int]) -> str:
    return " ".join(map(str, indices))


def plan_nodes(gpu_ids: GpuIds, nproc_per_node: int | None, facts: Sequence[NodeFacts]) -> Nodes:
    """Assign a device to each worker of several nodes. How they reach each other is not planned yet."""
    _refuse_duplicates(facts)
    nodes: list[NodePlan] = []
    notes: list[str] = []
    for each in facts:
        try:
            found = plan_workers(gpu_ids, nproc_per_node, each.gpus)
        except UsageError as error:
            raise UsageError(f"Node {each.host} cannot do it: {error}") from error
        nodes += [replace(node, host=each.host, shares_runs=each.shares_runs) for node in found.nodes]
        notes.extend(f"Node {each.host}: {note}" for note in found.notes)
    _refuse_mixture(nodes)
    notes.extend(
        f"Node {each.host}: its clock is {abs(each.clock_offset):.0f} s "
        f"{'fast' if each.clock_offset > 0 else 'slow'}, so are the times in what it writes."
        for each in facts
        if abs(each.clock_offset) > CLOCK_OFFSET_S
    )
    return Nodes(nodes=tuple(nodes), notes=tuple(notes))


def _refuse_duplicates(nodes: Sequence[NodeFacts]) -> None:
    """Refuse one machine under two names, whose workers would share its GPUs without knowing it."""
    for one, other in itertools.combinations(nodes, 2):
        if (one.name, one.addresses) == (other.name, other.addresses):
            raise UsageError(
                f"Node {one.host} and {other.host} are the same machine, {one.name}: name it once; "
                "--nproc-per-node adds workers."
            )


def _refuse_mixture(nodes: Sequence[NodePlan]) -> None:
    on_cpu = [node.host for node in nodes if node.devices[0] == "cpu"]
    if on_cpu and len(on_cpu) < len(nodes):
        others = ", ".join(node.host for node in nodes if node.host not in on_cpu)
        raise UsageError(
            f"Node {', '.join(on_cpu)} would train on the CPU, and {others} on GPUs, and the slowest sets the pace: "
            "pass --gpu-ids None to use the CPU on all, or leave out those without a GPU."
        )


def rendezvous_candidates(node: NodeFacts, interface: str | None) -> list[str]:
    """Return the addresses of rank 0's node at which others may reach it, through `--interface`, likeliest first."""
    known = {name: usable for name, each in node.addresses.items() if (usable := list(filter(_is_routable, each)))}
    if interface is not None and interface not in known:
        raise UsageError(
            f"--interface {interface} was asked for, but node {node.host} has no such interface that is up and has "
            f"an address: pass one of {', '.join(sorted(known)) or 'those that it should have'}."
        )
    found = [
        (node.reached_at not in node.addresses[name], ":" in address, address)  # gloo, too, prefers IPv4.
        for name, addresses in known.items()
        if interface in (None, name)
        for address in addresses
    ]
    return [address for *_, address in sorted(found, key=lambda each: each[:2])]


def _is_routable(address: str) -> bool:
    known = ipaddress.ip_address(address)
    return not (known.is_loopback or known.is_link_local)
