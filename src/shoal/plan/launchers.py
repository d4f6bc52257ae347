"""Which launcher has started this process as one of many, and its variables, read one by one.

Every way in which a variable can be wrong has its own sentence, which ends with what to do about that launcher.
What the variables mean is `shoal.plan.ranks` for torchrun and `shoal.plan.srun` for SLURM.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

Launcher = Literal["torchrun", "srun"]

TORCHRUN_SIGN = "TORCHELASTIC_RUN_ID"
"""torchrun sets it for each rank; nothing else does."""
SRUN_SIGN = "SLURM_STEP_ID"
"""The number of a step. A batch script is in none; what is no work of srun's has a word, or a number of ten digits."""

STATE_DIR = "SHOAL_ATTEMPTS"
"""Environment variable of the elastic mode's workers: a directory that lives as long as their node's launcher."""

_STEP = re.compile(r"[0-9]{1,9}")
_COMMANDS: dict[Launcher, str] = {"torchrun": "python -m torch.distributed.run", "srun": "srun"}
_SIGNS: dict[Launcher, str] = {"torchrun": TORCHRUN_SIGN, "srun": SRUN_SIGN}
_MAX_PORT = 65535


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """Return what has started this process as one of several workers.

    torchrun is allowed to be alone, and may itself be a task of a step, one on each machine. A step of one task is
    what it would be without srun.
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
    """Return the variable in which SLURM counts the tasks of this step. Older releases have the job's alone."""
    return "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"


@dataclass(frozen=True, slots=True)
class Told:
    """What a launcher tells this process."""

    launcher: Launcher
    environ: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return what a variable holds.

        Raises:
            UsageError: Nothing.
        """
        text = self.environ.get(name, "").strip()
        if not text:
            what = f"{self.launcher} started this process ({_SIGNS[self.launcher]} is set), but {name} is not set"
            raise self.error(what)
        return text

    def integer(self, name: str) -> int:
        """Return a whole number."""
        text = self.text(name)
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
            what = f"{name} is '{text}', but {self.launcher} sets it to a whole number"
            raise self.error(what)
        return int(text)

    def size(self, name: str) -> int:
        """Return a number of workers, of which this process is one."""
        size = self.integer(name)
        if size < 1:
            what = f"{name} is {size}, but this process itself is one worker"
            raise self.error(what)
        return size

    def below(self, name: str, size_name: str, size: int) -> int:
        """Return a place among `size`."""
        place = self.integer(name)
        if place < 0:
            what = f"{name} is {place}, but ranks count from 0"
            raise self.error(what)
        if place >= size:
            what = f"{name} is {place}, but {size_name} is {size}, so the highest is {size - 1}"
            raise self.error(what)
        return place

    def port(self, name: str) -> int:
        """Return a port."""
        port = self.integer(name)
        if not 0 < port <= _MAX_PORT:
            what = f"{name} is {port}, but a port is a number from 1 to {_MAX_PORT}"
            raise self.error(what)
        return port

    def error(self, what_is_true: str) -> UsageError:
        """Return the error that says so, and what to do."""
        message = (
            f"{what_is_true}: start it again with `{_COMMANDS[self.launcher]}`, which sets this variable itself, "
            f"or unset {_SIGNS[self.launcher]} to train without {self.launcher}."
        )
        return UsageError(message)
