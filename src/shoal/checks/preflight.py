"""What `train` makes sure of before it starts a worker: directories, room, memory, healthy GPUs, names that resolve.

Everything is judged by what it needs *at least* (`shoal.plan.sizes`): what is refused here could not have worked, and
what may or may not work is a note. `shoal doctor` uses the same judgements, and has more of its own.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.checks.film import refuse_no_film
from shoal.checks.findings import Finding, note, ok, problem, size
from shoal.checks.launch import SHARED_MEMORY, judge_launch
from shoal.errors import UsageError
from shoal.machine import gpu_health, host
from shoal.machine.cuda_versions import read_built_with
from shoal.plan.checkpoints import Checkpoint
from shoal.plan.ranks import meeting_host
from shoal.plan.rundir import experiment_dir
from shoal.plan.sizes import (
    CONTEXT_BYTES,
    MIB,
    WORKER_BYTES,
    checkpoint_bytes,
    checkpoints_to_come,
    experience_bytes,
    gpu_bytes_per_env,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal.machine.cuda_versions import Version
    from shoal.machine.gpu_health import Driver, GpuState, Holder
    from shoal.machine.host import Disk, Memory
    from shoal.machine.visibility import VisibleGpus
    from shoal.plan.rundir import RunDir
    from shoal.plan.training import TrainPlan

NCCL_SEGMENT_BYTES = 32 * MIB
"""What NCCL may ask of /dev/shm for each rank [bytes]: a segment of 33,030,532 bytes where GPUs have no other way."""
REST_BYTES = 64 * 1024
"""Room that a run takes at least beside checkpoints, for configuration, metrics, events and logs [bytes]."""
USUAL_WORKER_BYTES = 2 * WORKER_BYTES
"""Memory below which a worker may still start, but hardly lives [bytes]."""
FIRST_DRIVER = {12: 525, 13: 580}
"""First release of the NVIDIA driver for each major version of CUDA."""
GRAPH_CUDA = (12, 4)
"""First version of CUDA whose drivers capture conditional graphs."""


def preflight(plan: TrainPlan, environ: Mapping[str, str], gpus: VisibleGpus) -> tuple[str, ...]:
    """Make sure that the machine can carry out a plan.

    Returns:
        Sentences that the user should read before training starts.

    Raises:
        UsageError: It cannot, as far as can be seen without starting anything.
    """
    if plan.config.video and not plan.is_remote and (plan.rank is None or plan.rank.rank == 0):
        refuse_no_film(plan.devices[0], environ)
    notes: list[str] = []
    for finding in findings_of(plan, environ, gpus):
        if finding.level == "problem":
            message = finding.sentence
            raise UsageError(message)
        if finding.level == "note":
            notes.append(finding.sentence)
    return tuple(notes)


def findings_of(plan: TrainPlan, environ: Mapping[str, str], gpus: VisibleGpus) -> Iterator[Finding]:
    """Look at everything that a plan needs of this machine, cheapest first."""
    yield from judge_run_files(plan.continued)
    yield judge_kernel_cache(host.kernel_cache(environ))
    yield judge_temporary(environ)
    for name in needed_names(plan, environ):
        yield judge_name(name, host.resolves(name))
    yield from judge_launch(plan, environ)
    where = plan.continued.path if plan.continued else experiment_dir(plan.config.log_root, plan.spec.experiment)
    wanted, exactly = _checkpoint_size(plan)
    yield judge_disk(host.nearest_existing(where), host.disk(where), wanted, checkpoints_to_come(plan), exactly=exactly)
    if plan.is_remote:
        return  # This process starts no worker on this machine.
    yield judge_memory(host.memory(), len(plan.devices), 0 if plan.devices[0] != "cpu" else experience_bytes(plan))
    driver = gpu_health.read_driver() if plan.devices[0] != "cpu" else None
    if driver is not None:
        yield judge_driver(driver, read_built_with())
    if plan.backend == "nccl":
        yield judge_shared_memory(host.disk(SHARED_MEMORY), len(plan.devices))
    mine = plan.devices if plan.rank is None else (plan.devices[plan.rank.local_rank],)
    for state in gpu_health.read_gpu_states(wanted_gpus(mine, gpus)):
        workers = Counter(mine)[f"cuda:{state.index}"]
        yield from judge_gpu(state, workers, plan, sure=not gpus.order_is_uncertain)


def wanted_gpus(devices: Sequence[str], gpus: VisibleGpus) -> list[gpu_health.Gpu]:
    """Return the visible GPUs that are among `devices`."""
    return [gpu for gpu in gpus if f"cuda:{gpu.index}" in devices]


def needed_names(plan: TrainPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the host names that have to resolve. On one machine Shoal's own launches use none."""
    host = meeting_host(environ) if plan.rank is not None else None
    return (host,) if host else ()


def _checkpoint_size(plan: TrainPlan) -> tuple[int, bool]:
    """Return how large a checkpoint will be, and whether that is known: a run that goes on has one already."""
    if plan.continued is not None and plan.start is not None:
        try:
            files = [path for path in Checkpoint(Path(plan.start.model).parent).path.iterdir() if path.is_file()]
            return sum(path.stat().st_size for path in files), True
        except OSError:
            pass
    return checkpoint_bytes(plan.config.agent), False


# Each judgement ---------------------------------------------------------------------------------------------------


def judge_run_files(run: RunDir | None) -> Iterator[Finding]:
    """Look at what a run that goes on will write again: it may belong to somebody else by now."""
    if run is None:
        return
    for path in (run.checkpoints_dir, run.ranks_dir, run.params_dir, run.run_json, run.metrics_jsonl):
        if path.exists() and not os.access(path, os.W_OK):
            yield problem(
                "run directory",
                f"The run {run.path} cannot go on, because {path.name} in it cannot be written",
                "make it yours, or pass --checkpoint to start a new run from its weights",
            )


def judge_kernel_cache(cache: Path) -> Finding:
    """Look whether Warp can keep its compiled kernels, which it must to run them."""
    trouble = host.why_unwritable(cache) or host.why_no_file(cache)
    if trouble is None:
        return ok("kernel cache", str(cache))
    return problem(
        "kernel cache",
        f"Warp keeps compiled kernels in {cache.parent}, but {trouble[0]} {trouble[1]}",
        "set WARP_CACHE_PATH to a directory that you can write to",
    )


def judge_temporary(environ: Mapping[str, str]) -> Finding:
    """Look for a place for the files that a launch needs while it lasts."""
    try:
        place = tempfile.gettempdir()
    except FileNotFoundError as error:
        tried = (error.strerror or str(error)).rstrip(".")
        return problem(
            "temporary files",
            f"There is no place for temporary files ({tried})",
            "make room, or set TMPDIR to a directory that you can write to",
        )
    asked = environ.get("TMPDIR")
    if asked and Path(asked).absolute() != Path(place):
        return note("temporary files", f"TMPDIR is {asked}, which cannot be written: temporary files go to {place}")
    return ok("temporary files", place)


def judge_disk(where: Path, disk: Disk | None, checkpoint: int, count: int, *, exactly: bool) -> Finding:
    """Compare the room on a disk with one checkpoint, which there must be, and with all, which there should be.

    Args:
        where: A directory on the disk.
        disk: The room.
        checkpoint: Size of a checkpoint [bytes].
        count: Number of checkpoints that will be written.
        exactly: Whether the size is known; otherwise it is a lower bound.
    """
    topic, least = "disk", "" if exactly else "at least "
    if disk is None:
        return note(topic, f"The room on the disk of {where} cannot be told")
    if disk.free_files == 0:
        return problem(topic, f"The disk of {where} has no room for another file", "remove some, or pass --log-root")
    if disk.free < checkpoint + REST_BYTES:
        return problem(
            topic,
            f"The disk of {where} has {size(disk.free)} free, but a checkpoint and the rest of a run take "
            f"{least}{size(checkpoint + REST_BYTES)}",
            "make room, or pass --log-root with a directory on another disk",
        )
    if disk.free < checkpoint * count + REST_BYTES:
        return note(
            topic,
            f"The disk of {where} has {size(disk.free)} free, but the {count} checkpoints of this run take "
            f"{least}{size(checkpoint * count)}",
            "make room in time, or raise --agent.save-interval",
        )
    return ok(topic, f"{where} has {size(disk.free)} free; a checkpoint takes {least}{size(checkpoint)}")


def judge_memory(memory: Memory | None, workers: int, experience: int) -> Finding:
    """Compare the host's memory with what so many workers take at least.

    Args:
        memory: What there is.
        workers: Workers on this machine.
        experience: What each collects in the host's memory before it learns [bytes].
    """
    topic = "memory"
    if memory is None:
        return ok(topic, "this system does not tell")
    there = memory.available + memory.swap_free
    who = "1 worker takes" if workers == 1 else f"{workers} workers take"
    whose = "this container" if memory.limited else "this machine"
    needed = workers * (WORKER_BYTES + experience)
    if there < needed:
        return problem(
            topic,
            f"{size(there)} of memory are available to {whose}, but {who} at least {size(needed)}",
            "end other processes, or pass fewer --nproc-per-node or --num-envs",
            transient=memory.total >= needed,
        )
    if memory.available < workers * (USUAL_WORKER_BYTES + experience):
        return note(
            topic,
            f"Only {size(memory.available)} of memory are available to {whose}, and {who} more than {size(needed)}",
            "watch it, since the kernel kills a worker when memory runs out",
        )
    swap = f", and {size(memory.swap_free)} of swap" if memory.swap_free else ""
    return ok(topic, f"{size(memory.available)} of {size(memory.total)} available to {whose}{swap}")


def judge_shared_memory(shared: Disk | None, workers: int) -> Finding:
    """Look at /dev/shm, through which NCCL talks where GPUs cannot reach each other. Docker's default is 64 MB."""
    topic = "shared memory"
    if shared is None:
        return note(topic, f"There is no {SHARED_MEMORY}, which NCCL may need", "set NCCL_SHM_DISABLE=1 if NCCL fails")
    needed = workers * NCCL_SEGMENT_BYTES
    if shared.free < needed:
        return note(
            topic,
            f"{SHARED_MEMORY} has {size(shared.free)} free, and {workers} ranks may need {size(needed)} of it for NCCL",
            "enlarge it (docker run --shm-size 1g), or set NCCL_SHM_DISABLE=1",
        )
    return ok(topic, f"{SHARED_MEMORY} has {size(shared.free)} free")


def judge_driver(driver: Driver, built_with: Mapping[str, Version], *, wanted: bool = True) -> Finding:
    """Compare the driver with the packages that use CUDA: it has to support the major version of each.

    Args:
        driver: The driver.
        built_with: The CUDA version of each package.
        wanted: Whether GPUs will be used. If not, a driver that is too old is a note.
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
        return finding if wanted else note(topic, finding.truth, finding.remedy)
    if driver.cuda is not None and driver.cuda < GRAPH_CUDA:
        return note(
            topic,
            f"The NVIDIA driver is {release}, and before CUDA 12.4 some steps cannot be recorded as graphs",
            "expect them to be slower, or update the driver",
        )
    return ok(topic, release)


def _supports(driver: Driver, major: int) -> bool:
    """Return whether a driver supports a major version of CUDA, by its release where NVML does not return that."""
    if driver.cuda is not None:
        return driver.cuda[0] >= major
    return int(driver.release.partition(".")[0]) >= FIRST_DRIVER.get(major, 0)


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def judge_gpu(state: GpuState, workers: int, plan: TrainPlan | None, *, sure: bool) -> Iterator[Finding]:
    """Look at one GPU that workers will use.

    Args:
        state: How it is.
        workers: Workers that will share it.
        plan: What they will train. None if only their contexts are judged.
        sure: Whether the driver's GPU of that index is surely CUDA's; otherwise problems are no more than notes.
    """
    for finding in _judge_gpu(state, workers, plan):
        doubtful = finding.level == "problem" and not sure
        yield note(finding.topic, finding.truth, finding.remedy) if doubtful else finding


def _judge_gpu(state: GpuState, workers: int, plan: TrainPlan | None) -> Iterator[Finding]:
    topic, gpu = f"GPU {state.index}", f"GPU {state.index} ({state.name})"
    held = f", held by {holders_of(state)}" if state.holders else ""
    if state.problem is not None:
        yield problem(topic, f"{gpu} is unhealthy ({state.problem})", "reset it or reboot, or pass other --gpu-ids")
        return
    if state.compute_mode == "prohibited":
        yield problem(
            topic,
            f"{gpu} is in compute mode 'prohibited', which lets no process use it",
            f"run `nvidia-smi -i {state.uuid} -c DEFAULT` as root, or pass other --gpu-ids",
        )
    if state.compute_mode == "exclusive process" and (workers > 1 or state.holders):
        yield problem(
            topic,
            f"{gpu} is in compute mode 'exclusive process', which lets one process use it{held}, "
            f"but {workers} more would",
            f"run `nvidia-smi -i {state.uuid} -c DEFAULT` as root, or pass other --gpu-ids",
            transient=workers == 1,
        )
    envs_bytes = plan.num_envs * gpu_bytes_per_env(plan) if plan is not None else 0
    needed = workers * (CONTEXT_BYTES + envs_bytes)
    if state.free_bytes is not None and state.free_bytes < needed:
        is_held = state.total_bytes is None or state.total_bytes >= needed
        yield problem(
            topic,
            f"{gpu} has {size(state.free_bytes)} of memory free{held}, but {_takers(workers, plan)} at least "
            f"{size(needed)}",
            f"{'end what holds it, or ' if is_held else ''}pass {_less_memory(state.free_bytes // workers, plan)}",
            transient=is_held,
        )
    elif state.holders:
        yield note(
            topic, f"{gpu} is also used by {holders_of(state)}", "expect training to be slower, or pass other --gpu-ids"
        )
    yield from _judge_memory_of_gpu(state, topic, gpu)


def _takers(workers: int, plan: TrainPlan | None) -> str:
    """Return the workers that share a GPU, with their environments and a verb."""
    if plan is None:
        return "a worker takes" if workers == 1 else f"{workers} workers take"
    envs = f"{plan.num_envs:,} environment{'' if plan.num_envs == 1 else 's'}"
    return f"a worker with {envs} takes" if workers == 1 else f"{workers} workers with {envs} each take"


def _less_memory(free_bytes: int, plan: TrainPlan | None) -> str:
    """Return the flag that makes a training fit into so much memory for each worker, as far as its size is known."""
    fit = (free_bytes - CONTEXT_BYTES) // gpu_bytes_per_env(plan) if plan is not None else 0
    if plan is None or fit < 1:
        return "other --gpu-ids"
    if plan.config.num_envs_total is not None:
        return f"--num-envs-total {fit * plan.world_size} or fewer"
    return f"--num-envs {fit} or fewer"


def _judge_memory_of_gpu(state: GpuState, topic: str, gpu: str) -> Iterator[Finding]:
    """Look at what the GPU's memory has been through. It trains all the same; what it computes may be wrong."""
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


def judge_name(name: str, why_not: str | None) -> Finding:
    """Look at a host name that ranks will meet at."""
    if why_not is None:
        return ok("host name", f"{name} resolves")
    return problem(
        "host name",
        f"The ranks are to meet at '{name}' (MASTER_ADDR), but that name does not resolve ({why_not})",
        "give the launcher an address, or a name that this machine can resolve",
    )
