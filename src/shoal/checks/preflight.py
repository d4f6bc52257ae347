"""Checks that `train` makes before it starts a worker.

Requirements are lower bounds (`shoal.plan.sizes`): what is refused here could not have worked, and what may or may not
work is a note. `shoal doctor` makes the same checks, and more.
"""

import errno
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from shoal.checks.findings import Finding, ok, problem, refusal_of
from shoal.checks.optional import refuse_no_video, refuse_no_wandb
from shoal.checks.resources import (
    SHARED_MEMORY,
    check_disk,
    check_driver,
    check_gpu,
    check_kernel_cache,
    check_memory,
    check_run_files,
    check_shared_memory,
    check_temporary,
)
from shoal.errors import MachineBusyError
from shoal.machine import gpu_health
from shoal.machine.gpus import Gpu, VisibleGpus
from shoal.machine.host import why_unresolved
from shoal.machine.network import LOOPBACK, addresses_by_interface, answers
from shoal.plan.launch import Plan
from shoal.plan.ranks import SRUN_SIGN, TORCHRUN_SIGN, launcher_of, read_task
from shoal.plan.rundir import experiment_dir
from shoal.plan.sizes import FLOAT, checkpoints_to_come, experience_bytes_per_env
from shoal.plan.training import TrainPlan
from shoal.timing import wait_for

FREED_S = 30.0
"""How long processes that were killed may take to free their memory [s]."""


def preflight(plan: TrainPlan, environ: Mapping[str, str], gpus: VisibleGpus) -> tuple[str, ...]:
    """Check that the machine can carry out a plan; return notes. With `--dry-run` no process is started for it."""
    if plan.config.logger == "wandb":
        refuse_no_wandb(environ, writes=plan.leads and not plan.config.dry_run)
    if plan.config.video and not plan.config.dry_run and not plan.is_remote and plan.leads:
        refuse_no_video(plan.devices[0], environ)
    return notes_of(findings_of(plan, environ, gpus))


def notes_of(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the notes among findings.

    Raises:
        UsageError: One is a problem.
        MachineBusyError: All problems are those that may pass by.
    """
    found = tuple(findings)
    refusal = refusal_of(found)
    if refusal is not None:
        raise refusal
    return tuple(finding.sentence for finding in found if finding.level == "note")


def wait_for_memory(plan: TrainPlan, gpus: VisibleGpus, refuse: Callable[[], None], limit_s: float = FREED_S) -> None:
    """Wait while other processes hold the memory that a plan needs here, as a worker that was killed does for a while.

    `refuse` is called at each look, and may raise.

    Raises:
        MachineBusyError: They hold it still after `limit_s` seconds.
    """

    def is_over() -> bool:
        refuse()
        return not isinstance(refusal_of(memory_findings(plan, gpus)), MachineBusyError)

    if not wait_for(is_over, limit_s):
        notes_of(memory_findings(plan, gpus))


def findings_of(plan: TrainPlan, environ: Mapping[str, str], gpus: VisibleGpus) -> Iterator[Finding]:
    """Check everything that a training needs of this machine, cheapest first."""
    yield from check_run_files(plan.continued)
    yield from launch_findings(plan, environ)
    where = plan.continued.path if plan.continued else experiment_dir(plan.config.log_root, plan.spec.experiment)
    checkpoint, exactly = _checkpoint_size(plan)
    yield check_disk(where, checkpoint, checkpoints_to_come(plan), exactly=exactly)
    if plan.devices[0] != "cpu" and not plan.is_remote:
        yield from check_driver()
    if plan.backend == "nccl" and not plan.is_remote:
        yield check_shared_memory(len(plan.devices))
    yield from memory_findings(plan, gpus)


def memory_findings(plan: TrainPlan, gpus: VisibleGpus) -> Iterator[Finding]:
    """Check this machine's memory, and the state and memory of its GPUs that a training uses."""
    if plan.is_remote:
        return  # The workers are not on this machine.
    experience = plan.config.num_envs * experience_bytes_per_env(plan) if plan.devices[0] == "cpu" else 0
    yield check_memory(len(plan.devices), experience)
    own = plan.devices if plan.rank is None else (plan.devices[plan.rank.local_rank],)
    for state in gpu_health.read_gpu_states(wanted_gpus(own, gpus)):
        found = check_gpu(state, Counter(own)[f"cuda:{state.index}"], plan)
        # It may be another one than the worker's.
        yield from map(Finding.as_note, found) if gpus.order_is_uncertain else found


def launch_findings(plan: Plan, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check what the workers of any launch need of this machine, to start and to reach each other."""
    yield check_kernel_cache(environ)
    yield check_temporary(environ)
    if plan.rank is not None:
        yield _check_name(read_task(environ).host if launcher_of(environ) == "srun" else environ["MASTER_ADDR"])
        yield from _check_launcher(environ)
    if plan.launch_mode == "spawned":
        yield from _check_semaphores()
    if len(plan.devices) > 1 and not plan.is_remote:
        yield check_loopback()


def wanted_gpus(devices: Sequence[str], gpus: VisibleGpus) -> list[Gpu]:
    """Return the visible GPUs that are among `devices`."""
    return [gpu for gpu in gpus if f"cuda:{gpu.index}" in devices]


def _checkpoint_size(plan: TrainPlan) -> tuple[int, bool]:
    """Return the size of a checkpoint, and whether it is known: a resumed run has one already."""
    if plan.continued is not None and plan.start is not None:
        try:
            files = [path for path in Path(plan.start.model).parent.iterdir() if path.is_file()]
            return sum(path.stat().st_size for path in files), True
        except OSError:
            pass
    return FLOAT * plan.config.agent.checkpoint_floats, False


# The launch -----------------------------------------------------------------------------------------------------------


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
            transient=error.errno == errno.ENOSPC,
        )
