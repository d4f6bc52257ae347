"""SLURM's environment variables: the machines of an allocation, and a task of `srun` with a task for each worker."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.config.checks import HIGHEST_PORT
from shoal.errors import UsageError
from shoal.plan.launchers import LARGEST, SRUN_SIGN, LauncherVariables, Rank, tasks_name

_MOST_HOSTS = 100_000
_SPAN = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_ENTRY = re.compile(rf"(?:[^\[\]]|\[{_SPAN}(?:,{_SPAN})*\])+")
_COMMA = re.compile(r",(?![^\[\]]*\])")
"""A comma outside brackets."""
_PART = re.compile(r"\[(.*?)\]|([^\[]+)")
_FIRST_PORT, _PORTS = 20_000, 12_000
"""Ports below Linux's ephemeral range."""
_LOOPBACK = "127.0.0.1"
_TIMES = re.compile(r"(?P<tasks>[0-9]{1,6})(?:\(x(?P<machines>[0-9]{1,6})\))?")
_HOSTS = "SLURM_STEP_NODELIST"
_TASKS = "SLURM_STEP_TASKS_PER_NODE"


def allocated_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the machines of this allocation, in SLURM's order."""
    word = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    if not word.strip():
        raise UsageError(
            "--hosts slurm was asked for, but SLURM_JOB_NODELIST is not set, so this process is in no allocation: run "
            "it from within sbatch or salloc, or name the machines."
        )
    hosts = expand_hosts(word)
    if not hosts:
        raise UsageError(
            f"SLURM_JOB_NODELIST is '{word}', which is no list of machines such as a[01-03,7],b: name them in --hosts."
        )
    return hosts


def expand_hosts(word: str) -> tuple[str, ...]:
    """Return the host names of a list such as ``a[01-03,7],b``; none if it cannot be parsed."""
    names: list[str] = []
    for entry in _COMMA.split(word.strip()):
        if not _ENTRY.fullmatch(entry):
            return ()
        choices = [_numbers(spans) if spans else [text] for spans, text in _PART.findall(entry)]
        if not all(choices):
            return ()
        names.extend(map("".join, itertools.islice(itertools.product(*choices), _MOST_HOSTS)))
    return tuple(dict.fromkeys(names))


def _numbers(spans: str) -> list[str]:
    """Return the numbers of ``01-03,7``, padded to the width of the first of each span; none of an invalid span."""
    numbers: list[str] = []
    for span in spans.split(","):
        first, _, last = span.partition("-")
        count = int(last or first) - int(first) + 1
        if not 0 < count <= _MOST_HOSTS:
            return []
        numbers.extend(f"{int(first) + number:0{len(first)}d}" for number in range(count))
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a step. SLURM may distribute tasks cyclically: the ranks of one machine need not be consecutive."""

    rank: Rank
    host: str
    """Host of the rendezvous: the machine of task 0."""
    port: int
    """Port of the rendezvous, which concurrent steps are unlikely to share."""
    attempt: str
    """Name of the step, different after its job was requeued."""


def read_task(environ: Mapping[str, str]) -> Task:
    """Return the task that srun started as this process."""
    variables = LauncherVariables("srun", environ)
    name = tasks_name(environ)
    world_size = variables.number(name, 1, LARGEST)
    rank = variables.number("SLURM_PROCID", 0, world_size - 1, f", since {name} is {world_size}")
    counts = _tasks_of_machines(variables)
    if sum(counts) != world_size:
        what = f"{_TASKS} is '{variables.text(_TASKS)}', which makes {sum(counts)} tasks, but {name} is {world_size}"
        raise variables.error(what)
    text = variables.text(_HOSTS)
    hosts = expand_hosts(text)
    if not hosts:
        raise variables.error(f"{_HOSTS} is '{text}', which is no list of machines such as a[01-03,7],b")
    if len(hosts) != len(counts):
        raise variables.error(f"{_HOSTS} names {len(hosts)} machines, but {_TASKS} counts the tasks of {len(counts)}")
    node = variables.number("SLURM_NODEID", 0, len(counts) - 1, f", since {_TASKS} counts {len(counts)} machines")
    here = counts[node]
    local_rank = variables.number("SLURM_LOCALID", 0, here - 1, f", since this machine has {here} tasks")
    job, step = (variables.number(each, 0, LARGEST) for each in ("SLURM_JOB_ID", SRUN_SIGN))
    # All tasks of a step compute the same port. Jobs and steps have consecutive numbers.
    port = _FIRST_PORT + (job * 16 + step) % _PORTS
    if environ.get("MASTER_PORT", "").strip():
        port = variables.number("MASTER_PORT", 1, HIGHEST_PORT)
    # One machine needs no name that resolves, and no port on the network.
    host = _LOOPBACK if here == world_size else hosts[0]
    return Task(
        rank=Rank(rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=here),
        host=environ.get("MASTER_ADDR", "").strip() or host,
        port=port,
        attempt=f"{job}.{step}/{environ.get('SLURM_RESTART_COUNT', '').strip() or '0'}",
    )


def _tasks_of_machines(variables: LauncherVariables) -> list[int]:
    """Return the number of tasks on each machine, from a list such as ``2(x3),1``."""
    text = variables.text(_TASKS)
    matches = [_TIMES.fullmatch(part.strip()) for part in text.split(",")]
    counts = [[int(match["tasks"])] * int(match["machines"] or 1) for match in matches if match is not None]
    if None in matches or not all(map(all, counts)) or not all(counts):
        raise variables.error(f"{_TASKS} is '{text}', which is no list of numbers such as 2(x3),1")
    return list(itertools.chain.from_iterable(counts))


def has_own_gpus(environ: Mapping[str, str], visible: int, local_world_size: int) -> bool:
    """Whether SLURM binds GPUs to tasks, so that each task sees its own, numbered from 0.

    Then this task sees fewer GPUs, `visible`, than the step has on this machine, with `local_world_size` tasks.
    """
    if not visible or local_world_size == 1:
        return False
    each = re.search(r"[0-9]{1,4}$", environ.get("SLURM_GPUS_PER_TASK", "").strip())  # "2", or "h200:2"
    of_the_step = environ.get("SLURM_STEP_GPUS", "").split(",")
    here = int(each[0]) * local_world_size if each else len(of_the_step) if all(of_the_step) else 0
    return visible * local_world_size <= here
