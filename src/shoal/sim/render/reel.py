"""Recording of environment 0 for a film: a copy of one row a step, without waiting for a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
import warp as wp

from shoal.sim.bridge import to_torch
from shoal.sim.render.clip import Clip, save_scene

if TYPE_CHECKING:
    import mujoco


class Task(Protocol):
    """A task with a picture, see `shoal.sim.kernel_task.KernelTask`."""

    @property
    def step_dt(self) -> float: ...  # noqa: D102
    def scene(self) -> mujoco.MjModel: ...  # noqa: D102
    def positions(self) -> wp.array: ...  # noqa: D102


class Reel:
    """Buffer of the joint positions of environment 0, on the task's device."""

    def __init__(self, task: Task, steps: int, size: tuple[int, int]) -> None:
        """Allocate. `steps` is the length of the buffer, `size` width and height of the film [pixels].

        Raises:
            UsageError: The task has no picture.
        """
        self._task = task
        self._scene = save_scene(task.scene())
        self._size = size
        row = self._row()
        self._rows = torch.empty((steps, *row.shape), dtype=row.dtype, device=row.device)
        self.taken = 0
        """Steps that are recorded."""

    def __len__(self) -> int:
        """Return the length of the buffer."""
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether all of the buffer is recorded."""
        return self.taken == len(self)

    def take(self) -> None:
        """Record the joint positions."""
        self._rows[self.taken].copy_(self._row())
        self.taken += 1

    def cut(self) -> Clip:
        """Return the recorded clip, and clear the buffer. Waits for the device, once."""
        positions = self._rows[: self.taken].cpu().numpy().copy()
        self.taken = 0
        return Clip(scene=self._scene, positions=positions, step_dt=self._task.step_dt, size=self._size)

    def _row(self) -> torch.Tensor:
        """Return the positions of environment 0. Shape (nq,)."""
        return to_torch(self._task.positions())[0]
