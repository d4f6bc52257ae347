"""Recording of environment 0 for a video: a copy of one row a step, without waiting for a GPU."""

import torch

from shoal.sim.render.rows import Picture
from shoal.sim.render.trajectory import Trajectory, save_scene


class Recorder:
    """Buffers of environment 0 on the task's device: joint positions, what marks read, and images that are observed."""

    def __init__(self, picture: Picture, steps: int, size: tuple[int, int]) -> None:
        """Allocate. `steps` is the length of the buffers, `size` width and height of the video [pixels]."""
        self._picture = picture
        self._scene = save_scene(picture.scene)
        self._size = size
        positions, read = picture.tensors()
        self._names = list(read)
        images = [each.live for each in picture.images.values()]
        self._rows = [tensor[0] for tensor in (positions, *read.values(), *images)]
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

    def cut(self) -> Trajectory:
        """Return the recorded trajectory, and clear the buffers. Waits for the device."""
        positions, *rest = (taken[: self.taken].cpu().numpy().copy() for taken in self._taken)
        self.taken = 0
        read, seen = rest[: len(self._names)], rest[len(self._names) :]
        images = [each.drawn(values) for each, values in zip(self._picture.images.values(), seen, strict=True)]
        rows = [dict(zip(self._names, values, strict=True)) for values in zip(*read, strict=True)]
        marks = [self._picture.marks(row) for row in rows]
        step_dt, size = self._picture.step_dt, self._size
        return Trajectory(
            scene=self._scene, positions=positions, marks=marks, step_dt=step_dt, size=size, images=images
        )
