"""This process's place in a step of SLURM's `srun`, one task a worker, and where the tasks of that step meet.

SLURM may deal its tasks out to the machines in turn, so the ranks of one machine need not follow each other.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.plan.launchers import Told, tasks_name
from shoal.plan.slurm import expand_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST_PORT, _PORTS = 20_000, 12_000
"""Below those that Linux gives to programs that ask for none."""
_LOOPBACK = "127.0.0.1"
_TIMES = re.compile(r"(?P<tasks>[0-9]{1,6})(?:\(x(?P<machines>[0-9]{1,6})\))?")
_HOSTS = "SLURM_STEP_NODELIST"
_TASKS = "SLURM_STEP_TASKS_PER_NODE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a step."""

    rank: int
    """Place among all tasks of the step, from 0."""
    local_rank: int
    """Place among those of this machine, from 0."""
    world_size: int
    """Tasks of the step."""
    local_world_size: int
    """Tasks of the step on this machine."""
    host: str
    """Where the tasks meet: the machine of task 0."""
    port: int
    """The port there, which no other step that runs now is likely to have."""
    attempt: str
    """Unlike that of any other step, and of the same one before its job was requeued."""


def read_task(environ: Mapping[str, str]) -> Task:
    """Read what srun has told this process.

    Raises:
        UsageError: It is incomplete or contradicts itself.
    """
    told = Told("srun", environ)
    name = tasks_name(environ)
    world_size = told.size(name)
    rank = told.below("SLURM_PROCID", name, world_size)
    counts = _tasks_of_machines(told)
    if sum(counts) != world_size:
        what = f"{_TASKS} is '{told.text(_TASKS)}', which makes {sum(counts)} tasks, but {name} is {world_size}"
        raise told.error(what)
    hosts = _hosts(told)
    if len(hosts) != len(counts):
        what = f"{_HOSTS} names {len(hosts)} machines, but {_TASKS} counts the tasks of {len(counts)}"
        raise told.error(what)
    local_world_size = counts[told.below("SLURM_NODEID", f"the number of machines in {_TASKS}", len(counts))]
    local_rank = told.below("SLURM_LOCALID", "the number of tasks on this machine", local_world_size)
    job, step = told.integer("SLURM_JOB_ID"), told.integer("SLURM_STEP_ID")
    restarts = environ.get("SLURM_RESTART_COUNT", "").strip() or "0"
    # One machine needs no name that resolves, and no port that others see.
    home = _LOOPBACK if local_world_size == world_size else hosts[0]
    return Task(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        host=environ.get("MASTER_ADDR", "").strip() or home,
        port=told.port("MASTER_PORT") if environ.get("MASTER_PORT", "").strip() else _port(job, step),
        attempt=f"{job}.{step}/{restarts}",
    )


def has_own_gpus(environ: Mapping[str, str], visible: int, local_world_size: int) -> bool:
    """Whether SLURM shows each task of this machine other GPUs, all of which count from 0.

    It does where it binds GPUs to tasks: then this task sees fewer of them than the step has here.

    Args:
        environ: Environment variables of a task of srun's.
        visible: How many GPUs this task sees.
        local_world_size: Tasks on this machine.
    """
    if not visible or local_world_size == 1:
        return False
    each = re.search(r"[0-9]{1,4}$", environ.get("SLURM_GPUS_PER_TASK", "").strip())  # "2", or "h200:2"
    of_the_step = environ.get("SLURM_STEP_GPUS", "").split(",")
    here = int(each[0]) * local_world_size if each else len(of_the_step) if all(of_the_step) else 0
    return visible * local_world_size <= here


def _tasks_of_machines(told: Told) -> list[int]:
    """Return the number of tasks on each machine, from the likes of ``2(x3),1``."""
    text = told.text(_TASKS)
    matches = [_TIMES.fullmatch(part.strip()) for part in text.split(",")]
    counts = [[int(match["tasks"])] * int(match["machines"] or 1) for match in matches if match is not None]
    if None in matches or not all(map(all, counts)) or not all(counts):
        what = f"{_TASKS} is '{text}', which is no list of numbers such as 2(x3),1"
        raise told.error(what)
    return list(itertools.chain.from_iterable(counts))


def _hosts(told: Told) -> tuple[str, ...]:
    text = told.text(_HOSTS)
    try:
        return expand_hosts(text)
    except UsageError as error:
        what = f"{_HOSTS} is '{text}', which is no list of machines such as a[01-03,7],b"
        raise told.error(what) from error


def _port(job: int, step: int) -> int:
    """Return a port that all tasks of a step know. Jobs, and the steps of one, follow each other."""
    return _FIRST_PORT + (job * 16 + step) % _PORTS
