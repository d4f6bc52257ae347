"""What a launch needs beside its workers: the launcher that is said to have started it, loopback, semaphores."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.checks.findings import Finding, problem
from shoal.machine.network import LOOPBACK, addresses_by_interface, answers
from shoal.plan.launchers import SRUN_SIGN, TORCHRUN_SIGN, launcher_of
from shoal.procfs import stat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.plan.training import TrainPlan

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  The kernel's own directory.


def judge_launch(plan: TrainPlan, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look for what keeps the workers of a plan from starting, or from finding each other on this machine."""
    if plan.rank is not None:
        yield from _judge_launcher(environ)
    if plan.launch_mode == "spawned":
        yield from _judge_semaphores()
    if len(plan.devices) > 1 and not plan.is_remote and not addresses_by_interface().get(LOOPBACK):
        yield problem(
            "loopback",
            f"The network interface {LOOPBACK} is down, or has no address, and workers of one machine need it",
            f"run `ip link set {LOOPBACK} up` as root",
        )


def _judge_launcher(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look whether torchrun or srun is there, whose variables this process has: they may be left over."""
    if launcher_of(environ) == "srun":
        task = environ.get("SLURM_TASK_PID", "")
        if task and task not in _ancestry():
            yield problem(
                "launcher",
                f"{SRUN_SIGN} is set, as srun sets it, but the process that srun started (SLURM_TASK_PID {task}) is "
                "neither this one nor one of its parents",
                f"unset {SRUN_SIGN} if it is left over, or SLURM_TASK_PID if it is not",
            )
    elif environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # Then the store is there before the workers are.
        address, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
        if not answers(address, int(port)):
            yield problem(
                "launcher",
                f"{TORCHRUN_SIGN} is set, as torchrun sets it, but nothing answers on port {port} of {address}, where "
                "torchrun has its store",
                f"unset {TORCHRUN_SIGN} if it is left over, or start torchrun again",
            )


def _ancestry() -> list[str]:
    """Return this process and its parents, as far as they are to be seen."""
    pids = [str(os.getpid())]
    while fields := stat(int(pids[-1])):
        pids.append(fields[1])
    return pids


def _judge_semaphores() -> Iterator[Finding]:
    """Make a semaphore without a name, as torchrunx and the pools of its agent do."""
    try:
        multiprocessing.get_context("fork").Lock()
    except OSError as error:
        yield problem(
            "shared memory",
            f"No semaphore can be made in {SHARED_MEMORY} ({error.strerror}), and a launch needs some",
            "make room there, or mount it writable (docker run --shm-size 1g)",
        )
