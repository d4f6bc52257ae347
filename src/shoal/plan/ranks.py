"""This process's place among the ranks, when a launcher has given it one, and its share of the cores.

Launchers speak through environment variables, which `shoal.plan.launchers` reads.
Which device a rank uses is `shoal.plan.devices`, and meeting the other ranks is the business of the doors.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.machine.cgroups import OWN_GROUPS, ROOT, control_groups, read_text
from shoal.plan.launchers import Told, launcher_of
from shoal.plan.srun import read_task

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

_COUNT = r"0*[1-9][0-9]{0,8}"
_KEPT_UNDER_SRUN = ("MASTER_ADDR", "MASTER_PORT")
"""What the user may tell the tasks of a step: where they meet."""


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


def joined_rank(environ: Mapping[str, str] = os.environ) -> Rank | None:
    """Return the place that torchrun or srun has given to this process. None when neither started it as one of many.

    Raises:
        UsageError: The launcher's variables are incomplete or contradict each other.
    """
    match launcher_of(environ):
        case "torchrun":
            return _rank_of_torchrun(Told("torchrun", environ))
        case "srun":
            task = read_task(environ)
            return Rank(
                rank=task.rank,
                local_rank=task.local_rank,
                world_size=task.world_size,
                local_world_size=task.local_world_size,
            )
        case None:
            return None


def _rank_of_torchrun(told: Told) -> Rank:
    world_size = told.size("WORLD_SIZE")
    local_world_size = told.size("LOCAL_WORLD_SIZE")
    if local_world_size > world_size:
        what = f"LOCAL_WORLD_SIZE is {local_world_size}, but WORLD_SIZE, of all machines, is {world_size}"
        raise told.error(what)
    rank = told.below("RANK", "WORLD_SIZE", world_size)
    local_rank = told.below("LOCAL_RANK", "LOCAL_WORLD_SIZE", local_world_size)
    told.text("MASTER_ADDR")
    told.port("MASTER_PORT")
    return Rank(rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=local_world_size)


def meeting_host(environ: Mapping[str, str]) -> str | None:
    """Return the name or address at which a launcher lets its ranks meet. None where none started this process."""
    launcher = launcher_of(environ)
    if launcher is None:
        return None
    return environ["MASTER_ADDR"] if launcher == "torchrun" else read_task(environ).host


def stale_rank_variables(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables that make this process look like another rank than the one that it is, if it is one.

    They have to be kept from torch and rsl_rl, which would wait for ranks that do not exist.
    """
    launcher = launcher_of(environ)
    if launcher == "torchrun":
        return ()
    kept = _KEPT_UNDER_SRUN if launcher == "srun" else ()
    of_torchrun = sorted(name for name in environ if name.startswith("TORCHELASTIC_"))
    return (*(name for name in RANK_VARIABLES if name in environ and name not in kept), *of_torchrun)


def stale_rank_note(environ: Mapping[str, str] = os.environ) -> str | None:
    """Say which variables of a launcher are left over and ignored. None when there are none."""
    names = stale_rank_variables(environ)
    if not names:
        return None
    verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
    who = launcher_of(environ) or "no launcher"
    return f"{', '.join(names)} {verb} set, but {who} started this process: ignoring {them}."


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
    launcher = launcher_of(environ)
    from_torchrun = asked == "1" and launcher == "torchrun" and local_world_size > 1
    if re.fullmatch(_COUNT, asked) and not from_torchrun:
        return int(asked)
    for_each_task = environ.get("SLURM_CPUS_PER_TASK", "").strip()
    if launcher == "srun" and re.fullmatch(_COUNT, for_each_task):
        return min(int(for_each_task), cores)  # SLURM has dealt the cores out, and shows each task its own.
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
