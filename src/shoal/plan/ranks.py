"""The rank of this process, if torchrun or srun started it, variables left over from a launcher, and CPU threads."""

import os
import re
from collections.abc import Mapping

from shoal.config.checks import HIGHEST_PORT
from shoal.machine.host import usable_cores
from shoal.plan.launchers import LARGEST, LauncherVariables, Rank, launcher_of
from shoal.plan.slurm import read_task

_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", *_RENDEZVOUS)
"""Variables by which launchers pass a rank its place, and which libraries read. Left over, they make a lone process
look like a rank."""

_COUNT = re.compile(r"0*[1-9][0-9]{0,8}")


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
