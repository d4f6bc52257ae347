"""Which workers run on which of several machines, and at which address they meet.

What is true of a machine was found out there (`shoal.launch.host_probe`); here it is only judged.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from shoal.errors import UsageError
from shoal.machine.gpus import Gpu, VisibleGpus
from shoal.plan.devices import GpuIds, WorkerDevices, plan_workers
from shoal.plan.environment_parity import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLOCK_S = 5.0
"""Clocks that differ by more are told of [s]: files and log lines of two machines cannot be compared by their times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is true of one machine, told by itself."""

    host: str
    """What was typed, and what ssh knows it by."""
    name: str
    """What it calls itself."""
    gpus: VisibleGpus
    cores: int
    """Cores that a login there may use."""
    addresses: Mapping[str, tuple[str, ...]]
    """Its addresses, by interface."""
    reached_at: str | None
    """The address at which ssh has reached it."""
    ahead: float
    """How far its clock is ahead of the launching process's [s]."""
    shares_runs: bool
    """Whether it sees the directory in which the launching process makes runs."""
    fingerprint: Fingerprint

    @classmethod
    def from_plain(cls, host: str, told: Mapping[str, Any], *, ahead: float) -> Self:
        """Return what a machine has told as plain values."""
        gpus = dict(told["gpus"])
        gpus["gpus"] = tuple(Gpu(**gpu) for gpu in gpus["gpus"])
        return cls(
            host=host,
            name=told["name"],
            gpus=VisibleGpus(**gpus),
            cores=told["cores"],
            addresses={name: tuple(each) for name, each in told["addresses"].items()},
            reached_at=told["reached_at"],
            ahead=ahead,
            shares_runs=told["shares_runs"],
            fingerprint=replace(Fingerprint(**told["fingerprint"]), host=host),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One machine's part in a training."""

    host: str
    """What was typed, and what ssh knows it by."""
    name: str
    """What it calls itself."""
    devices: tuple[str, ...]
    """Device of each of its workers, by local rank."""
    uuids: tuple[str, ...]
    """UUID of the GPU of each worker, by local rank, or `cpu`."""
    network: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables by which gloo and NCCL take the interface that leads to the others."""
    shares_runs: bool = True
    """Whether it sees the run's directory."""

    @classmethod
    def from_plain(cls, told: Mapping[str, Any]) -> Self:
        """Return what JSON has carried."""
        return replace(cls(**told), devices=tuple(told["devices"]), uuids=tuple(told["uuids"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines of a training, and what was found out about all of them."""

    machines: tuple[NodePlan, ...] = ()
    """Empty where there is this machine alone."""
    meeting: str | None = None
    """The address at which the ranks of several machines meet."""
    backend: Literal["nccl", "gloo"] = "gloo"
    """How all of them talk."""
    notes: tuple[str, ...] = ()
    """Sentences that the user should read."""

    @property
    def workers(self) -> WorkerDevices:
        """The workers of all machines, each with its device."""
        devices = tuple(device for machine in self.machines for device in machine.devices)
        return WorkerDevices(devices=devices, backend=self.backend if len(devices) > 1 else None, notes=self.notes)


def plan_devices(
    gpu_ids: GpuIds, nproc_per_node: int | None, machines: Sequence[NodeFacts]
) -> tuple[list[tuple[str, ...]], Literal["nccl", "gloo"], list[str]]:
    """Return the devices of the workers of each machine, how all of them talk, and what the user should read.

    Raises:
        UsageError: A machine does not have what was asked for, or only some of them have GPUs.
    """
    _refuse_twice(machines)
    devices: list[tuple[str, ...]] = []
    notes: list[str] = []
    whole = True
    for machine in machines:
        try:
            workers = plan_workers(gpu_ids, nproc_per_node, machine.gpus)
        except UsageError as error:
            message = f"Host {machine.host} cannot do it: {error}"
            raise UsageError(message) from error
        devices.append(workers.devices)
        notes.extend(f"Host {machine.host}: {note}" for note in workers.notes)
        used = [gpu for gpu in machine.gpus if f"cuda:{gpu.index}" in workers.devices]
        whole &= workers.backend != "gloo" and bool(used) and not any(gpu.is_mig for gpu in used)
    _refuse_mixture(machines, devices)
    notes.extend(
        f"Host {machine.host}: its clock is {abs(machine.ahead):.0f} s {'fast' if machine.ahead > 0 else 'slow'}, so "
        "are the times in what it writes."
        for machine in machines
        if abs(machine.ahead) > CLOCK_S
    )
    return devices, "nccl" if whole else "gloo", notes


def _refuse_twice(machines: Sequence[NodeFacts]) -> None:
    """Refuse a machine under two names, whose workers would share its GPUs without knowing it."""
    seen: list[NodeFacts] = []
    for machine in machines:
        twin = next((each for each in seen if (each.name, each.addresses) == (machine.name, machine.addresses)), None)
        if twin is not None:
            message = (
                f"Host {twin.host} and {machine.host} are the same machine, {machine.name}: name it once; "
                "--nproc-per-node adds workers."
            )
            raise UsageError(message)
        seen.append(machine)


def _refuse_mixture(machines: Sequence[NodeFacts], devices: Sequence[tuple[str, ...]]) -> None:
    on_cpu = [machine.host for machine, own in zip(machines, devices, strict=True) if own[0] == "cpu"]
    if on_cpu and len(on_cpu) < len(machines):
        others = ", ".join(machine.host for machine in machines if machine.host not in on_cpu)
        message = (
            f"Host {', '.join(on_cpu)} would train on the CPU, and {others} on GPUs, and the slowest sets the pace: "
            "pass --gpu-ids None to use the CPU on all, or leave out those without a GPU."
        )
        raise UsageError(message)


def meeting_addresses(machine: NodeFacts, interface: str | None) -> list[str]:
    """Return the addresses of a machine at which the others may find it, the likeliest first.

    Args:
        machine: The one that has rank 0.
        interface: What `--interface` asks for.

    Raises:
        UsageError: It has no such interface.
    """
    known = {name: each for name, each in machine.addresses.items() if any(map(_leads_elsewhere, each))}
    if interface is not None and interface not in known:
        message = (
            f"--interface {interface} was asked for, but host {machine.host} has no such interface that is up and has "
            f"an address: pass one of {', '.join(sorted(known)) or 'those that it should have'}."
        )
        raise UsageError(message)
    found = [
        (machine.reached_at not in addresses, ":" in address, address)  # gloo, too, prefers the older protocol.
        for name, addresses in known.items()
        if interface in (None, name)
        for address in addresses
        if _leads_elsewhere(address)
    ]
    return [address for *_, address in sorted(found, key=lambda each: each[:2])]


def _leads_elsewhere(address: str) -> bool:
    known = ipaddress.ip_address(address)
    return not (known.is_loopback or known.is_link_local)
