"""What is drawn of each environment: joint positions, and the arrays that its marks read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import warp as wp

from shoal.errors import ShoalError, did_you_mean
from shoal.sim.bridge import to_torch

if TYPE_CHECKING:
    import mujoco

    from shoal.sim.render.marks import Mark


class Picture(Protocol):
    """What videos and viewers draw of environments; every `shoal.sim.task.Task` with a scene is one."""

    @property
    def step_dt(self) -> float:
        """Simulated time between two actions [s]."""
        ...

    @property
    def arrays(self) -> Mapping[str, wp.array] | Mapping[str, torch.Tensor]:
        """Arrays that marks may read, by name, with a row for each environment."""
        ...

    def scene(self) -> mujoco.MjModel:
        """Return the model of one environment."""
        ...

    def positions(self) -> wp.array | torch.Tensor:
        """Return the live joint positions of the scene. Shape (num_envs, nq)."""
        ...

    def marks(self, row: Mapping[str, np.ndarray]) -> list[Mark]:
        """Return what is drawn beside the scene for one environment, from its row of each array."""
        ...


@dataclass(frozen=True, slots=True)
class ModelPicture:
    """A model at its joint positions, without marks."""

    model: mujoco.MjModel
    qpos: wp.array | torch.Tensor
    """Live joint positions. Shape (num_envs, nq)."""
    step_dt: float
    """Simulated time between two actions [s]."""
    arrays: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])

    def scene(self) -> mujoco.MjModel:
        """Return the model."""
        return self.model

    def positions(self) -> wp.array | torch.Tensor:
        """Return the live joint positions."""
        return self.qpos

    def marks(self, row: Mapping[str, np.ndarray]) -> list[Mark]:
        """Return nothing."""
        del row
        return []


def drawn_tensors(picture: Picture) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the joint positions, and the arrays that marks read, by name. Each has a row for each environment.

    Raises:
        UsageError: The task has no picture.
        ShoalError: Marks read an array that the task does not have.
    """
    row = _Row(picture.arrays)
    positions = _tensor(picture.positions())
    picture.marks(row)
    return positions, row.tensors


def _tensor(array: wp.array | torch.Tensor) -> torch.Tensor:
    return array if isinstance(array, torch.Tensor) else to_torch(array)


class _Row(dict[str, np.ndarray]):
    """The first environment, which notes the names that are read."""

    def __init__(self, arrays: Mapping[str, wp.array] | Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._arrays = {name.removeprefix("data/"): array for name, array in arrays.items()}
        self.tensors: dict[str, torch.Tensor] = {}

    def __missing__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            hint = did_you_mean(name, self._arrays)
            raise ShoalError(f"marks() reads '{name}', which is no array of the task.{hint}")
        self.tensors[name] = _tensor(self._arrays[name])
        self[name] = self.tensors[name][0].cpu().numpy()
        return self[name]
