"""Offscreen pictures of one environment, by MuJoCo's classic renderer.

MuJoCo reads MUJOCO_GL when it is first imported: `shoal.sim.render.video` starts a process with it.
"""

from collections.abc import Iterable
from typing import Self

import mujoco
import numpy as np
from mujoco.rendering.classic.renderer import Renderer

from shoal.sim.render.marks import Mark, Pen

CAMERA = "video"
"""Name of the camera that a scene may have for its videos."""
_ABOVE = 1000.0
"""From here the ground below the model is looked for [m]."""
_FOLLOWED = 0.1
"""Share of a change of the ground's height that the camera makes good with each picture: it climbs no single step."""


class Camera:
    """Draws a scene from its own camera of that name, or else from a fixed direction, following the model."""

    def __init__(self, scene: mujoco.MjModel, size: tuple[int, int]) -> None:
        """Open a renderer of pictures of width and height `size` [pixels]."""
        width, height = size
        screen = scene.vis.global_
        screen.offwidth, screen.offheight = max(screen.offwidth, width), max(screen.offheight, height)
        # MuJoCo's 4096 look the same, and make a processor without a GPU draw a fifth slower.
        scene.vis.quality.shadowsize = min(scene.vis.quality.shadowsize, 2048)
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
        self._ground: float | None = None
        self._fields = np.flatnonzero(scene.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD)

    def picture(self, positions: np.ndarray, marks: Iterable[Mark] = ()) -> np.ndarray:
        """Draw joint positions, (nq,), their contacts, and marks; return colours as bytes, (height, width, 3)."""
        self._data.qpos[:] = positions
        mujoco.mj_fwdPosition(self._scene, self._data)
        if self._free is not None:
            # Its height above the ground stays: a picture that hops along with the model shows no hopping.
            self._free.lookat[:2] = self._data.subtree_com[0, :2]
            below = self._ground_below()
            self._ground = below if self._ground is None else self._ground + _FOLLOWED * (below - self._ground)
            self._free.lookat[2] = self._scene.stat.center[2] + self._ground
        self._renderer.update_scene(self._data, self._free or CAMERA, self._option)
        self._pen.draw(marks, self._renderer.scene)
        return self._renderer.render()

    def _ground_below(self) -> float:
        """Return the height of the height field below the model [m]; 0 without one."""
        above = np.array([*self._data.subtree_com[0, :2], _ABOVE])
        down = np.array([0.0, 0.0, -1.0])
        found = (mujoco.mj_rayHfield(self._scene, self._data, int(field), above, down, None) for field in self._fields)
        return max((_ABOVE - distance for distance in found if distance >= 0), default=0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._renderer.close()
