"""What every check of the doctor reads: the configuration, the environment, and facts that are found out once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from shoal.config import DoctorConfig, TrainConfig
from shoal.doctor.probe import Probe
from shoal.errors import UsageError
from shoal.machine import gpu_health
from shoal.machine.gpu_health import GpuState
from shoal.machine.gpus import VisibleGpus
from shoal.plan.devices import GpuIds, WorkerDevices, parse_gpu_ids, plan_workers
from shoal.plan.training import TrainPlan, plan_training
from shoal.tasks import registry

DEFAULT_TASK = "Cartpole-Swingup"
"""Task of the training that is planned, and of the short ones that are launched, where none is named."""
DEFAULT_CPU_WORKERS = 2
"""Workers on the CPU without `--nproc-per-node`: the fewest that communicate."""


def training_of(config: DoctorConfig) -> TrainConfig:
    """Return the configuration of a training of the doctor's task."""
    task = config.task or DEFAULT_TASK
    return replace(registry.resolve(task).defaults(task), log_root=config.log_root, logger="none", export=False)


@dataclass(frozen=True)
class DoctorContext:
    """One examination of this machine."""

    config: DoctorConfig
    environ: Mapping[str, str]
    gpus: VisibleGpus
    log: Callable[[str], None]
    """Takes a line about each step that takes a while."""

    @cached_property
    def gpu_ids(self) -> GpuIds:
        """The requested GPUs; all visible ones by default.

        Raises:
            UsageError: `--gpu-ids` cannot be parsed.
        """
        if self.config.gpu_ids == ("auto",):
            return "all" if self.gpus else None
        return parse_gpu_ids(self.config.gpu_ids)

    @cached_property
    def workers(self) -> WorkerDevices | UsageError:
        """The devices of the workers, or why they are not available."""
        number = self.config.nproc_per_node
        gpu_ids = "auto" if self.gpu_ids == "all" and number is not None else self.gpu_ids
        try:
            return plan_workers(gpu_ids, number or (DEFAULT_CPU_WORKERS if gpu_ids is None else None), self.gpus)
        except UsageError as error:
            return error

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of each worker; empty when they are not available."""
        return () if isinstance(self.workers, UsageError) else self.workers.devices

    @cached_property
    def plan(self) -> TrainPlan | UsageError | None:
        """The plan of a training on these devices, or why it is impossible. None without devices."""
        if not self.devices:
            return None
        config = training_of(self.config)
        if self.config.task is None:
            config = replace(config, num_envs=1)  # What any training needs.
        indices = tuple(dict.fromkeys(device.removeprefix("cuda:") for device in self.devices))
        gpu_ids = ("None",) if self.devices[0] == "cpu" else indices
        config = replace(config, gpu_ids=gpu_ids, nproc_per_node=len(self.devices))
        try:
            return plan_training(config, self.environ, self.gpus)
        except UsageError as error:
            return error

    @cached_property
    def states(self) -> tuple[GpuState, ...]:
        """State of each visible GPU."""
        return gpu_health.read_gpu_states(self.gpus.gpus)

    @cached_property
    def probes(self) -> dict[str, Probe]:
        """Child processes, all started together: a kernel on each device, and `torch`."""
        devices = list(dict.fromkeys(self.devices))
        self.log(f"Importing torch, and running a kernel on {', '.join(devices) or 'no device'}.")
        gpus = [int(device.removeprefix("cuda:")) for device in devices if device != "cpu"]
        return {**{device: Probe("kernel", device) for device in devices}, "torch": Probe("torch", gpus)}

    @cached_property
    def torch(self) -> dict[str, Any] | str:
        """Result of `probe_torch`, or why torch cannot be imported."""
        return self.probes["torch"].result()

    def close(self) -> None:
        """Kill probes that still run."""
        for probe in self.__dict__.get("probes", {}).values():
            probe.kill()
