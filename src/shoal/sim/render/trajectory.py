"""Trajectories: a scene, and the joint positions of one environment, step after step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from shoal.sim.render.marks import Mark, from_json, to_json

if TYPE_CHECKING:
    import mujoco

MOST_FRAMES_A_SECOND = 60
"""Screens show no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A video before it is drawn. A file carries it to the process that draws it."""

    scene: np.ndarray
    """The scene as MuJoCo saves it. Bytes, shape (size,)."""
    positions: np.ndarray
    """The joint positions ``qpos`` after each step. Shape (steps, nq)."""
    step_dt: float
    """Simulated time between two steps [s]."""
    size: tuple[int, int]
    """Width and height of the video [pixels]."""
    marks: Sequence[Sequence[Mark]] = ()
    """What is drawn beside the scene after each step; empty for nothing."""

    images: Sequence[np.ndarray] = ()
    """Groups of images that are observed after each step, as colours. Bytes, shapes (steps, rows, columns, 3)."""

    @property
    def stride(self) -> int:
        """Steps between two frames of a video in real time.

        Up to 60 steps a second each step is a frame; above, the video has between 30 and 60 frames a second.
        """
        return max(1, math.ceil(1 / (self.step_dt * MOST_FRAMES_A_SECOND) - 1e-6))  # 1/60 s are 60 a second.

    @property
    def frames_a_second(self) -> float:
        """Frame rate of a video in real time."""
        return 1 / (self.step_dt * self.stride)

    def write(self, file: IO[bytes]) -> None:
        """Write all of it into a binary file."""
        arrays: dict[str, Any] = {f"image{number}": images for number, images in enumerate(self.images)}
        arrays |= {"scene": self.scene, "positions": self.positions, "step_dt": self.step_dt, "size": self.size}
        np.savez(file, **arrays, marks=to_json(self.marks))

    @classmethod
    def read(cls, file: IO[bytes]) -> Self:
        """Read a file of `write`."""
        with np.load(file) as arrays:
            width, height = map(int, arrays["size"])
            step_dt = float(arrays["step_dt"])
            scene, positions, marks = arrays["scene"], arrays["positions"], from_json(str(arrays["marks"]))
            images = [arrays[name] for name in arrays.files if name.startswith("image")]
            size = width, height
            return cls(scene=scene, positions=positions, step_dt=step_dt, size=size, marks=marks, images=images)


def save_scene(scene: mujoco.MjModel) -> np.ndarray:
    """Return a model, with its meshes and textures, as bytes of shape (size,)."""
    import mujoco

    saved = np.empty(mujoco.mj_sizeModel(scene), dtype=np.uint8)
    mujoco.mj_saveModel(scene, None, saved)
    return saved


def load_scene(saved: np.ndarray) -> Any:  # noqa: ANN401  MuJoCo has no types.
    """Return the model of `save_scene`."""
    import mujoco

    mujoco.set_mju_user_warning(lambda _: None)  # It would write a file MUJOCO_LOG.TXT.
    return mujoco.MjModel.from_binary_path("scene.mjb", {"scene.mjb": saved.tobytes()})
