"""The GPUs of this machine, and those that `CUDA_VISIBLE_DEVICES` shows this process.

GPUs are counted by NVML, which needs no torch and creates no CUDA context. The rules are those of the CUDA programming
guide and of NVIDIA's MIG user guide. Where both are silent (white space, repeated entries, entries of mixed kinds) they
are those of torch 2.15, since torch assigns the indices. In doubt fewer GPUs count as visible. The state of the GPUs is
`shoal.machine.gpu_health`.
"""

import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from types import ModuleType
from typing import cast

_NUMBER = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]{1,9})")  # nine digits are out of range anyway


class NvmlError(Exception):
    """NVML cannot be used. The message says why, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A visible device: a whole GPU, or a MIG device."""

    index: int
    """Index among the visible devices: torch's ``cuda:<index>``."""
    name: str
    """Product name, such as ``NVIDIA H200``, with the MIG profile where there is one."""
    uuid: str
    """``GPU-...`` or ``MIG-...``, as ``nvidia-smi -L`` prints it."""

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG device, a slice of a GPU."""
        return self.uuid.startswith("MIG-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU of the machine, visible to this process or not, or a MIG device of one."""

    name: str
    uuid: str
    gpu_instance: tuple[str, int] | None = None
    """Of a MIG device: the UUID of its GPU, and the identifier of its GPU instance there."""
    mig_devices: tuple["Device", ...] | None = None
    """None when MIG mode is off. Empty when it is on without an instance: then CUDA cannot use the GPU at all."""

    @property
    def enumerable(self) -> "tuple[Device, ...]":
        """The devices of a GPU that CUDA may enumerate: the GPU itself, or its MIG devices."""
        return (self,) if self.mig_devices is None else self.mig_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs of this machine in NVML's order, which is the order of the PCI bus."""

    gpus: tuple[Device, ...] = ()
    driver_release: int | None = None
    """First part of the driver's version, such as 580. None when it is unknown: then the newest rules hold."""
    problem: str | None = None
    """Why there are no GPUs, or not all of them, as a clause. None when all could be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpus:
    """The devices that this process can use, by index, and what explains why there are no more."""

    gpus: tuple[Gpu, ...] = ()
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


def visible_gpus(environ: Mapping[str, str] = os.environ) -> VisibleGpus:
    """Return the GPUs that CUDA shows a process with these environment variables."""
    mask, order = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("CUDA_DEVICE_ORDER")
    return resolve(read_inventory(), mask, device_order=order)


# The machine's GPUs ---------------------------------------------------------------------------------------------------


@contextmanager
def opened_nvml() -> Generator[ModuleType]:
    """Open NVML for the body. Afterwards this process, which may spawn others, holds no handle of the driver.

    Raises:
        NvmlError: The package is missing, or the driver failed, in the body too.
    """
    try:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]  # used as a plain module
    except ImportError:
        raise NvmlError("the package nvidia-ml-py cannot be imported") from None
    nvml = cast("ModuleType", pynvml)
    try:
        nvml.nvmlInit()
        try:
            yield nvml
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError_LibraryNotFound:
        raise NvmlError("no NVIDIA driver was found") from None
    except nvml.NVMLError as error:
        raise NvmlError(f"the NVIDIA driver answers: {error}") from error


def read_inventory() -> Inventory:
    """Count the machine's GPUs and MIG devices. Where that is impossible, there are none, and a problem."""
    try:
        with opened_nvml() as nvml:
            found = [_physical_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
            release = re.match(r"[0-9]+", nvml.nvmlSystemGetDriverVersion())
    except NvmlError as error:
        return Inventory(problem=str(error))
    failed = [f"the NVIDIA driver says of GPU {at}: {gpu}" for at, gpu in enumerate(found) if isinstance(gpu, str)]
    return Inventory(
        gpus=tuple(gpu for gpu in found if isinstance(gpu, Device)),
        driver_release=int(release[0]) if release else None,
        problem=", ".join(failed) or None,
    )


def _physical_gpu(nvml: ModuleType, index: int) -> Device | str:
    """Return one GPU, or the driver's error, as for one that has fallen off the bus."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
        return Device(name=name, uuid=uuid, mig_devices=_mig_devices(nvml, handle, uuid))
    except nvml.NVMLError as error:
        return str(error)


def _mig_devices(nvml: ModuleType, gpu: object, gpu_uuid: str) -> tuple[Device, ...] | None:
    try:
        mode, _pending = nvml.nvmlDeviceGetMigMode(gpu)
    except nvml.NVMLError:  # GPUs without MIG, and drivers older than MIG
        return None
    if mode != nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    devices: list[Device] = []
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        with suppress(nvml.NVMLError_NotFound):  # an empty slot
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)
            name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
            instance = gpu_uuid, nvml.nvmlDeviceGetGpuInstanceId(handle)
            devices.append(Device(name=name, uuid=uuid, gpu_instance=instance))
    return tuple(devices)


# CUDA_VISIBLE_DEVICES -------------------------------------------------------------------------------------------------


def resolve(inventory: Inventory, mask: str | None, *, device_order: str | None = None) -> VisibleGpus:
    """Apply the values of `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` to a machine; None when one is not set.

    Shoal's commands set the order to PCI_BUS_ID unless the user has set it.
    """
    unmasked = _enumerated([device for gpu in inventory.gpus for device in gpu.enumerable], inventory)
    listed = unmasked if mask is None else _enumerated(_listed(mask, inventory), inventory)
    by_uuid = mask is not None and mask.startswith(("GPU-", "MIG-"))
    # FASTEST_FIRST, CUDA's default, moves nothing on a machine whose GPUs are all alike.
    alike = len({gpu.name for gpu in inventory.gpus}) <= 1
    return VisibleGpus(
        gpus=tuple(Gpu(index=index, name=device.name, uuid=device.uuid) for index, device in enumerate(listed)),
        mask=mask,
        unmasked_count=len(unmasked),
        problem=inventory.problem,
        order_is_uncertain=bool(listed) and not alike and not by_uuid and device_order != "PCI_BUS_ID",
    )


def _enumerated(devices: list[Device], inventory: Inventory) -> list[Device]:
    """Keep those of the listed devices that one process sees together.

    From driver 570 on these are the first compute instance of each GPU instance, and whole GPUs beside them. Before it,
    a process saw a single MIG device, and no whole GPU beside it.
    """
    if inventory.driver_release is not None and inventory.driver_release < 570:  # noqa: PLR2004
        return [device for device in devices if device.gpu_instance][:1] or devices
    kept: dict[tuple[str, int] | str, Device] = {}
    for device in devices:
        kept.setdefault(device.gpu_instance or device.uuid, device)
    return list(kept.values())


def _listed(mask: str, inventory: Inventory) -> list[Device]:
    """Return the devices of the entries of `CUDA_VISIBLE_DEVICES` up to the first invalid one.

    The first entry decides the kind of all: an entry of another kind is invalid. A device named twice makes none
    visible, and so does a repeated entry.
    """
    if mask.startswith(("GPU-", "MIG-")):
        entries = list(takewhile(lambda entry: entry.startswith(mask[:4]), mask.split(",")))
        devices = [_by_uuid(entry, inventory) for entry in entries]
    else:
        entries = list(_leading_numbers(mask))
        devices = [_at(number, inventory) for number in entries]
    found = [device for device in takewhile(lambda device: device is not None, devices) if device]
    repeated = len({*entries}) < len(entries) or len({*found}) < len(found)
    return [] if repeated else found


def _leading_numbers(mask: str) -> Iterator[int]:
    """Read numbers as CUDA does, by C's strtoul: "1gpu" is 1, and a word without a leading number is invalid."""
    for entry in mask.split(","):
        match = _NUMBER.match(entry.strip())
        if match is None or (match["sign"] == "-" and int(match["digits"]) > 0):
            return
        yield int(match["digits"])


def _at(number: int, inventory: Inventory) -> Device | None:
    """Return the GPU of that number, or of a GPU in MIG mode its first MIG device; None without one."""
    return next((device for gpu in inventory.gpus[number : number + 1] for device in gpu.enumerable), None)


def _by_uuid(prefix: str, inventory: Inventory) -> Device | None:
    """Return the one device whose UUID begins with `prefix`; None when there is none or more than one.

    The UUID of a GPU in MIG mode stands for its first MIG device.
    """
    gpus = [_at(number, inventory) for number, gpu in enumerate(inventory.gpus) if gpu.uuid.startswith(prefix)]
    migs = [mig for gpu in inventory.gpus for mig in gpu.mig_devices or () if mig.uuid.startswith(prefix)]
    found = [*gpus, *migs]
    return found[0] if len(found) == 1 else None
