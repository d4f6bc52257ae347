"""The launcher that started this process as one of several workers, and its environment variables, validated."""

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

LARGEST = 999_999_999
"""Bound of numbers that have no other."""
_COMMANDS: dict[Launcher, str] = {"torchrun": "python -m torch.distributed.run", "srun": "srun"}
_SIGNS: dict[Launcher, str] = {"torchrun": TORCHRUN_SIGN, "srun": SRUN_SIGN}


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that started this process as one of several workers.

    torchrun may have a single worker, and may itself be a task of a step on each machine. A step of one task counts
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
