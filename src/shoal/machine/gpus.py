"""The GPUs of this machine, and those that `CUDA_VISIBLE_DEVICES` shows this process.

GPUs are counted by NVML, which needs no torch and creates no CUDA context. The rules are those of the CUDA programming
guide and of NVIDIA's MIG user guide. Where both are silent (white space, repeated entries, entries of mixed kinds) they
are those of torch 2.15, since torch assigns the indices. In doubt fewer GPUs count as visible. The state of the GPUs is
`shoal.machine.gpu_health`.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

FIRST_DRIVER_WITH_SEVERAL_MIG_DEVICES = 570
"""The driver release from which a process sees one compute instance of *each* GPU instance, and whole GPUs beside
them. Before it, a process saw a single MIG device, and no whole GPU beside it."""

_NUMBER = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]{1,9})")  # nine digits are out of range anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A visible device: a whole GPU, or a MIG device."""

    index: int
    """Index among the visible devices: torch's ``cuda:<index>``."""
    name: str
    """Product name, such as ``NVIDIA H200``, with the MIG profile where there is one."""
    uuid: str
    """``GPU-...`` or ``MIG-...``, as ``nvidia-smi -L`` prints it."""
    memory_bytes: int | None
    """Size of its memory. None where the driver does not report it, as for GPUs that share the host's memory."""

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG device, a slice of a GPU."""
        return self.uuid.startswith("MIG-")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A compute instance of a GPU in MIG mode."""

    name: str
    """Product name and profile, such as ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""
    uuid: str
    """``MIG-...``."""
    memory_bytes: int | None
    """Size of the GPU instance's memory. None where the driver does not report it."""
    gpu_instance: int
    """Identifier of the GPU instance on its GPU."""
    compute_instance: int
    """Identifier of the compute instance in its GPU instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalGpu:
    """A GPU of the machine, visible to this process or not."""

    name: str
    uuid: str
    """``GPU-...``."""
    memory_bytes: int | None
    mig_devices: tuple[MigDevice, ...] | None = None
    """Its MIG devices. None when MIG mode is off. Empty when it is on without an instance: then CUDA cannot use the
    GPU at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs of this machine in NVML's order, which is the order of the PCI bus."""

    gpus: tuple[PhysicalGpu, ...] = ()
    driver_release: int | None = None
    """First part of the driver's version, such as 580. None when it is unknown: then the newest rules hold."""
    problem: str | None = None
    """Why there are no GPUs, or not all of them, as a clause. None when all could be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpus:
    """The devices that this process can use, and what explains why there are no more."""

    gpus: tuple[Gpu, ...] = ()
    """The visible devices, by index."""
    mask: str | None = None
    """`CUDA_VISIBLE_DEVICES`. None when it is not set."""
    unmasked_count: int = 0
    """How many devices would be visible without the mask."""
    problem: str | None = None
    """`Inventory.problem`."""
    order_is_uncertain: bool = False
    """Whether CUDA may number these devices in another order than NVML, so that a name may be at the wrong index."""

    def __len__(self) -> int:
        return len(self.gpus)

    def __iter__(self) -> Iterator[Gpu]:
        return iter(self.gpus)

    @property
    def hidden_count(self) -> int:
        """How many devices `CUDA_VISIBLE_DEVICES` hides."""
        return 0 if self.mask is None else max(0, self.unmasked_count - len(self.gpus))

    def uuids(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Return the UUID of the GPU of each device, and `cpu` for the CPU."""
        known = {f"cuda:{gpu.index}": gpu.uuid for gpu in self.gpus}
        return tuple(known.get(device, "cpu") for device in devices)


def visible_gpus(environ: Mapping[str, str] = os.environ, probe: Callable[[], Inventory] | None = None) -> VisibleGpus:
    """Return the GPUs that CUDA shows this process.

    Args:
        environ: Environment variables.
        probe: Counts the machine's GPUs; `read_inventory` by default.
    """
    inventory = (probe or read_inventory)()
    return resolve(inventory, environ.get("CUDA_VISIBLE_DEVICES"), device_order=environ.get("CUDA_DEVICE_ORDER"))


# The machine's GPUs ---------------------------------------------------------------------------------------------------


def import_nvml() -> ModuleType | None:
    """Return NVIDIA's library of GPU facts. None where its package cannot be imported."""
    try:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]  # used as a plain module
    except ImportError:
        return None
    return pynvml


def read_inventory() -> Inventory:
    """Count the machine's GPUs and MIG devices. Where that is impossible, there are none, and a problem."""
    nvml = import_nvml()
    if nvml is None:
        return Inventory(problem="the package nvidia-ml-py cannot be imported")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return Inventory(problem="no NVIDIA driver was found")
    except nvml.NVMLError as error:
        return Inventory(problem=f"the NVIDIA driver answers: {error}")
    try:
        found = [_physical_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        release = re.match(r"[0-9]+", nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        return Inventory(problem=f"the NVIDIA driver answers: {error}")
    finally:
        nvml.nvmlShutdown()  # A process that will spawn others holds no handle of the driver.
    failed = [
        f"the NVIDIA driver says of GPU {index}: {gpu}" for index, gpu in enumerate(found) if isinstance(gpu, str)
    ]
    return Inventory(
        gpus=tuple(gpu for gpu in found if isinstance(gpu, PhysicalGpu)),
        driver_release=int(release[0]) if release else None,
        problem=", ".join(failed) or None,
    )


def _physical_gpu(nvml: ModuleType, index: int) -> PhysicalGpu | str:
    """Return one GPU, or the driver's error, as for one that has fallen off the bus."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return PhysicalGpu(**_described(nvml, handle), mig_devices=_mig_devices(nvml, handle))
    except nvml.NVMLError as error:
        return str(error)


def _described(nvml: ModuleType, handle: object) -> dict[str, Any]:
    try:
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:  # memory shared with the host, or a MIG parent without permission
        memory_bytes = None
    return {
        "name": nvml.nvmlDeviceGetName(handle),
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "memory_bytes": memory_bytes,
    }


def _mig_devices(nvml: ModuleType, gpu: object) -> tuple[MigDevice, ...] | None:
    """Return the MIG devices of a GPU, None when MIG mode is off or unsupported."""
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
        except nvml.NVMLError_NotFound:  # an empty slot
            continue
        devices.append(
            MigDevice(
                **_described(nvml, handle),
                gpu_instance=nvml.nvmlDeviceGetGpuInstanceId(handle),
                compute_instance=nvml.nvmlDeviceGetComputeInstanceId(handle),
            )
        )
    return tuple(devices)


# CUDA_VISIBLE_DEVICES -------------------------------------------------------------------------------------------------


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
    sources = [device.mig or inventory.gpus[device.gpu] for device in listed]
    by_uuid = mask is not None and mask.startswith(("GPU-", "MIG-"))
    # FASTEST_FIRST, CUDA's default, moves nothing on a machine whose GPUs are all alike.
    alike = len({gpu.name for gpu in inventory.gpus}) <= 1
    return VisibleGpus(
        gpus=tuple(
            Gpu(index=index, name=source.name, uuid=source.uuid, memory_bytes=source.memory_bytes)
            for index, source in enumerate(sources)
        ),
        mask=mask,
        unmasked_count=len(unmasked),
        problem=inventory.problem,
        order_is_uncertain=bool(listed) and not alike and not by_uuid and device_order != "PCI_BUS_ID",
    )


def _all_devices(inventory: Inventory) -> list[_Device]:
    return [
        _Device(number, mig)
        for number, gpu in enumerate(inventory.gpus)
        for mig in ((None,) if gpu.mig_devices is None else gpu.mig_devices)
    ]


def _enumerated(devices: Sequence[_Device], inventory: Inventory) -> list[_Device]:
    """Keep those of the listed devices that one process sees together."""
    migs = [device for device in devices if device.mig is not None]
    release = inventory.driver_release
    if release is not None and release < FIRST_DRIVER_WITH_SEVERAL_MIG_DEVICES:
        return migs[:1] or list(devices)
    kept: dict[tuple[int, int | None], _Device] = {}
    for device in devices:  # one compute instance of each GPU instance, the first
        kept.setdefault((device.gpu, device.mig.gpu_instance if device.mig else None), device)
    return list(kept.values())


def _listed(mask: str, inventory: Inventory) -> list[_Device]:
    """Parse the entries of `CUDA_VISIBLE_DEVICES` up to the first invalid one.

    The first entry decides the kind of all: an entry of another kind is invalid. A device named twice makes none
    visible.
    """
    if mask.startswith(("GPU-", "MIG-")):
        kind, find = ("GPU-", _gpu_by_uuid) if mask.startswith("GPU-") else ("MIG-", _mig_by_uuid)
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
    """Return the devices before the first None; none when an entry or a device is repeated."""
    found = [device for device in itertools.takewhile(lambda device: device is not None, devices) if device]
    repeated = any(count > 1 for values in (entries, found) for count in Counter(values).values())
    return [] if repeated else found


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


def _mig_by_uuid(prefix: str, inventory: Inventory) -> _Device | None:
    """Return the one MIG device whose UUID begins with `prefix`, None when there is none or more than one."""
    found = [device for device in _all_devices(inventory) if device.mig and device.mig.uuid.startswith(prefix)]
    return found[0] if len(found) == 1 else None
