"""Which workers run on which node, how they communicate, and at which address they meet."""

import ipaddress
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from shoal.errors import UsageError
from shoal.machine.gpus import VisibleGpus
from shoal.plan.devices import GpuIds, WorkerDevices, plan_workers
from shoal.plan.environment_parity import Fingerprint
from shoal.timing import CLOCK_OFFSET_S

LOCALHOST = "localhost"
"""The name of this machine where it is the only node; rank files are named after it."""


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
    """Device of each worker, by local rank."""
    uuids: tuple[str, ...] = ()
    """UUID of the GPU of each worker, by local rank, or `cpu`."""
    supports_nccl: bool = False
    """Whether each worker has a whole GPU of its own, as NCCL needs."""
    network: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables by which gloo and NCCL take the interface that leads to the other nodes."""
    shares_runs: bool = True
    """Whether it sees the run's directory."""

    @classmethod
    def of(cls, workers: WorkerDevices, gpus: VisibleGpus, **fields: Any) -> Self:  # noqa: ANN401  Other fields.
        """Return the plan of a node with these workers."""
        uuids = gpus.uuids(workers.devices)
        return cls(devices=workers.devices, uuids=uuids, supports_nccl=workers.supports_nccl, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of a training."""

    nodes: tuple[NodePlan, ...] = ()
    rendezvous: str | None = None
    """Address at which the ranks of several nodes meet."""
    notes: tuple[str, ...] = ()
    """For the user."""


def plan_devices(
    gpu_ids: GpuIds, nproc_per_node: int | None, nodes: Sequence[NodeFacts]
) -> tuple[list[WorkerDevices], list[str]]:
    """Return the workers of each node, and notes for the user."""
    _refuse_duplicates(nodes)
    planned: list[WorkerDevices] = []
    notes: list[str] = []
    for node in nodes:
        try:
            workers = plan_workers(gpu_ids, nproc_per_node, node.gpus)
        except UsageError as error:
            raise UsageError(f"Host {node.host} cannot do it: {error}") from error
        planned.append(workers)
        notes.extend(f"Host {node.host}: {note}" for note in workers.notes)
    _refuse_mixture(nodes, planned)
    notes.extend(
        f"Host {node.host}: its clock is {abs(node.clock_offset):.0f} s "
        f"{'fast' if node.clock_offset > 0 else 'slow'}, so are the times in what it writes."
        for node in nodes
        if abs(node.clock_offset) > CLOCK_OFFSET_S
    )
    return planned, notes


def _refuse_duplicates(nodes: Sequence[NodeFacts]) -> None:
    """Refuse one machine under two names, whose workers would share its GPUs without knowing it."""
    for one, other in itertools.combinations(nodes, 2):
        if (one.name, one.addresses) == (other.name, other.addresses):
            raise UsageError(
                f"Host {one.host} and {other.host} are the same machine, {one.name}: name it once; "
                "--nproc-per-node adds workers."
            )


def _refuse_mixture(nodes: Sequence[NodeFacts], planned: Sequence[WorkerDevices]) -> None:
    on_cpu = [node.host for node, workers in zip(nodes, planned, strict=True) if workers.devices[0] == "cpu"]
    if on_cpu and len(on_cpu) < len(nodes):
        others = ", ".join(node.host for node in nodes if node.host not in on_cpu)
        raise UsageError(
            f"Host {', '.join(on_cpu)} would train on the CPU, and {others} on GPUs, and the slowest sets the pace: "
            "pass --gpu-ids None to use the CPU on all, or leave out those without a GPU."
        )


def rendezvous_candidates(node: NodeFacts, interface: str | None) -> list[str]:
    """Return the addresses of rank 0's node at which others may reach it, through `--interface`, likeliest first."""
    known = {name: usable for name, each in node.addresses.items() if (usable := list(filter(_is_routable, each)))}
    if interface is not None and interface not in known:
        raise UsageError(
            f"--interface {interface} was asked for, but host {node.host} has no such interface that is up and has "
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
