"""What a task of terms draws beside its scene: commanded and actual velocities of the base."""

from collections.abc import Callable, Mapping

import mujoco
import numpy as np

from shoal.mdp.config import TermsConfig
from shoal.sim.render.marks import BLUE, Arrow
from shoal.sim.render.surroundings import extent

TWIST = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
"""Columns of a command that is a velocity of the base, in its own frame."""
_SECONDS = 0.5
"""An arrow is as long as the way, or the turn, of so much time [s]."""
_ABOVE = 0.1
"""Height of arrows above the robot [m]."""
_APART = (0.0, 0.0, 0.04)
"""From the commanded arrows to the actual ones, so that neither hides the other [m]."""


def twist_arrows(
    config: TermsConfig, columns: Mapping[str, int], height: Callable[[], float], row: Mapping[str, np.ndarray]
) -> list[Arrow]:
    """Return arrows of each commanded velocity of the base, and of its actual one: linear ones, and turns along z.

    `columns` has the first column of each command. The arrows are `height()` above the base [m]; `row` is one
    environment, see `KernelTask.marks`.
    """
    arrows: list[Arrow] = []
    for name, term in config.terms("commands").items():
        if term.columns != TWIST:
            continue
        x, y, turn = row["commands"][columns[name] :][:3]
        base, qvel, to_world = row["qpos"][:7], row["qvel"], np.empty(9)
        mujoco.mju_quat2Mat(to_world, base[3:].astype(np.float64))
        to_world = to_world.reshape(3, 3)
        up = to_world[:, 2]
        lin_vel = qvel[:3] - up * (up @ qvel[:3])  # As the command, along x and y of the base.
        start = np.array([base[0], base[1], base[2] + height()])
        arrows += [Arrow(start, _SECONDS * to_world @ (x, y, 0.0)), Arrow(start, _SECONDS * turn * up)]
        start = start + _APART
        arrows += [Arrow(start, _SECONDS * lin_vel, BLUE), Arrow(start, _SECONDS * qvel[5] * up, BLUE)]
    return arrows


def height_of_arrows(model: mujoco.MjModel, qpos: np.ndarray) -> float:
    """Return the height above the base of arrows that nothing of the robot in a pose, (nq,), hides [m]."""
    _, highest = extent(model, qpos)
    return float(highest[2] - qpos[2]) + _ABOVE
