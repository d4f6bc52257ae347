"""What CUDA will show this process: `CUDA_VISIBLE_DEVICES` applied to an inventory of the machine.

Only values and rules live here, so that every rule is a row of a table in the tests. Reading the inventory
from the driver, and choosing among what is visible, is `shoal.plan.devices`.

The rules are those of the CUDA programming guide and of NVIDIA's MIG user guide. Where both are silent (white
space, repeated entries, entries of mixed kinds) they are what torch 2.15 does before it wakes CUDA, since
torch hands out the indices. In doubt fewer GPUs count as visible: a refusal costs a second, a worker on a
device that does not exist costs a launch.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FIRST_DRIVER_WITH_SEVERAL_MIG_DEVICES = 570
"""The release of the driver from which a process sees one compute instance of *each* GPU instance, and whole
GPUs beside them. Before it, a process saw a single MIG device, and no whole GPU beside it."""

_NUMBER = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]{1,9})")  # nine digits are out of range anyway
_OLD_MIG_NAME = re.compile(r"MIG-(?:GPU-)?(?P<gpu>[^/]+)/(?P<gi>[0-9]+)/(?P<ci>[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device that a worker can be given: a whole GPU, or a MIG device."""

    index: int
    """Position among the visible devices: torch's ``cuda:<index>``."""
    name: str
    """Product name, such as ``NVIDIA H200``, with the MIG profile where there is one."""
    uuid: str
    """``GPU-...`` or ``MIG-...``, as ``nvidia-smi -L`` prints it."""
    memory_bytes: int | None
    """Size of its memory. None where the driver does not say, as for GPUs that share the host's memory."""

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG device, a slice of a GPU."""
        return self.uuid.startswith("MIG-")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """One compute instance of a GPU in MIG mode, with the GPU instance that it belongs to."""

    name: str
    """Product name and profile, such as ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""
    uuid: str
    """``MIG-...``."""
    memory_bytes: int | None
    """Size of the GPU instance's memory. None where the driver does not say."""
    gpu_instance: int
    """Identifier of the GPU instance on its GPU."""
    compute_instance: int
    """Identifier of the compute instance in its GPU instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalGpu:
    """One GPU of the machine, visible to this process or not."""

    name: str
    """Product name."""
    uuid: str
    """``GPU-...``."""
    memory_bytes: int | None
    """Size of its memory. None where the driver does not say."""
    mig_devices: tuple[MigDevice, ...] | None = None
    """Its MIG devices. None when MIG mode is off. Empty when it is on and no instance was made: then CUDA
    cannot use the GPU at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs of this machine in NVML's order, which is the order of the PCI bus."""

    gpus: tuple[PhysicalGpu, ...] = ()
    """The machine's GPUs."""
    driver_release: int | None = None
    """First part of the driver's version, such as 580. None when it is unknown: then the newest rules
    hold."""
    problem: str | None = None
    """Why there are no GPUs, or not all of them, as a clause. None when all there are could be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpus:
    """The devices that this process can use, and what is needed to explain why there are no more."""

    gpus: tuple[Gpu, ...] = ()
    """The visible devices; each stands at its own index."""
    mask: str | None = None
    """`CUDA_VISIBLE_DEVICES`. None when it is not set."""
    unmasked_count: int = 0
    """How many devices would be visible without the mask."""
    problem: str | None = None
    """`Inventory.problem`."""
    order_is_uncertain: bool = False
    """Whether CUDA may count these devices in another order than NVML. The number of them is right all the
    same, but a name may stand beside the wrong index."""

    def __len__(self) -> int:
        return len(self.gpus)

    def __iter__(self) -> Iterator[Gpu]:
        return iter(self.gpus)

    @property
    def hidden_count(self) -> int:
        """How many devices `CUDA_VISIBLE_DEVICES` hides."""
        return 0 if self.mask is None else max(0, self.unmasked_count - len(self.gpus))

    def uuids(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Return the UUID of the GPU of each device, and `cpu` for what is none."""
        known = {f"cuda:{gpu.index}": gpu.uuid for gpu in self.gpus}
        return tuple(known.get(device, "cpu") for device in devices)


@dataclass(frozen=True, slots=True)
class _Device:
    """A device that CUDA may enumerate: a whole GPU, or one MIG device of it."""

    gpu: int
    mig: MigDevice | None


def resolve(inventory: Inventory, mask: str | None, *, device_order: str | None = None) -> VisibleGpus:
    """Apply `CUDA_VISIBLE_DEVICES` to a machine.

    Args:
        inventory: The machine.
        mask: Value of `CUDA_VISIBLE_DEVICES`, None when it is not set.
        device_order: Value of `CUDA_DEVICE_ORDER`, None when it is not set. Shoal's commands set it to PCI_BUS_ID
            unless the user has set it.
    """
    unmasked = _enumerated(_all_devices(inventory), inventory)
    listed = unmasked if mask is None else _enumerated(_listed(mask, inventory), inventory)
    gpus = tuple(_as_gpu(index, device, inventory) for index, device in enumerate(listed))
    by_uuid = mask is not None and mask.startswith(("GPU-", "MIG-"))
    # FASTEST_FIRST, CUDA's default, moves nothing on a machine whose GPUs are all alike.
    alike = len({gpu.name for gpu in inventory.gpus}) <= 1
    return VisibleGpus(
        gpus=gpus,
        mask=mask,
        unmasked_count=len(unmasked),
        problem=inventory.problem,
        order_is_uncertain=bool(gpus) and not alike and not by_uuid and device_order != "PCI_BUS_ID",
    )


def _as_gpu(index: int, device: _Device, inventory: Inventory) -> Gpu:
    source = device.mig or inventory.gpus[device.gpu]
    return Gpu(index=index, name=source.name, uuid=source.uuid, memory_bytes=source.memory_bytes)


def _all_devices(inventory: Inventory) -> list[_Device]:
    devices: list[_Device] = []
    for gpu, physical in enumerate(inventory.gpus):
        migs = (None,) if physical.mig_devices is None else physical.mig_devices
        devices += [_Device(gpu, mig) for mig in migs]
    return devices


def _enumerated(devices: Sequence[_Device], inventory: Inventory) -> list[_Device]:
    """Keep those of the wanted devices that one process gets to see together."""
    migs = [device for device in devices if device.mig is not None]
    release = inventory.driver_release
    if release is not None and release < FIRST_DRIVER_WITH_SEVERAL_MIG_DEVICES:
        return migs[:1] or list(devices)
    kept: dict[tuple[int, int | None], _Device] = {}
    for device in devices:  # one compute instance of each GPU instance, the first
        kept.setdefault((device.gpu, device.mig.gpu_instance if device.mig else None), device)
    return list(kept.values())


def _listed(mask: str, inventory: Inventory) -> list[_Device]:
    """Read the entries of `CUDA_VISIBLE_DEVICES` up to the first invalid one.

    The first entry decides the kind of all: an entry of another kind is invalid. A device named twice makes
    none visible.
    """
    if mask.startswith(("GPU-", "MIG-")):
        kind, find = ("GPU-", _gpu_by_uuid) if mask.startswith("GPU-") else ("MIG-", _mig_by_name)
        names = list(itertools.takewhile(lambda entry: entry.startswith(kind), mask.split(",")))
        return _distinct(names, [find(name, inventory) for name in names])
    # CUDA reads numbers as C's strtoul does: "1gpu" is 1, and a word without a leading number is invalid.
    numbers: list[int] = []
    for entry in mask.split(","):
        match = _NUMBER.match(entry.strip())
        if match is None or (match["sign"] == "-" and int(match["digits"]) > 0):
            break
        numbers.append(int(match["digits"]))
    return _distinct(numbers, [_gpu_at(number, inventory) for number in numbers])


def _distinct(entries: Sequence[object], devices: Sequence[_Device | None]) -> list[_Device]:
    """Return the devices before the first None; nothing when an entry, or one of them, is repeated."""
    cut = next((at for at, device in enumerate(devices) if device is None), len(devices))
    found = [device for device in devices[:cut] if device is not None]
    repeated = _has_repeats(entries) or _has_repeats(found)
    return [] if repeated else found


def _has_repeats(values: Sequence[object]) -> bool:
    return any(count > 1 for count in Counter(values).values())


def _gpu_at(number: int, inventory: Inventory) -> _Device | None:
    """Return the GPU of that number, or of a GPU in MIG mode its first MIG device; None without one."""
    if number >= len(inventory.gpus):
        return None
    migs = inventory.gpus[number].mig_devices
    if migs is None:
        return _Device(number, None)
    return _Device(number, migs[0]) if migs else None


def _gpu_by_uuid(prefix: str, inventory: Inventory) -> _Device | None:
    """Return the one GPU whose UUID begins with `prefix`, None when there is none or more than one."""
    numbers = [number for number, gpu in enumerate(inventory.gpus) if gpu.uuid.startswith(prefix)]
    return _gpu_at(numbers[0], inventory) if len(numbers) == 1 else None


def _mig_by_name(name: str, inventory: Inventory) -> _Device | None:
    """Return the one MIG device called so: by the start of its UUID, or ``MIG-<GPU UUID>/<gi>/<ci>``."""
    old = _OLD_MIG_NAME.fullmatch(name)
    found = [
        _Device(number, mig)
        for number, gpu in enumerate(inventory.gpus)
        for mig in gpu.mig_devices or ()
        if mig.uuid.startswith(name) or (old is not None and _is_at(old, gpu, mig))
    ]
    return found[0] if len(found) == 1 else None


def _is_at(old_name: re.Match[str], gpu: PhysicalGpu, mig: MigDevice) -> bool:
    place = (int(old_name["gi"]), int(old_name["ci"]))
    return gpu.uuid.startswith(f"GPU-{old_name['gpu']}") and place == (mig.gpu_instance, mig.compute_instance)
