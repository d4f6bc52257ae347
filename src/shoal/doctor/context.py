"""What every check of the doctor reads: the configuration, the environment, and facts that are found out once.

What only an import of torch shows is found out by child processes: it may fail, hang or crash.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from shoal.checks.probe import Probe
from shoal.config import DoctorConfig, TrainConfig
from shoal.errors import UsageError
from shoal.machine.gpus import VisibleGpus
from shoal.plan.nodes import Nodes, parse_gpu_ids, plan_workers
from shoal.tasks import registry

DEFAULT_TASK = "Cartpole-Swingup"
"""Task of the training that is planned, and of the short ones that are launched, where none is named."""
DEFAULT_CPU_WORKERS = 2
"""Workers on the CPU without `--nproc-per-node`: the fewest that communicate."""


def training_of(config: DoctorConfig, **changes: Any) -> TrainConfig:  # noqa: ANN401  Fields of any type.
    """Return the configuration of a training of the doctor's task, with some other fields."""
    task = config.task or DEFAULT_TASK
    defaults = registry.resolve(task).defaults(task)
    return replace(defaults, **{"log_root": config.log_root, "logger": "none", "export": False, **changes})


@dataclass(frozen=True)
class DoctorContext:
    """One examination of this machine."""

    config: DoctorConfig
    environ: Mapping[str, str]
    gpus: VisibleGpus
    log: Callable[[str], None]
    """Takes a line about each step that takes a while."""

    @cached_property
    def workers(self) -> Nodes | UsageError:
        """The devices of the workers, by default on all visible GPUs, or why they are not available.

        Raises UsageError for a `--gpu-ids` that cannot be parsed.
        """
        number, words = self.config.nproc_per_node, self.config.gpu_ids
        if words == ("auto",):
            words = ("all",) if self.gpus else ("None",)
        gpu_ids = parse_gpu_ids(words)
        if gpu_ids is None:
            number = number or DEFAULT_CPU_WORKERS
        elif gpu_ids == "all" and number is not None:
            gpu_ids = "auto"
        try:
            return plan_workers(gpu_ids, number, self.gpus)
        except UsageError as error:
            return error

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of each worker; empty when they are not available."""
        return () if isinstance(self.workers, UsageError) else self.workers.devices

    @property
    def uses_gpus(self) -> bool:
        """Whether the workers are available, and on GPUs."""
        return self.devices[:1] not in ((), ("cpu",))

    @cached_property
    def probes(self) -> dict[str, Probe]:
        """Child processes, all started together: a kernel on each device, and `torch`."""
        devices = list(dict.fromkeys(self.devices))
        self.log(f"Importing torch, and running a kernel on {', '.join(devices) or 'no device'}.")
        gpus = [int(device.removeprefix("cuda:")) for device in devices if device != "cpu"]
        kernels = {device: Probe("shoal.sim.probe:probe", device) for device in devices}
        return {**kernels, "torch": Probe(f"{__name__}:probe_torch", gpus)}

    @cached_property
    def torch(self) -> dict[str, Any] | str:
        """Result of `probe_torch`, or why torch cannot be imported."""
        return self.probes["torch"].result()

    def close(self) -> None:
        """Kill probes that still run."""
        for probe in self.__dict__.get("probes", {}).values():
            probe.kill()


def probe_torch(gpus: list[int]) -> dict[str, Any]:
    """Return torch's versions, whether it can use CUDA, and which of `gpus` have peer access to each other."""
    import torch
    import torch.distributed as dist
    from torch.cuda import nccl

    uses_cuda, failure = torch.version.cuda is not None and bool(gpus), None
    if uses_cuda:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            uses_cuda, failure = False, str(error).strip().partition("\n")[0].rstrip(".")
    can_access = torch.cuda.can_device_access_peer
    peers = [[one, other] for one in gpus for other in gpus if uses_cuda and one != other and can_access(one, other)]
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": ".".join(map(str, nccl.version())) if uses_cuda and dist.is_nccl_available() else None,
        "device_count": torch.cuda.device_count() if uses_cuda else 0,
        "problem": failure,
        "peers": peers,
    }
