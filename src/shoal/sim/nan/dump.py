"""The file that a training leaves when it stops for diverged environments, and `shoal replay` reads.

Numbers and text only: reading one runs no code. Only the version of MuJoCo that has saved the model reads it again.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.env import OLDER_ENGINES
from shoal.config.plain import from_plain
from shoal.errors import UsageError
from shoal.files import Folder, folder_of
from shoal.reading import checked, parse_object, read_arrays, refusing

_MOST_DECIMATION = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpInfo:
    """Origin of a file, and settings of the simulation. The fields are keys of its JSON."""

    task: str
    engine: str = field(metadata=OLDER_ENGINES)
    decimation: int
    largest: float
    """An environment has diverged when a position or velocity is not smaller."""
    rank: int
    num_envs: int
    iteration: int
    """The iteration that ran, counted from 1."""
    diverged: int
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
    """The model that videos show: the model itself, or one with its joints. Both are bytes of shape (size,)."""
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
    with refusing(file, "pass <run>/ranks/rank_00000.diverged.npz, or copy it once more"):
        dump = _parse(read_arrays(file))
        theirs = dump.info.versions["mujoco"]
    here = version("mujoco")
    if theirs != here:
        raise UsageError(
            f"{file} holds a model of MuJoCo {theirs}, which MuJoCo {here} cannot read: "
            f"run `uv pip install mujoco=={theirs}`."
        )
    return dump


def _parse(arrays: dict[str, np.ndarray]) -> Dump:
    """Return the dump of a file's arrays."""
    info = parse_object(str(arrays["about"]), {"envs": list})
    if "lost" in info:  # The key that earlier files have.
        info["diverged"] = info.pop("lost")
    envs: list[DivergedEnv] = []
    for entry in info.pop("envs"):
        prefix = f"{entry['env']}/"
        own = {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
        states, begins, about = own.pop("states"), own.pop("begins"), checked(entry, {"env": int, "step": int})
        if states.ndim != 2 or states.dtype != np.float64 or begins.shape != states.shape[:1] or not states.size:  # noqa: PLR2004
            raise ValueError(f"the states of environment {entry['env']} have the shape {states.shape}")
        envs.append(DivergedEnv(**about, states=states, begins=begins, parameters=own))
    about = from_plain(DumpInfo, info, "about")
    if not envs or not 0 < about.decimation <= _MOST_DECIMATION:
        raise ValueError(f"it has {len(envs)} environments, and {about.decimation} physics steps in a step")
    model = arrays["model"]
    return Dump(info=about, model=model, scene=arrays.get("scene", model), envs=tuple(envs))
