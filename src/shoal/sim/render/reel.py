"""Recording of environment 0 for a film: a copy of one row a step, without waiting for a GPU."""

from __future__ import annotations

import torch

from shoal.sim.render.clip import Clip, save_scene
from shoal.sim.render.rows import Picture, drawn_tensors


class Reel:
    """Buffers of the joint positions of environment 0, and of what its marks read, on the task's device."""

    def __init__(self, picture: Picture, steps: int, size: tuple[int, int]) -> None:
        """Allocate. `steps` is the length of the buffers, `size` width and height of the film [pixels].

        Raises:
            UsageError: There is no scene.
        """
        self._picture = picture
        self._scene = save_scene(picture.scene())
        self._size = size
        positions, read = drawn_tensors(picture)
        self._names = list(read)
        self._rows = [tensor[0] for tensor in (positions, *read.values())]
        self._taken = [torch.empty((steps, *row.shape), dtype=row.dtype, device=row.device) for row in self._rows]
        self.taken = 0
        """Steps that are recorded."""

    def __len__(self) -> int:
        """Return the length of the buffers."""
        return len(self._taken[0])

    @property
    def is_full(self) -> bool:
        """Whether all of the buffers are recorded."""
        return self.taken == len(self)

    def take(self) -> None:
        """Record this step."""
        for taken, row in zip(self._taken, self._rows, strict=True):
            taken[self.taken].copy_(row)
        self.taken += 1

    def cut(self) -> Clip:
        """Return the recorded clip, and clear the buffers. Waits for the device."""
        positions, *read = (taken[: self.taken].cpu().numpy().copy() for taken in self._taken)
        self.taken = 0
        rows = [dict(zip(self._names, values, strict=True)) for values in zip(*read, strict=True)]
        marks = [self._picture.marks(row) for row in rows]
        return Clip(scene=self._scene, positions=positions, marks=marks, step_dt=self._picture.step_dt, size=self._size)
