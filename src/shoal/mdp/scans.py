"""Where height scans measure the ground, for viewers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
import warp as wp

from shoal.mdp.config import members
from shoal.mdp.ground import Ground, surface_at
from shoal.mdp.observations import height_scan
from shoal.mdp.values import grid_points
from shoal.sim.render.marks import BLUE, Mark, Sphere


@wp.kernel(enable_backward=False)
def _measure(ground: Ground, positions: wp.array[wp.vec2], heights: wp.array[wp.float32]) -> None:
    point = wp.tid()
    heights[point] = surface_at(ground, positions[point][0], positions[point][1])[0]


def scanned_points(task: Any, row: Mapping[str, np.ndarray]) -> list[Mark]:
    """Return the points of the ground that the height scans of one environment measure; `row` as in `marks`."""
    grids = {
        tuple(members(terms)[name].grid)
        for group, terms in task.config.terms("observations").items()
        for name, bound in task.bound.observations[group].items()
        if bound.function is height_scan
    }
    if not grids:
        return []
    ground: Ground = task.state_values["ground"]
    base, to_world = row["qpos"][:7].astype(np.float64), np.empty(9)
    mujoco.mju_quat2Mat(to_world, base[3:])
    ahead = to_world.reshape(3, 3)[:2, 0] / np.hypot(*to_world.reshape(3, 3)[:2, 0])
    points = np.concatenate([grid_points(*grid) for grid in sorted(grids)])
    positions = base[:2] + points @ np.array([ahead, (-ahead[1], ahead[0])])
    heights = wp.empty(len(positions), dtype=wp.float32, device=task.device)
    task.launch(
        _measure, [ground, wp.array(positions, dtype=wp.vec2, device=task.device)], [heights], dim=len(positions)
    )
    return [Sphere(point, 0.015, BLUE) for point in np.column_stack([positions, heights.numpy()])]
