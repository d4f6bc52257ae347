"""What is drawn of each environment: joint positions, and the arrays that its marks read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import warp as wp

from shoal.errors import ShoalError, did_you_mean
from shoal.sim.bridge import to_torch
from shoal.sim.render.images import Images

if TYPE_CHECKING:
    import mujoco

    from shoal.sim.render.marks import Mark


@dataclass(frozen=True, slots=True)
class Picture:
    """What videos and viewers draw of environments."""

    scene: mujoco.MjModel
    """The model of one environment."""
    positions: wp.array | torch.Tensor
    """Its live joint positions in every environment. Shape (num_envs, nq)."""
    step_dt: float
    """Simulated time between two actions [s]."""
    arrays: Mapping[str, wp.array | torch.Tensor] = field(default_factory=dict[str, wp.array | torch.Tensor])
    """Arrays that marks may read, by name, with a row for each environment."""
    marks: Callable[[Mapping[str, np.ndarray]], list[Mark]] = lambda _: []
    """Returns what is drawn beside the scene for one environment, from its row of each array."""

    scan: Callable[[Mapping[str, np.ndarray]], list[Mark]] = lambda _: []
    """Returns where the sensors of one environment look, as marks."""

    images: Mapping[str, Images] = field(default_factory=dict[str, Images])
    """Groups of images that policies observe, by name."""

    def state(self) -> dict[str, torch.Tensor]:
        """Return velocities, activations and controls, live, as far as the arrays have them. Shapes (num_envs, n)."""
        sizes = {"qvel": self.scene.nv, "act": self.scene.na, "ctrl": self.scene.nu}
        found = {name: _tensor(self.arrays[f"data/{name}"]) for name in sizes if f"data/{name}" in self.arrays}
        return {name: each for name, each in found.items() if each.shape[1:] == (sizes[name],)}

    def tensors(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the joint positions, and the arrays that marks read, by name. Each has a row for each environment.

        Raises:
            ShoalError: Marks read an array that the task does not have.
        """
        row = _Row(self.arrays)
        self.marks(row)
        self.scan(row)
        return _tensor(self.positions), row.tensors


def _tensor(array: wp.array | torch.Tensor) -> torch.Tensor:
    return array if isinstance(array, torch.Tensor) else to_torch(array)


class _Row(dict[str, np.ndarray]):
    """The first environment, which notes the names that are read."""

    def __init__(self, arrays: Mapping[str, wp.array | torch.Tensor]) -> None:
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
