"""Draws docs/images/terrain.png: a sub-terrain of each kind, at the seventh of ten levels, with the robot that ships.

MUJOCO_GL=egl python docs/draw_terrain.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import mujoco
import numpy as np
from PIL import Image

from shoal.mdp.scene import compile_scene
from shoal.mdp.terrain import make_terrain, robot_on_terrain
from shoal.mdp.terrain_config import SUB_TERRAINS
from shoal.sim.render.camera import CAMERA, Camera
from shoal.tasks.quadruped.config import ROUGH

PICTURE = Path(__file__).parent / "images" / "terrain.png"
COLUMNS, LEVEL, SIZE = 6, 6, (320, 230)
AWAY = np.array([-3.4, -6.4, 5.6])
"""Where the camera is, from the middle of a sub-terrain [m]: the whole sub-terrain is in view."""


def draw(name: str) -> np.ndarray:
    """Return a picture of the robot on a sub-terrain, as bytes. Shape (height, width, 3)."""
    config = replace(ROUGH, terrains=(name,))
    model, terrain = compile_scene(robot_on_terrain(config), config), make_terrain(config)
    floor = model.geom("floor")
    floor.matid[:], floor.rgba[:] = -1, (0.5, 0.55, 0.6, 1.0)  # Squares would hide the shape.
    x, y = terrain.centers[LEVEL, 0]
    qpos = model.key("home").qpos.copy()
    column, row = np.rint((np.array([x, y]) - terrain.corner) / terrain.cell).astype(int)
    around = terrain.heights[row - 2 : row + 3, column - 2 : column + 3]
    qpos[:3] += x, y, around.max()
    backwards = AWAY / np.linalg.norm(AWAY)
    right = np.cross((0.0, 0.0, 1.0), backwards) / np.linalg.norm(backwards[:2])
    video = model.camera(CAMERA)
    video.mode[:], video.bodyid[:] = mujoco.mjtCamLight.mjCAMLIGHT_FIXED, 0
    video.pos[:] = AWAY + np.array([x, y, around.max() / 2])
    mujoco.mju_mat2Quat(video.quat, np.stack([right, np.cross(backwards, right), backwards], axis=1).ravel())
    with Camera(model, SIZE) as camera:
        return camera.picture(qpos)


def main() -> None:
    """Draw all kinds into one picture."""
    rows = -(-len(SUB_TERRAINS) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(2.0 * COLUMNS, 1.65 * rows), layout="constrained")
    for each in axes.flat:
        each.axis("off")
    for name, each in zip(SUB_TERRAINS, axes.flat, strict=False):
        each.imshow(draw(name))
        each.set_title(name, fontsize=8, pad=2)
    figure.savefig(PICTURE, dpi=90)
    with Image.open(PICTURE) as picture:
        picture.convert("RGB").quantize(48).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
