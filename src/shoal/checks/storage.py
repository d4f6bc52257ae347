"""Checks of storage: the run directory, Warp's kernel cache, temporary files, disk space, memory, shared memory."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.checks.findings import Finding, note, ok, problem, size
from shoal.machine import host
from shoal.machine.host import Disk, Memory
from shoal.plan.rundir import RunDir
from shoal.plan.sizes import MIB, WORKER_BYTES

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  The kernel's own directory.
NCCL_SEGMENT_BYTES = 32 * MIB
"""Shared memory that NCCL may need for each rank [bytes]: a segment of 33,030,532 bytes without peer access."""
REST_BYTES = 64 * 1024
"""Least size of a run without its checkpoints: configuration, metrics, events and logs [bytes]."""
USUAL_WORKER_BYTES = 2 * WORKER_BYTES
"""Memory of a worker in practice; with less it may still start [bytes]."""


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


def check_kernel_cache(cache: Path) -> Finding:
    """Check that Warp can write its compiled kernels, without which it cannot run them."""
    reason = host.why_unwritable(cache) or host.why_no_file(cache)
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


def check_disk(where: Path, disk: Disk | None, checkpoint: int, count: int, *, exactly: bool) -> Finding:
    """Compare the free space at `where` with one checkpoint, which must fit, and with all to come, which should.

    The size of a checkpoint [bytes] is known `exactly`, or is a lower bound.
    """
    topic, least = "disk", "" if exactly else "at least "
    if disk is None:
        return note(topic, f"The free space on the disk of {where} cannot be read")
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


def check_memory(memory: Memory, workers: int, experience: int) -> Finding:
    """Compare the host's memory with the least that the workers need, each with its `experience` [bytes]."""
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


def check_shared_memory(shared: Disk | None, workers: int) -> Finding:
    """Check /dev/shm, through which NCCL communicates where GPUs lack peer access. Docker's default is 64 MB."""
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
