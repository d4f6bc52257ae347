"""What every check of the doctor is given: what was asked, and what all checks need to know of the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shoal.doctor.children import Child, start_child
from shoal.errors import UsageError
from shoal.machine import gpu_health
from shoal.plan.devices import WorkerDevices, parse_gpu_ids, plan_workers
from shoal.plan.training import plan_training
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.config import DoctorConfig
    from shoal.machine.gpu_health import GpuState
    from shoal.machine.visibility import VisibleGpus
    from shoal.plan.devices import GpuIds
    from shoal.plan.training import TrainPlan

USUAL_WORKERS_ON_CPU = 2
"""Workers on the CPU when nothing was asked: the fewest that have to talk."""


@dataclass(frozen=True)
class Ask:
    """One examination. What is costly to know is asked once, when the first check needs it."""

    config: DoctorConfig
    environ: Mapping[str, str]
    gpus: VisibleGpus
    say: Callable[[str], None]
    """Takes a line about each thing that takes a while."""

    @cached_property
    def gpu_ids(self) -> GpuIds:
        """The GPUs that were asked for; all that are visible by default.

        Raises:
            UsageError: The words are no GPUs.
        """
        if self.config.gpu_ids == ("auto",):
            return "all" if self.gpus else None
        return parse_gpu_ids(self.config.gpu_ids)

    @cached_property
    def workers(self) -> WorkerDevices | UsageError:
        """The devices of the workers, or why they cannot be had."""
        asked = self.config.nproc_per_node
        gpu_ids = "auto" if self.gpu_ids == "all" and asked is not None else self.gpu_ids
        try:
            if gpu_ids is None and asked is None:
                asked = USUAL_WORKERS_ON_CPU
            return plan_workers(gpu_ids, asked, self.gpus)
        except UsageError as error:
            return error

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of each worker; empty when they cannot be had."""
        return () if isinstance(self.workers, UsageError) else self.workers.devices

    @cached_property
    def plan(self) -> TrainPlan | UsageError | None:
        """What training the asked task would mean, or why it cannot be done. None when no task was asked."""
        task = self.config.task
        if task is None or not self.devices:
            return None
        indices = tuple(dict.fromkeys(device.removeprefix("cuda:") for device in self.devices))
        config = replace(
            registry.resolve(task).defaults(task),
            gpu_ids=("None",) if self.devices[0] == "cpu" else indices,
            nproc_per_node=len(self.devices),
            log_root=self.config.log_root,
        )
        try:
            return plan_training(config, self.environ, self.gpus)
        except UsageError as error:
            return error

    @cached_property
    def states(self) -> tuple[GpuState, ...]:
        """How the visible GPUs are."""
        return gpu_health.read_gpu_states(self.gpus.gpus)

    @cached_property
    def children(self) -> dict[str, Child]:
        """Processes that take their time, all started together: one for each device, and `torch`."""
        devices = list(dict.fromkeys(self.devices))
        self.say(f"Importing torch, and running a kernel on {', '.join(devices) or 'no device'}.")
        gpus = [int(device.removeprefix("cuda:")) for device in devices if device != "cpu"]
        started = {device: start_child("device", {"device": device}) for device in devices}
        return {**started, "torch": start_child("torch_facts", {"gpus": gpus})}

    @cached_property
    def torch(self) -> dict[str, Any] | str:
        """What torch says of itself, or why it does not."""
        return self.children["torch"].answer()

    def close(self) -> None:
        """End what still runs."""
        for child in self.__dict__.get("children", {}).values():
            child.end()
