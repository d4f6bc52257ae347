"""What is drawn of each environment: joint positions, and the arrays that the task's marks read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
import warp as wp

from shoal.errors import ShoalError, did_you_mean
from shoal.sim.bridge import to_torch

if TYPE_CHECKING:
    import mujoco
    import torch

    from shoal.sim.render.marks import Mark


class DrawnTask(Protocol):
    """A task with a picture, see `shoal.sim.kernel_task.KernelTask`."""

    @property
    def step_dt(self) -> float: ...  # noqa: D102
    @property
    def arrays(self) -> Mapping[str, wp.array]: ...  # noqa: D102
    def scene(self) -> mujoco.MjModel: ...  # noqa: D102
    def positions(self) -> wp.array: ...  # noqa: D102
    def marks(self, row: Mapping[str, np.ndarray]) -> list[Mark]: ...  # noqa: D102


def drawn_tensors(task: DrawnTask) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the joint positions, and the arrays that marks read, by name. Each has a row for each environment.

    Raises:
        UsageError: The task has no picture.
        ShoalError: Marks read an array that the task does not have.
    """
    row = _Row(task.arrays)
    positions = to_torch(task.positions())
    task.marks(row)
    return positions, row.tensors


class _Row(dict[str, np.ndarray]):
    """The first environment, which notes the names that are read."""

    def __init__(self, arrays: Mapping[str, wp.array]) -> None:
        super().__init__()
        self._arrays = {name.removeprefix("data/"): array for name, array in arrays.items()}
        self.tensors: dict[str, torch.Tensor] = {}

    def __missing__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            hint = did_you_mean(name, self._arrays)
            raise ShoalError(f"marks() reads '{name}', which is no array of the task.{hint}")
        self.tensors[name] = to_torch(self._arrays[name])
        self[name] = self.tensors[name][0].cpu().numpy()
        return self[name]
