"""Checks of what training takes of this machine: directories, disk, memory, the NVIDIA driver, GPUs."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.checks.findings import Finding, note, ok, problem
from shoal.errors import counted
from shoal.machine import gpu_health, host
from shoal.machine.gpu_health import GpuState, Version
from shoal.plan.rundir import RunDir
from shoal.plan.sizes import CONTEXT_BYTES, MIB, WORKER_BYTES, gpu_bytes_per_env
from shoal.plan.training import TrainPlan
from shoal.text import size

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  The kernel's own directory.
NCCL_SEGMENT_BYTES = 32 * MIB
"""Shared memory that NCCL may need for each rank [bytes]: a segment of 33,030,532 bytes without peer access."""
REST_BYTES = 64 * 1024
"""Least size of a run without its checkpoints: configuration, metrics, events and logs [bytes]."""
USUAL_WORKER_BYTES = 2 * WORKER_BYTES
"""Memory of a worker in practice; with less it may still start [bytes]."""
FIRST_DRIVER = {12: 525, 13: 580}
"""First release of the NVIDIA driver for each major version of CUDA."""
GRAPH_CUDA = (12, 4)
"""First version of CUDA whose drivers capture conditional graphs."""


def check_run_files(run: RunDir | None) -> Iterator[Finding]:
    """Check that a resumed run can be written: its files may belong to another user."""
    if run is None:
        return
    for path in (run.checkpoints_dir, run.ranks_dir, run.params_dir, run.run_json, run.metrics_jsonl):
        if path.exists() and not os.access(path, os.W_OK):
            yield problem(
                "run directory",
                f"The run {run.path} cannot go on, because {path.name} in it cannot be written",
                "make it yours, or pass --checkpoint to start a new run from its weights",
            )


def check_kernel_cache(environ: Mapping[str, str]) -> Finding:
    """Check that Warp can write its compiled kernels, without which it cannot run them."""
    cache = host.kernel_cache(environ)
    reason = host.why_unwritable(cache)
    if reason is None:
        return ok("kernel cache", str(cache))
    return problem(
        "kernel cache",
        f"Warp keeps compiled kernels in {cache.parent}, but {reason[0]} {reason[1]}",
        "set WARP_CACHE_PATH to a directory that you can write to",
    )


def check_temporary(environ: Mapping[str, str]) -> Finding:
    """Check for a writable directory of temporary files."""
    try:
        directory = tempfile.gettempdir()
    except FileNotFoundError as error:
        tried = (error.strerror or str(error)).rstrip(".")
        return problem(
            "temporary files",
            f"There is no place for temporary files ({tried})",
            "make room, or set TMPDIR to a directory that you can write to",
        )
    wanted = environ.get("TMPDIR")
    if wanted and Path(wanted).absolute() != Path(directory):
        return note(
            "temporary files", f"TMPDIR is {wanted}, which cannot be written: temporary files go to {directory}"
        )
    return ok("temporary files", directory)


def check_disk(run: Path, checkpoint: int, count: int, *, exactly: bool) -> Finding:
    """Compare the free space for a run with one checkpoint, which must fit, and with all to come, which should.

    The size of a checkpoint [bytes] is known `exactly`, or is a lower bound. Quotas are not seen.
    """
    topic, least, where = "disk", "" if exactly else "at least ", host.nearest_existing(run)
    try:
        disk = shutil.disk_usage(where)
    except OSError:
        return note(topic, f"The free space on the disk of {where} cannot be read")
    needed = checkpoint + REST_BYTES
    if disk.free < needed:
        return problem(
            topic,
            f"The disk of {where} has {size(disk.free)} free, but a checkpoint and the rest of a run take "
            f"{least}{size(needed)}",
            "make room, or pass --log-root with a directory on another disk",
            transient=disk.total >= needed,
        )
    if disk.free < checkpoint * count + REST_BYTES:
        return note(
            topic,
            f"The disk of {where} has {size(disk.free)} free, but the {count} checkpoints of this run take "
            f"{least}{size(checkpoint * count)}",
            "make room in time, or raise --agent.save-interval",
        )
    return ok(topic, f"{where} has {size(disk.free)} free; a checkpoint takes {least}{size(checkpoint)}")


def check_memory(workers: int, experience: int) -> Finding:
    """Compare the host's memory with the least that the workers need, each with its `experience` [bytes]."""
    memory = host.memory()
    there = memory.available + memory.swap_free
    takes = "1 worker takes" if workers == 1 else f"{workers} workers take"
    owner = "this container" if memory.limited else "this machine"
    needed = workers * (WORKER_BYTES + experience)
    if there < needed:
        return problem(
            "memory",
            f"{size(there)} of memory are available to {owner}, but {takes} at least {size(needed)}",
            "end other processes, or pass fewer --nproc-per-node or --num-envs",
            transient=memory.total >= needed,
        )
    if memory.available < workers * (USUAL_WORKER_BYTES + experience):
        return note(
            "memory",
            f"Only {size(memory.available)} of memory are available to {owner}, and {takes} more than {size(needed)}",
            "watch it, since the kernel kills a worker when memory runs out",
        )
    swap = f", and {size(memory.swap_free)} of swap" if memory.swap_free else ""
    return ok("memory", f"{size(memory.available)} of {size(memory.total)} available to {owner}{swap}")


def check_shared_memory(workers: int) -> Finding:
    """Check /dev/shm, through which NCCL communicates where GPUs lack peer access. Docker's default is 64 MB."""
    topic = "shared memory"
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return note(topic, f"There is no {SHARED_MEMORY}, which NCCL may need", "set NCCL_SHM_DISABLE=1 if NCCL fails")
    needed = workers * NCCL_SEGMENT_BYTES
    if free < needed:
        return note(
            topic,
            f"{SHARED_MEMORY} has {size(free)} free, and {workers} ranks may need {size(needed)} of it for NCCL",
            "enlarge it (docker run --shm-size 1g), or set NCCL_SHM_DISABLE=1",
        )
    return ok(topic, f"{SHARED_MEMORY} has {size(free)} free")


def check_driver() -> Iterator[Finding]:
    """Check that the driver, where there is one, supports the CUDA version that torch and Warp were built with."""
    driver = gpu_health.read_driver()
    if driver is None:
        return
    topic, release, cuda = "driver", driver.release, driver.cuda
    number = int(release.partition(".")[0])  # It decides where NVML does not report the version of CUDA.
    shown = f"{release}, which supports CUDA {_dotted(cuda)}" if cuda else release
    unsupported = {
        name: version
        for name, version in gpu_health.read_built_with().items()
        if (cuda[0] < version[0] if cuda else number < FIRST_DRIVER.get(version[0], 0))
    }
    if unsupported:
        major = max(unsupported.values())[0]
        builds = " and ".join(f"{name} (built with CUDA {_dotted(version)})" for name, version in unsupported.items())
        newer = f"driver {FIRST_DRIVER[major]} or newer" if major in FIRST_DRIVER else "a newer driver"
        yield problem(
            topic,
            f"The NVIDIA driver is {shown}, but CUDA {major} is needed by {builds}",
            f"install {newer}, or pass --gpu-ids None to use the CPU",
        )
    elif cuda is not None and cuda < GRAPH_CUDA:
        yield note(
            topic,
            f"The NVIDIA driver is {shown}, and before CUDA 12.4 some steps cannot be recorded as graphs",
            "expect them to be slower, or update the driver",
        )
    else:
        yield ok(topic, shown)


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def check_gpu(state: GpuState, workers: int, plan: TrainPlan) -> Iterator[Finding]:
    """Check one GPU that so many workers will share."""
    topic, gpu = f"GPU {state.index}", f"GPU {state.index} ({state.name})"
    held = f", held by {state.holders}" if state.holders else ""
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
    needed = workers * (CONTEXT_BYTES + plan.config.num_envs * gpu_bytes_per_env(plan))
    if state.free_bytes is not None and state.free_bytes < needed:
        envs = counted(plan.config.num_envs, "environment")
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
            topic, f"{gpu} is also used by {state.holders}", "expect training to be slower, or pass other --gpu-ids"
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
        yield note(topic, f"{gpu} waits for a reset to replace broken memory", "reset it when it is idle")
