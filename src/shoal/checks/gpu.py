"""Checks of the NVIDIA driver and of GPUs."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shoal.checks.findings import Finding, note, ok, problem, size
from shoal.errors import counted
from shoal.machine.cuda_versions import Version
from shoal.machine.gpu_health import Driver, GpuState, Holder
from shoal.plan.sizes import CONTEXT_BYTES, gpu_bytes_per_env
from shoal.plan.training import TrainPlan

FIRST_DRIVER = {12: 525, 13: 580}
"""First release of the NVIDIA driver for each major version of CUDA."""
GRAPH_CUDA = (12, 4)
"""First version of CUDA whose drivers capture conditional graphs."""


def check_driver(driver: Driver, built_with: Mapping[str, Version], *, wanted: bool = True) -> Finding:
    """Check that the driver supports the CUDA version that each package was built with.

    Where no GPU is `wanted`, a driver that is too old is a note.
    """
    topic, release = "driver", driver.release
    if driver.cuda is not None:
        release += f", which supports CUDA {_dotted(driver.cuda)}"
    unsupported = {name: version for name, version in built_with.items() if not _supports(driver, version[0])}
    if unsupported:
        major = max(unsupported.values())[0]
        builds = " and ".join(f"{name} (built with CUDA {_dotted(version)})" for name, version in unsupported.items())
        newer = f"driver {FIRST_DRIVER[major]} or newer" if major in FIRST_DRIVER else "a newer driver"
        finding = problem(
            topic,
            f"The NVIDIA driver is {release}, but CUDA {major} is needed by {builds}",
            f"install {newer}, or pass --gpu-ids None to use the CPU",
        )
        return finding if wanted else _as_note(finding)
    if driver.cuda is not None and driver.cuda < GRAPH_CUDA:
        return note(
            topic,
            f"The NVIDIA driver is {release}, and before CUDA 12.4 some steps cannot be recorded as graphs",
            "expect them to be slower, or update the driver",
        )
    return ok(topic, release)


def _supports(driver: Driver, major: int) -> bool:
    """Whether a driver supports a major version of CUDA, by its release where NVML does not report the version."""
    if driver.cuda is not None:
        return driver.cuda[0] >= major
    return int(driver.release.partition(".")[0]) >= FIRST_DRIVER.get(major, 0)


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def check_gpu(state: GpuState, workers: int, plan: TrainPlan, *, sure: bool) -> Iterator[Finding]:
    """Check one GPU that so many workers will share.

    If it is not `sure` that the driver and CUDA number GPUs alike, problems are no more than notes.
    """
    found = _check_gpu(state, workers, plan)
    return found if sure else map(_as_note, found)


def _as_note(finding: Finding) -> Finding:
    return replace(finding, level="note", transient=False)


def _check_gpu(state: GpuState, workers: int, plan: TrainPlan) -> Iterator[Finding]:
    topic, gpu = f"GPU {state.index}", f"GPU {state.index} ({state.name})"
    held = f", held by {holders_of(state)}" if state.holders else ""
    if state.problem is not None:
        yield problem(topic, f"{gpu} is unhealthy ({state.problem})", "reset it or reboot, or pass other --gpu-ids")
        return
    exclusive = state.compute_mode == "exclusive process"
    if state.compute_mode == "prohibited" or (exclusive and (workers > 1 or state.holders)):
        lets = f"one process use it{held}, but {workers} more would" if exclusive else "no process use it"
        yield problem(
            topic,
            f"{gpu} is in compute mode '{state.compute_mode}', which lets {lets}",
            f"run `nvidia-smi -i {state.uuid} -c DEFAULT` as root, or pass other --gpu-ids",
            transient=exclusive and workers == 1,
        )
    needed = workers * (CONTEXT_BYTES + plan.num_envs * gpu_bytes_per_env(plan))
    if state.free_bytes is not None and state.free_bytes < needed:
        envs = counted(plan.num_envs, "environment")
        takes = f"a worker with {envs} takes" if workers == 1 else f"{workers} workers with {envs} each take"
        is_held = state.total_bytes is None or state.total_bytes >= needed
        yield problem(
            topic,
            f"{gpu} has {size(state.free_bytes)} of memory free{held}, but {takes} at least {size(needed)}",
            f"{'end what holds it, or ' if is_held else ''}pass {_less_memory(state.free_bytes // workers, plan)}",
            transient=is_held,
        )
    elif state.holders:
        yield note(
            topic, f"{gpu} is also used by {holders_of(state)}", "expect training to be slower, or pass other --gpu-ids"
        )
    yield from _check_memory_errors(state, topic, gpu)


def _less_memory(free_bytes: int, plan: TrainPlan) -> str:
    """Return the flag by which the training fits into so much memory for each worker."""
    fit = (free_bytes - CONTEXT_BYTES) // gpu_bytes_per_env(plan)
    if fit < 1:
        return "other --gpu-ids"
    if plan.config.num_envs_total is not None:
        return f"--num-envs-total {fit * plan.world_size} or fewer"
    return f"--num-envs {fit} or fewer"


def _check_memory_errors(state: GpuState, topic: str, gpu: str) -> Iterator[Finding]:
    """Check for memory errors. The GPU can train, but its results may be wrong."""
    if state.repair_failed:
        yield note(
            topic, f"{gpu} has broken memory that can no longer be replaced", "do not trust it, and have it changed"
        )
    elif state.uncorrected_errors:
        yield note(
            topic,
            f"{gpu} has had {state.uncorrected_errors} memory errors that could not be corrected",
            "reset it before you trust it",
        )
    elif state.repair_pending:
        yield note(topic, f"{gpu} waits for a reset to replace broken memory", "reset it when nobody uses it")


def holders_of(state: GpuState) -> str:
    """Return the processes that hold a GPU, the largest first, such as ``python (process 12, 3.1 GiB)``."""
    return ", ".join(map(_holder, sorted(state.holders, key=lambda each: -(each.memory_bytes or 0))))


def _holder(holder: Holder) -> str:
    known = [f"process {holder.pid}"] if holder.name else []
    known += [size(holder.memory_bytes)] if holder.memory_bytes is not None else []
    return (holder.name or f"process {holder.pid}") + (f" ({', '.join(known)})" if known else "")
