"""The launcher that started this process as one of several workers, and its environment variables, validated.

`shoal.plan.ranks` interprets those of torchrun, and `shoal.plan.srun` those of SLURM.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.errors import UsageError

Launcher = Literal["torchrun", "srun"]

TORCHRUN_SIGN = "TORCHELASTIC_RUN_ID"
"""torchrun sets it for each rank; nothing else does."""
SRUN_SIGN = "SLURM_STEP_ID"
"""Number of a SLURM step. A batch script has none; steps that srun did not start have a word, or ten digits."""

STATE_DIR = "SHOAL_ATTEMPTS"
"""Environment variable of the elastic mode's workers: a directory that lives as long as their node's launcher."""

_STEP = re.compile(r"[0-9]{1,9}")
_COMMANDS: dict[Launcher, str] = {"torchrun": "python -m torch.distributed.run", "srun": "srun"}
_SIGNS: dict[Launcher, str] = {"torchrun": TORCHRUN_SIGN, "srun": SRUN_SIGN}
_MAX_PORT = 65535


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that started this process as one of several workers.

    torchrun may have a single worker, and may itself be a task of a step on each machine. A step of one task counts
    as no launcher.
    """
    if TORCHRUN_SIGN in environ:
        return "torchrun"
    if not _STEP.fullmatch(environ.get(SRUN_SIGN, "").strip()):
        return None
    tasks = environ.get(tasks_name(environ), "").strip()
    return None if re.fullmatch(r"\+?0*1", tasks) else "srun"


def state_dir(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the directory of `STATE_DIR`; None in a process that no elastic launcher has started."""
    return Path(environ[STATE_DIR]) if environ.get(STATE_DIR) else None


def tasks_name(environ: Mapping[str, str]) -> str:
    """Return the variable with the number of tasks of this step. Older releases of SLURM set the job's only."""
    return "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The rank of one worker, as torch numbers them."""

    rank: int
    """Global rank, from 0."""
    local_rank: int
    """Rank among the workers of this machine, from 0."""
    world_size: int
    """Workers of the whole job."""
    local_world_size: int
    """Workers on this machine."""

    def __post_init__(self) -> None:
        in_order = 0 <= self.local_rank < self.local_world_size <= self.world_size
        if not (in_order and 0 <= self.rank < self.world_size):
            raise ValueError(f"Inconsistent rank: {self}")


@dataclass(frozen=True, slots=True)
class LauncherVariables:
    """The environment variables of a launcher. Each method raises a `UsageError` for an invalid one."""

    launcher: Launcher
    environ: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return the value of a variable that must be set."""
        text = self.environ.get(name, "").strip()
        if not text:
            what = f"{self.launcher} started this process ({_SIGNS[self.launcher]} is set), but {name} is not set"
            raise self.error(what)
        return text

    def integer(self, name: str) -> int:
        """Return a whole number."""
        text = self.text(name)
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
            raise self.error(f"{name} is '{text}', but {self.launcher} sets it to a whole number")
        return int(text)

    def size(self, name: str) -> int:
        """Return a number of workers, at least 1."""
        size = self.integer(name)
        if size < 1:
            raise self.error(f"{name} is {size}, but this process itself is one worker")
        return size

    def below(self, name: str, size_name: str, size: int) -> int:
        """Return a rank below `size`."""
        rank = self.integer(name)
        if rank < 0:
            raise self.error(f"{name} is {rank}, but ranks count from 0")
        if rank >= size:
            raise self.error(f"{name} is {rank}, but {size_name} is {size}, so the highest is {size - 1}")
        return rank

    def port(self, name: str) -> int:
        """Return a port number."""
        port = self.integer(name)
        if not 0 < port <= _MAX_PORT:
            raise self.error(f"{name} is {port}, but a port is a number from 1 to {_MAX_PORT}")
        return port

    def error(self, what_is_true: str) -> UsageError:
        """Return an error, with the remedy for this launcher."""
        return UsageError(
            f"{what_is_true}: start it again with `{_COMMANDS[self.launcher]}`, which sets this variable itself, "
            f"or unset {_SIGNS[self.launcher]} to train without {self.launcher}."
        )
