"""The file that a training leaves when it stops for diverged environments, and `shoal replay` reads.

Numbers and text only: reading one runs no code. Only the version of MuJoCo that has saved the model reads it again.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.files import Folder, folder_of

_BROKEN = (OSError, ValueError, EOFError, LookupError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error)
"""Errors of reading half a file, or one that holds something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpInfo:
    """Origin of a file, and settings of the simulation. The fields are keys of its JSON."""

    task: str
    engine: str
    decimation: int
    largest: float
    """An environment has diverged when a position or velocity is not smaller."""
    rank: int
    num_envs: int
    iteration: int
    """The iteration that ran, counted from 1."""
    lost: int
    """Environments of this rank that diverged in it. Not all of them need to be in the file."""
    seed: int
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedEnv:
    """One environment that diverged, and its last steps."""

    env: int
    """Its index on its rank."""
    step: int
    """The step in which it diverged, the last of those below: counted from 1, since the training was started."""
    states: np.ndarray
    """State and controls before the physics of each step: mjSTATE_INTEGRATION. Shape (steps, size), 64 bits."""
    begins: np.ndarray
    """Where the task has written the state since the step before, as at the beginning of an episode. Shape (steps,)."""
    parameters: Mapping[str, np.ndarray]
    """Its own fields of `MjModel`."""

    @property
    def first_step(self) -> int:
        """The first of the steps that are kept."""
        return self.step - len(self.states) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """Content of a file."""

    info: DumpInfo
    model: np.ndarray
    scene: np.ndarray
    """The model that films show: the model itself, or one with its joints. Both are bytes of shape (size,)."""
    envs: tuple[DivergedEnv, ...]
    """The environments that diverged first, in that order."""

    def find(self, env: int | None) -> DivergedEnv:
        """Return an environment by its index on its rank; None for the first that diverged.

        Raises:
            UsageError: It is not here.
        """
        for each in self.envs:
            if env in {None, each.env}:
                return each
        there = ", ".join(str(each.env) for each in self.envs)
        raise UsageError(f"--env {env} was asked for, but the file has the environments {there}: pass one of them.")


def write_dump(dump: Dump, file: Path, folder: Folder | None = None) -> None:
    """Write a file in a folder, whole or not at all.

    Raises:
        OSError: The disk refused it.
    """
    envs = [{"env": each.env, "step": each.step} for each in dump.envs]
    arrays: dict[str, Any] = {"about": np.array(json.dumps({**asdict(dump.info), "envs": envs})), "model": dump.model}
    if dump.scene is not dump.model:
        arrays["scene"] = dump.scene
    for each in dump.envs:
        own = {"states": each.states, "begins": each.begins, **each.parameters}
        arrays |= {f"{each.env}/{name}": values for name, values in own.items()}
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    (folder or folder_of(file)).write(file, out.getbuffer())


def read_dump(file: Path) -> Dump:
    """Read a file of `write_dump`.

    Raises:
        UsageError: It is no such file, not all of it, or another MuJoCo's.
    """
    try:
        with np.load(file, allow_pickle=False) as held:
            dump = _parse({name: held[name] for name in held.files})
    except _BROKEN as error:
        raise UsageError(
            f"{file} is no file that a training leaves when it loses environments, or not all of one "
            f"({type(error).__name__}): pass <run>/ranks/rank_00000.lost.npz, or copy it once more."
        ) from error
    here = version("mujoco")
    theirs = dump.info.versions["mujoco"]
    if theirs != here:
        raise UsageError(
            f"{file} holds a model of MuJoCo {theirs}, which MuJoCo {here} cannot read: "
            f"run `uv pip install mujoco=={theirs}`."
        )
    return dump


def _parse(arrays: dict[str, np.ndarray]) -> Dump:
    """Return the dump of a file's arrays."""
    info = json.loads(str(arrays["about"]))
    envs: list[DivergedEnv] = []
    for entry in info.pop("envs"):
        prefix = f"{entry['env']}/"
        own = {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
        envs.append(DivergedEnv(**entry, states=own.pop("states"), begins=own.pop("begins"), parameters=own))
    model = arrays["model"]
    return Dump(info=DumpInfo(**info), model=model, scene=arrays.get("scene", model), envs=tuple(envs))
