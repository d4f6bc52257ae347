"""The rank of this process in a step of SLURM's `srun` with a task for each worker, and the rendezvous of that step.

SLURM may distribute tasks cyclically, so the ranks of one machine need not be consecutive.
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.errors import UsageError
from shoal.plan.launchers import LauncherVariables, Rank, tasks_name
from shoal.plan.slurm import expand_hosts

_FIRST_PORT, _PORTS = 20_000, 12_000
"""Ports below Linux's ephemeral range."""
_LOOPBACK = "127.0.0.1"
_TIMES = re.compile(r"(?P<tasks>[0-9]{1,6})(?:\(x(?P<machines>[0-9]{1,6})\))?")
_HOSTS = "SLURM_STEP_NODELIST"
_TASKS = "SLURM_STEP_TASKS_PER_NODE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a step."""

    rank: Rank
    host: str
    """Host of the rendezvous: the machine of task 0."""
    port: int
    """Port of the rendezvous, which concurrent steps are unlikely to share."""
    attempt: str
    """Name of the step, different after its job was requeued."""


def read_task(environ: Mapping[str, str]) -> Task:
    """Return the task that srun started as this process.

    Raises:
        UsageError: Its variables are incomplete or contradict each other.
    """
    variables = LauncherVariables("srun", environ)
    name = tasks_name(environ)
    world_size = variables.size(name)
    rank = variables.below("SLURM_PROCID", name, world_size)
    counts = _tasks_of_machines(variables)
    if sum(counts) != world_size:
        what = f"{_TASKS} is '{variables.text(_TASKS)}', which makes {sum(counts)} tasks, but {name} is {world_size}"
        raise variables.error(what)
    hosts = _hosts(variables)
    if len(hosts) != len(counts):
        raise variables.error(f"{_HOSTS} names {len(hosts)} machines, but {_TASKS} counts the tasks of {len(counts)}")
    local_world_size = counts[variables.below("SLURM_NODEID", f"the number of machines in {_TASKS}", len(counts))]
    local_rank = variables.below("SLURM_LOCALID", "the number of tasks on this machine", local_world_size)
    job, step = variables.integer("SLURM_JOB_ID"), variables.integer("SLURM_STEP_ID")
    restarts = environ.get("SLURM_RESTART_COUNT", "").strip() or "0"
    # One machine needs no name that resolves, and no port on the network.
    host = _LOOPBACK if local_world_size == world_size else hosts[0]
    return Task(
        rank=Rank(rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=local_world_size),
        host=environ.get("MASTER_ADDR", "").strip() or host,
        port=variables.port("MASTER_PORT") if environ.get("MASTER_PORT", "").strip() else _port(job, step),
        attempt=f"{job}.{step}/{restarts}",
    )


def has_own_gpus(environ: Mapping[str, str], visible: int, local_world_size: int) -> bool:
    """Whether SLURM binds GPUs to tasks, so that each task sees its own, numbered from 0.

    Then this task sees fewer GPUs than the step has on this machine.

    Args:
        environ: Environment variables of a task.
        visible: Number of GPUs that this task sees.
        local_world_size: Tasks on this machine.
    """
    if not visible or local_world_size == 1:
        return False
    each = re.search(r"[0-9]{1,4}$", environ.get("SLURM_GPUS_PER_TASK", "").strip())  # "2", or "h200:2"
    of_the_step = environ.get("SLURM_STEP_GPUS", "").split(",")
    here = int(each[0]) * local_world_size if each else len(of_the_step) if all(of_the_step) else 0
    return visible * local_world_size <= here


def _tasks_of_machines(variables: LauncherVariables) -> list[int]:
    """Return the number of tasks on each machine, from a list such as ``2(x3),1``."""
    text = variables.text(_TASKS)
    matches = [_TIMES.fullmatch(part.strip()) for part in text.split(",")]
    counts = [[int(match["tasks"])] * int(match["machines"] or 1) for match in matches if match is not None]
    if None in matches or not all(map(all, counts)) or not all(counts):
        raise variables.error(f"{_TASKS} is '{text}', which is no list of numbers such as 2(x3),1")
    return list(itertools.chain.from_iterable(counts))


def _hosts(variables: LauncherVariables) -> tuple[str, ...]:
    text = variables.text(_HOSTS)
    try:
        return expand_hosts(text)
    except UsageError as error:
        raise variables.error(f"{_HOSTS} is '{text}', which is no list of machines such as a[01-03,7],b") from error


def _port(job: int, step: int) -> int:
    """Return a port that all tasks of a step compute alike. Jobs and steps have consecutive numbers."""
    return _FIRST_PORT + (job * 16 + step) % _PORTS
