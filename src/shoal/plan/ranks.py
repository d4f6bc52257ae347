"""What launchers tell this process: its rank and rendezvous, by torchrun or srun, and the nodes of a SLURM allocation.

An invalid variable raises a `UsageError`. Those left over from a launcher that did not start this process are ignored.
"""

import itertools
import os
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.config.checks import HIGHEST_PORT
from shoal.errors import UsageError
from shoal.machine.host import usable_cores

Launcher = Literal["torchrun", "srun"]

TORCHRUN_SIGN = "TORCHELASTIC_RUN_ID"
"""torchrun sets it for each rank; nothing else does."""
SRUN_SIGN = "SLURM_STEP_ID"
"""Number of a SLURM step. A batch script has none; steps that srun did not start have a word, or ten digits."""

LARGEST = 999_999_999
"""Bound of numbers that have no other."""
_COMMANDS: dict[Launcher, str] = {"torchrun": "python -m torch.distributed.run", "srun": "srun"}
_SIGNS: dict[Launcher, str] = {"torchrun": TORCHRUN_SIGN, "srun": SRUN_SIGN}

_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", *_RENDEZVOUS)
"""Variables by which launchers pass a rank its place, and which libraries read. Left over, they make a lone process
look like a rank."""

_COUNT = re.compile(r"0*[1-9][0-9]{0,8}")

_MOST_HOSTS = 100_000
_SPAN = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_ENTRY = re.compile(rf"(?:[^\[\]]|\[{_SPAN}(?:,{_SPAN})*\])+")
_COMMA = re.compile(r",(?![^\[\]]*\])")
"""A comma outside brackets."""
_PART = re.compile(r"\[(.*?)\]|([^\[]+)")
_FIRST_PORT, _PORTS = 20_000, 12_000
"""Ports below Linux's ephemeral range."""
_LOOPBACK = "127.0.0.1"
_TIMES = re.compile(r"(?P<tasks>[0-9]{1,6})(?:\(x(?P<nodes>[0-9]{1,6})\))?")
_HOSTS = "SLURM_STEP_NODELIST"
_TASKS = "SLURM_STEP_TASKS_PER_NODE"


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that started this process as one of several workers.

    torchrun may have a single worker, and may itself be a task of a step on each node. A step of one task counts
    as no launcher.
    """
    if TORCHRUN_SIGN in environ:
        return "torchrun"
    if not re.fullmatch(r"[0-9]{1,9}", environ.get(SRUN_SIGN, "").strip()):
        return None
    tasks = environ.get(tasks_name(environ), "").strip()
    return None if re.fullmatch(r"\+?0*1", tasks) else "srun"


def agent_dir(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the directory that torchrun's agent on this node made for its attempts; None where there is none."""
    error_file = Path(environ.get("TORCHELASTIC_ERROR_FILE", ""))  # <directory>/attempt_<n>/<local rank>/error.json
    is_of_attempt = error_file.parent.parent.name.startswith("attempt_")
    return error_file.parents[2] if is_of_attempt and launcher_of(environ) == "torchrun" else None


def tasks_name(environ: Mapping[str, str]) -> str:
    """Return the variable with the number of tasks of this step. Older releases of SLURM set the job's only."""
    return "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The rank of one worker, as torch numbers them, from 0."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    def __post_init__(self) -> None:
        in_order = 0 <= self.local_rank < self.local_world_size <= self.world_size
        if not (in_order and 0 <= self.rank < self.world_size):
            raise ValueError(f"Inconsistent rank: {self}")


@dataclass(frozen=True, slots=True)
class LauncherVariables:
    """The environment variables of a launcher. An invalid one raises a `UsageError`."""

    launcher: Launcher
    environ: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return the value of a variable that must be set."""
        text = self.environ.get(name, "").strip()
        if not text:
            sign = _SIGNS[self.launcher]
            raise self.error(f"{self.launcher} started this process ({sign} is set), but {name} is not set")
        return text

    def number(self, name: str, least: int, most: int, why: str = "") -> int:
        """Return a whole number from `least` to `most`, which a second clause may explain."""
        text = self.text(name)
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise self.error(f"{name} is '{text}', but must be a whole number from {least} to {most}{why}")
        return int(text)

    def error(self, what_is_true: str) -> UsageError:
        """Return an error, with the remedy for this launcher."""
        return UsageError(
            f"{what_is_true}: start it again with `{_COMMANDS[self.launcher]}`, which sets this variable itself, "
            f"or unset {_SIGNS[self.launcher]} to train without {self.launcher}."
        )


def joined_rank(environ: Mapping[str, str] = os.environ) -> Rank | None:
    """Return the rank that torchrun or srun gave this process. None when neither started it as one of several."""
    launcher = launcher_of(environ)
    if launcher is None:
        return None
    if launcher == "srun":
        return read_task(environ).rank
    variables = LauncherVariables("torchrun", environ)
    world_size = variables.number("WORLD_SIZE", 1, LARGEST)
    why = f", since WORLD_SIZE is {world_size}"
    local_world_size = variables.number("LOCAL_WORLD_SIZE", 1, world_size, why)
    rank = variables.number("RANK", 0, world_size - 1, why)
    why = f", since LOCAL_WORLD_SIZE is {local_world_size}"
    local_rank = variables.number("LOCAL_RANK", 0, local_world_size - 1, why)
    variables.text("MASTER_ADDR")
    variables.number("MASTER_PORT", 1, HIGHEST_PORT)
    return Rank(rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=local_world_size)


def stale_rank_variables(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables left over from a launcher that did not start this process.

    torch and rsl_rl must not see them: they would wait for ranks that do not exist.
    """
    launcher = launcher_of(environ)
    if launcher == "torchrun":
        return ()
    kept = _RENDEZVOUS if launcher == "srun" else ()  # By these the user may choose the rendezvous of a step.
    of_torchrun = sorted(name for name in environ if name.startswith("TORCHELASTIC_"))
    return (*(name for name in RANK_VARIABLES if name in environ and name not in kept), *of_torchrun)


def stale_rank_note(environ: Mapping[str, str]) -> str | None:
    """Return the note about variables left over from a launcher, which are ignored. None without any."""
    names = stale_rank_variables(environ)
    if not names:
        return None
    verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
    launcher = launcher_of(environ) or "no launcher"
    return f"{', '.join(names)} {verb} set, but {launcher} started this process: ignoring {them}."


@contextmanager
def without(names: Iterable[str]) -> Generator[None]:
    """Remove environment variables during the body: libraries would believe what a launcher left over."""
    hidden = {name: os.environ.pop(name) for name in tuple(names) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def usable_threads(rank: Rank, environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of CPU threads of a rank: its equal share of the machine's cores, or what the user has set.

    `OMP_NUM_THREADS` wins, except for the 1 that torchrun sets for several workers.
    """
    # OpenMP takes a list, one number for each level of nesting; the first counts here.
    wanted = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    launcher = launcher_of(environ)
    from_torchrun = wanted == "1" and launcher == "torchrun" and rank.local_world_size > 1
    if _COUNT.fullmatch(wanted) and not from_torchrun:
        return int(wanted)
    for_each_task = environ.get("SLURM_CPUS_PER_TASK", "").strip()
    if launcher == "srun" and _COUNT.fullmatch(for_each_task):
        return min(int(for_each_task), usable_cores())  # SLURM shows each task its own cores.
    return max(1, usable_cores() // rank.local_world_size)


def allocated_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the machines of this allocation, in SLURM's order."""
    word = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    if not word.strip():
        raise UsageError(
            "--hosts slurm was asked for, but SLURM_JOB_NODELIST is not set, so this process is in no allocation: run "
            "it from within sbatch or salloc, or name the nodes."
        )
    hosts = expand_hosts(word)
    if not hosts:
        raise UsageError(
            f"SLURM_JOB_NODELIST is '{word}', which is no list of nodes such as a[01-03,7],b: name them in --hosts."
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
        raise variables.error(f"{_HOSTS} is '{text}', which is no list of nodes such as a[01-03,7],b")
    if len(hosts) != len(counts):
        raise variables.error(f"{_HOSTS} names {len(hosts)} nodes, but {_TASKS} counts the tasks of {len(counts)}")
    node = variables.number("SLURM_NODEID", 0, len(counts) - 1, f", since {_TASKS} counts {len(counts)} nodes")
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
    """Return the number of tasks on each node, from a list such as ``2(x3),1``."""
    text = variables.text(_TASKS)
    matches = [_TIMES.fullmatch(part.strip()) for part in text.split(",")]
    counts = [[int(match["tasks"])] * int(match["nodes"] or 1) for match in matches if match is not None]
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
