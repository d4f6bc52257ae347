"""Checks of what a launch needs besides its workers: the launcher, loopback, host names, semaphores."""

import multiprocessing
from collections.abc import Iterator, Mapping

import psutil

from shoal.checks.findings import Finding, ok, problem
from shoal.checks.storage import SHARED_MEMORY
from shoal.machine.host import why_unresolved
from shoal.machine.network import LOOPBACK, addresses_by_interface, answers
from shoal.plan.launch import LaunchPlan
from shoal.plan.launchers import SRUN_SIGN, TORCHRUN_SIGN, launcher_of
from shoal.plan.slurm import read_task


def check_launch(plan: LaunchPlan, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the workers of a plan can start, and reach each other on this machine."""
    if plan.rank is not None:
        yield _check_name(read_task(environ).host if launcher_of(environ) == "srun" else environ["MASTER_ADDR"])
        yield from _check_launcher(environ)
    if plan.launch_mode == "spawned":
        yield from _check_semaphores()
    if len(plan.devices) > 1 and not plan.is_remote:
        yield check_loopback()


def _check_name(name: str) -> Finding:
    """Check that the host name of the rendezvous resolves. On one machine Shoal's own launches use none."""
    reason = why_unresolved(name)
    if reason is None:
        return ok("host name", f"{name} resolves")
    return problem(
        "host name",
        f"The ranks are to meet at '{name}' (MASTER_ADDR), but that name does not resolve ({reason})",
        "give the launcher an address, or a name that this machine can resolve",
    )


def check_loopback() -> Finding:
    """Check the network interface by which the workers of one machine communicate."""
    if addresses_by_interface().get(LOOPBACK):
        return ok("loopback", f"{LOOPBACK} is up")
    return problem(
        "loopback",
        f"The network interface {LOOPBACK} is down, or has no address, and workers of one machine need it",
        f"run `ip link set {LOOPBACK} up` as root",
    )


def _check_launcher(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that torchrun or srun runs, whose variables this process has: they may be left over."""
    if launcher_of(environ) == "srun":
        task = environ.get("SLURM_TASK_PID", "")
        process = psutil.Process()
        if task and task not in {str(each.pid) for each in (process, *process.parents())}:
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


def _check_semaphores() -> Iterator[Finding]:
    """Create an unnamed semaphore, as torchrunx and its agent's pools do."""
    try:
        multiprocessing.get_context("fork").Lock()
    except OSError as error:
        yield problem(
            "shared memory",
            f"No semaphore can be made in {SHARED_MEMORY} ({error.strerror}), and a launch needs some",
            "make room there, or mount it writable (docker run --shm-size 1g)",
        )
