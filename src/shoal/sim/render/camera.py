"""Offscreen pictures of one environment, by MuJoCo's classic renderer.

MuJoCo reads MUJOCO_GL when it is first imported: `shoal.sim.render.film` starts a process with it.
"""

from collections.abc import Iterable
from typing import Self

import mujoco
import numpy as np
from mujoco.rendering.classic.renderer import Renderer

from shoal.sim.render.marks import Mark, Pen

CAMERA = "film"
"""Name of the camera that a scene may have for its films."""


class Camera:
    """Draws a scene from its own camera of that name, or else from a fixed direction, following the model."""

    def __init__(self, scene: mujoco.MjModel, size: tuple[int, int]) -> None:
        """Open a renderer of pictures of width and height `size` [pixels]."""
        width, height = size
        screen = scene.vis.global_
        screen.offwidth, screen.offheight = max(screen.offwidth, width), max(screen.offheight, height)
        self._scene = scene
        self._data = mujoco.MjData(scene)
        self._pen = Pen(scene)
        self._option = mujoco.MjvOption()
        self._option.flags[mujoco.mjtVisFlag.mjVIS_CONTACTPOINT] = True
        self._renderer = Renderer(scene, height=height, width=width)
        self._free: mujoco.MjvCamera | None = None
        if mujoco.mj_name2id(scene, mujoco.mjtObj.mjOBJ_CAMERA.value, CAMERA) < 0:
            self._free = mujoco.MjvCamera()
            mujoco.mjv_defaultFreeCamera(scene, self._free)

    def picture(self, positions: np.ndarray, marks: Iterable[Mark] = ()) -> np.ndarray:
        """Draw joint positions, (nq,), their contacts, and marks; return colours as bytes, (height, width, 3)."""
        self._data.qpos[:] = positions
        mujoco.mj_fwdPosition(self._scene, self._data)
        if self._free is not None:
            # Its height stays: a picture that hops along with the model shows no hopping.
            self._free.lookat[:2] = self._data.subtree_com[0, :2]
        self._renderer.update_scene(self._data, self._free or CAMERA, self._option)
        self._pen.draw(marks, self._renderer.scene)
        return self._renderer.render()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._renderer.close()
