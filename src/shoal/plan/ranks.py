"""This process's place among the ranks, when a launcher has given it one, and its share of the cores.

Launchers speak through environment variables; every way in which those can be wrong has its own sentence.
Which device a rank uses is `shoal.plan.devices`, and meeting the other ranks is the business of the doors.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.plan.cgroups import OWN_GROUPS, ROOT, control_groups, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What launchers tell a rank under names that libraries read. Left over, they make a lone process look like
one."""

_TORCHRUN = "TORCHELASTIC_RUN_ID"  # torchrun sets it for each rank; nothing else does
_RESTART = (
    "start it again with `python -m torch.distributed.run`, which sets this variable itself, "
    f"or unset {_TORCHRUN} to train without torchrun."
)
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One worker's place in the job."""

    rank: int
    """Place among all workers, from 0."""
    local_rank: int
    """Place among the workers of this machine, from 0."""
    world_size: int
    """Workers of the whole job."""
    local_world_size: int
    """Workers on this machine."""

    def __post_init__(self) -> None:
        in_order = 0 <= self.local_rank < self.local_world_size <= self.world_size
        if not (in_order and 0 <= self.rank < self.world_size):
            message = f"No worker can stand there: {self}"
            raise ValueError(message)


def is_started_by_torchrun(environ: Mapping[str, str]) -> bool:
    """Whether torchrun started this process."""
    return _TORCHRUN in environ


def joined_rank(environ: Mapping[str, str] = os.environ) -> Rank | None:
    """Return the place that torchrun has given to this process. None when torchrun did not start it.

    Raises:
        UsageError: torchrun's variables are incomplete or contradict each other.
    """
    if not is_started_by_torchrun(environ):
        return None
    world_size = _size(environ, "WORLD_SIZE")
    local_world_size = _size(environ, "LOCAL_WORLD_SIZE")
    if local_world_size > world_size:
        _refuse(f"LOCAL_WORLD_SIZE is {local_world_size}, but WORLD_SIZE, of all machines, is {world_size}")
    rank = _below(environ, "RANK", "WORLD_SIZE", world_size)
    local_rank = _below(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE", local_world_size)
    _text(environ, "MASTER_ADDR")
    port = _integer(environ, "MASTER_PORT")
    if not 0 < port <= _MAX_PORT:
        _refuse(f"MASTER_PORT is {port}, but a port is a number from 1 to {_MAX_PORT}")
    return Rank(rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=local_world_size)


def _text(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "").strip()
    if not text:
        _refuse(f"torchrun started this process ({_TORCHRUN} is set), but {name} is not set")
    return text


def _integer(environ: Mapping[str, str], name: str) -> int:
    text = _text(environ, name)
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        _refuse(f"{name} is '{text}', but torchrun sets it to a whole number")
    return int(text)


def _size(environ: Mapping[str, str], name: str) -> int:
    size = _integer(environ, name)
    if size < 1:
        _refuse(f"{name} is {size}, but this process itself is one worker")
    return size


def _below(environ: Mapping[str, str], name: str, size_name: str, size: int) -> int:
    place = _integer(environ, name)
    if place < 0:
        _refuse(f"{name} is {place}, but ranks count from 0")
    if place >= size:
        _refuse(f"{name} is {place}, but {size_name} is {size}, so the highest is {size - 1}")
    return place


def _refuse(what_is_true: str) -> None:
    message = f"{what_is_true}: {_RESTART}"
    raise UsageError(message)


def stale_rank_variables(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables that make this process look like a rank although no launcher started it.

    They have to be kept from torch and rsl_rl, which would wait for ranks that do not exist.
    """
    if is_started_by_torchrun(environ):
        return ()
    of_torchrun = sorted(name for name in environ if name.startswith("TORCHELASTIC_"))
    return (*(name for name in RANK_VARIABLES if name in environ), *of_torchrun)


def stale_rank_note(environ: Mapping[str, str] = os.environ) -> str | None:
    """Say which variables of a launcher are left over and ignored. None when there are none."""
    names = stale_rank_variables(environ)
    if not names:
        return None
    verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
    return f"{', '.join(names)} {verb} set, but no launcher started this process: ignoring {them}."


def usable_threads(rank: Rank, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many CPU threads this rank should use on this machine."""
    return cpu_threads(rank.local_world_size, environ, usable_cores())


def cpu_threads(local_world_size: int, environ: Mapping[str, str], cores: int) -> int:
    """Return one rank's fair share of a machine's cores, or what the user has set instead.

    Args:
        local_world_size: Workers on this machine.
        environ: Environment variables. `OMP_NUM_THREADS` wins, but not the 1 that torchrun writes into it for
            more than one worker: that one is nobody's wish.
        cores: Cores that this machine lets us use.
    """
    # OpenMP takes a list, one number for each level of nesting; the first is the one that counts here.
    asked = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    from_torchrun = asked == "1" and _TORCHRUN in environ and local_world_size > 1
    if re.fullmatch(r"0*[1-9][0-9]{0,8}", asked) and not from_torchrun:
        return int(asked)
    return max(1, cores // local_world_size)


def usable_cores() -> int:
    """Return how many cores this process may use: no more than its affinity mask and its container allow."""
    return share_of_quota(_schedulable_cores(), cpu_quota())


def _schedulable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS has no affinity masks


def share_of_quota(schedulable: int, quota: float | None) -> int:
    """Return the whole cores under a container's limit.

    A part of a core is given up: a thread beyond the quota makes the kernel stop all of them for a while.

    Args:
        schedulable: Cores of the affinity mask.
        quota: Cores that the container may use, None without a limit.
    """
    return schedulable if quota is None else max(1, min(schedulable, int(quota)))


def cpu_quota(cgroup_root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> float | None:
    """Return how many cores' time the control groups of this process allow. None when they set no limit.

    A limit holds for all groups below it, so the tightest of the groups from ours up to the root counts.

    Args:
        cgroup_root: Where control groups are mounted.
        own_groups: The file that says in which groups this process is.
    """
    groups = control_groups("cpu", cgroup_root, own_groups)
    limits = [limit for group in groups if (limit := _limit_of(group)) is not None]
    return min(limits, default=None)


def _limit_of(group: Path) -> float | None:
    quota, _, period = read_text(group / "cpu.max").partition(" ")  # version 2: "<quota>|max <period>"
    if not quota:
        quota, period = read_text(group / "cpu.cfs_quota_us"), read_text(group / "cpu.cfs_period_us")
    try:
        limit = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None
    return limit if limit > 0 else None  # version 1 writes -1 for no limit
