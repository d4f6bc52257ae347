"""Machines that are not there: inventories for the pure rules, and an NVML that reports one of them."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pynvml  # pyright: ignore[reportMissingTypeStubs]

from shoal.machine.gpus import Device, Inventory, VisibleGpus, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 2**30


def gpu_uuid(number: int) -> str:
    """The UUID of the fake GPU of that number; each begins with a digit of its own."""
    return f"GPU-{number}0000000-1111-2222-3333-444444444444"


def whole_gpu(number: int, name: str = "NVIDIA H200") -> Device:
    """A GPU that is not in MIG mode."""
    return Device(name=name, uuid=gpu_uuid(number))


def mig_gpu(number: int, *instances: tuple[int, int]) -> Device:
    """A GPU in MIG mode, with a MIG device for each pair of GPU instance and compute instance.

    The UUIDs of the devices begin with the number of the GPU, then that of the GPU instance, then the other.
    """
    devices = tuple(
        Device(
            name="NVIDIA H100 MIG 1g.10gb",
            uuid=f"MIG-{number}{gi}{ci}00000-5555-6666-7777-888888888888",
            gpu_instance=(gpu_uuid(number), gi),
        )
        for gi, ci in instances
    )
    return Device(name="NVIDIA H100", uuid=gpu_uuid(number), mig_devices=devices)


def machine(*gpus: Device, driver: int | None = 580, problem: str | None = None) -> Inventory:
    """A machine with these GPUs."""
    return Inventory(gpus=gpus, driver_release=driver, problem=problem)


def machine_of(count: int) -> Inventory:
    """A machine with so many equal GPUs."""
    return machine(*(whole_gpu(number) for number in range(count)))


def seen(count: int, mask: str | None = None) -> VisibleGpus:
    """What is visible of a machine with so many equal GPUs."""
    return resolve(machine_of(count), mask)


_ABOUT_A_STATE = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
)


class FakeNvml(ModuleType):
    """Stands in for the module `pynvml` on a machine with these GPUs.

    Errors and constants are the real module's, and a function that it does not have cannot be faked.
    """

    def __init__(
        self,
        inventory: Inventory,
        *,
        raises: dict[str, int] | None = None,
        answers: dict[str, Callable[..., object]] | None = None,
    ) -> None:
        """Fake a machine.

        Args:
            inventory: The machine.
            raises: NVML's error number for each function that fails.
            answers: What functions do instead; those that tell how a GPU is are not supported otherwise.
        """
        super().__init__("fake_nvml")
        self._inventory = inventory
        self.is_open = False
        for name in (name for name in vars(pynvml) if name.startswith("NVML")):  # Errors and constants.
            setattr(self, name, getattr(pynvml, name))
        unsupported = dict.fromkeys(_ABOUT_A_STATE, _raiser(pynvml.NVML_ERROR_NOT_SUPPORTED))
        for name, function in {**unsupported, **self._functions(), **(answers or {})}.items():
            if not hasattr(pynvml, name):
                message = f"nvidia-ml-py has no function {name}"
                raise AttributeError(message)
            number = (raises or {}).get(name)
            setattr(self, name, function if number is None else _raiser(number))

    def _functions(self) -> dict[str, Callable[..., object]]:
        gpus = self._inventory.gpus
        return {
            "nvmlInit": lambda: setattr(self, "is_open", True),
            "nvmlShutdown": lambda: setattr(self, "is_open", False),
            "nvmlSystemGetDriverVersion": lambda: f"{self._inventory.driver_release}.12.34",
            "nvmlSystemGetCudaDriverVersion": lambda: 13000,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
            "nvmlDeviceGetCount": lambda: len(gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: gpus[index],
            "nvmlDeviceGetHandleByUUID": self._handle_by_uuid,
            "nvmlDeviceGetName": lambda handle: handle.name,
            "nvmlDeviceGetUUID": lambda handle: handle.uuid,
            "nvmlDeviceGetMemoryInfo": _memory_info,
            "nvmlDeviceGetMigMode": _mig_mode,
            "nvmlDeviceGetMaxMigDeviceCount": lambda _gpu: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": _mig_device,
            "nvmlDeviceGetGpuInstanceId": lambda mig: mig.gpu_instance[1],
        }

    def _handle_by_uuid(self, uuid: str) -> Device:
        for gpu in self._inventory.gpus:
            for device in (gpu, *(gpu.mig_devices or ())):
                if device.uuid == uuid:
                    return device
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


def _memory_info(handle: Device) -> SimpleNamespace:
    size = (10 if handle.gpu_instance else 141) * GIB
    return SimpleNamespace(total=size, free=size)


def _mig_mode(gpu: Device) -> list[int]:
    if "GeForce" in gpu.name:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    mode = int(gpu.mig_devices is not None)
    return [mode, mode]


def _mig_device(gpu: Device, slot: int) -> Device:
    # The first slot is empty, as after an instance was destroyed.
    if not 0 < slot <= len(gpu.mig_devices or ()):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return (gpu.mig_devices or ())[slot - 1]


def _raiser(number: int) -> Callable[..., object]:
    def fail(*_arguments: object) -> object:
        raise pynvml.NVMLError(number)

    return fail
