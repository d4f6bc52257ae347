"""The rank of this process, if torchrun or srun started it, variables left over from a launcher, and CPU threads."""

import os
import re
from collections.abc import Mapping

from shoal.machine.host import usable_cores
from shoal.plan.launchers import LauncherVariables, Rank, launcher_of
from shoal.plan.srun import read_task

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
"""Variables by which launchers pass a rank its place, and which libraries read. Left over, they make a lone process
look like a rank."""

_COUNT = r"0*[1-9][0-9]{0,8}"
_KEPT_UNDER_SRUN = ("MASTER_ADDR", "MASTER_PORT")
"""Variables by which the user may choose the rendezvous of a step."""


def joined_rank(environ: Mapping[str, str] = os.environ) -> Rank | None:
    """Return the rank that torchrun or srun gave this process. None when neither started it as one of several.

    Raises:
        UsageError: The launcher's variables are incomplete or contradict each other.
    """
    match launcher_of(environ):
        case "torchrun":
            return _rank_of_torchrun(LauncherVariables("torchrun", environ))
        case "srun":
            return read_task(environ).rank
        case None:
            return None


def _rank_of_torchrun(variables: LauncherVariables) -> Rank:
    world_size = variables.size("WORLD_SIZE")
    local_world_size = variables.size("LOCAL_WORLD_SIZE")
    if local_world_size > world_size:
        what = f"LOCAL_WORLD_SIZE is {local_world_size}, but WORLD_SIZE, of all machines, is {world_size}"
        raise variables.error(what)
    rank = variables.below("RANK", "WORLD_SIZE", world_size)
    local_rank = variables.below("LOCAL_RANK", "LOCAL_WORLD_SIZE", local_world_size)
    variables.text("MASTER_ADDR")
    variables.port("MASTER_PORT")
    return Rank(rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=local_world_size)


def rendezvous_host(environ: Mapping[str, str]) -> str | None:
    """Return the host of the rendezvous of a launcher's ranks. None where no launcher started this process."""
    launcher = launcher_of(environ)
    if launcher is None:
        return None
    return environ["MASTER_ADDR"] if launcher == "torchrun" else read_task(environ).host


def stale_rank_variables(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables left over from a launcher that did not start this process.

    torch and rsl_rl must not see them: they would wait for ranks that do not exist.
    """
    launcher = launcher_of(environ)
    if launcher == "torchrun":
        return ()
    kept = _KEPT_UNDER_SRUN if launcher == "srun" else ()
    of_torchrun = sorted(name for name in environ if name.startswith("TORCHELASTIC_"))
    return (*(name for name in RANK_VARIABLES if name in environ and name not in kept), *of_torchrun)


def stale_rank_note(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the note about variables left over from a launcher, which are ignored. None without any."""
    names = stale_rank_variables(environ)
    if not names:
        return None
    verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
    launcher = launcher_of(environ) or "no launcher"
    return f"{', '.join(names)} {verb} set, but {launcher} started this process: ignoring {them}."


def usable_threads(rank: Rank, environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of CPU threads of this rank."""
    return cpu_threads(rank.local_world_size, environ, usable_cores())


def cpu_threads(local_world_size: int, environ: Mapping[str, str], cores: int) -> int:
    """Return a rank's equal share of a machine's cores, or the number that the user has set.

    Args:
        local_world_size: Workers on this machine.
        environ: Environment variables. `OMP_NUM_THREADS` wins, except for the 1 that torchrun sets for several workers.
        cores: Usable cores of this machine.
    """
    # OpenMP takes a list, one number for each level of nesting; the first counts here.
    wanted = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    launcher = launcher_of(environ)
    from_torchrun = wanted == "1" and launcher == "torchrun" and local_world_size > 1
    if re.fullmatch(_COUNT, wanted) and not from_torchrun:
        return int(wanted)
    for_each_task = environ.get("SLURM_CPUS_PER_TASK", "").strip()
    if launcher == "srun" and re.fullmatch(_COUNT, for_each_task):
        return min(int(for_each_task), cores)  # SLURM shows each task its own cores.
    return max(1, cores // local_world_size)
