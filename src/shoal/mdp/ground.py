"""Terrain queries of kernels: height and slope at a point.

A height field is a grid of heights. Between its points the ground is made of triangles, two for each cell, which share
the cell's diagonal from its lowest row and column to its highest: MuJoCo collides with the same ones.
"""

import warp as wp

from shoal.mdp.needs import FreeJointState


@wp.struct
class Ground:
    """A height field, or a plane at height 0 where it has a single point."""

    heights: wp.array2d[wp.float32]
    """Heights [m]: rows along y, columns along x."""
    corner: wp.vec2
    """Where the first point is: x and y [m]."""
    cell: wp.float32
    """Distance between two points [m]."""


@wp.func
def along(position: float, start: float, cell: float, points: int) -> float:
    """Return a coordinate along one axis, in cells, clamped to the grid. NaN becomes 0."""
    cells = (position - start) / cell
    if cells > 0.0:  # Not so for NaN, which is no index.
        return wp.min(cells, wp.float32(points - 1) - 0.001)
    return 0.0


@wp.func
def surface_at(ground: Ground, x: float, y: float) -> wp.vec3:
    """Return the height [m] at a point, and the slopes along x and y."""
    if ground.heights.shape[0] == 1:
        return wp.vec3(0.0, 0.0, 0.0)
    across = along(x, ground.corner[0], ground.cell, ground.heights.shape[1])
    up = along(y, ground.corner[1], ground.cell, ground.heights.shape[0])
    column = wp.int32(across)
    row = wp.int32(up)
    first = ground.heights[row, column]
    last = ground.heights[row + 1, column + 1]
    by_x = ground.heights[row, column + 1]
    by_y = ground.heights[row + 1, column]
    right = across - wp.float32(column)
    back = up - wp.float32(row)
    if right > back:
        rise_x = by_x - first
        rise_y = last - by_x
    else:
        rise_x = last - by_y
        rise_y = by_y - first
    return wp.vec3(first + right * rise_x + back * rise_y, rise_x / ground.cell, rise_y / ground.cell)


@wp.func
def normal_of(surface: wp.vec3) -> wp.vec3:
    """Return the direction that is upright on the ground, from what `surface_at` returns."""
    return wp.normalize(wp.vec3(-surface[1], -surface[2], 1.0))


@wp.func
def base_height(state: FreeJointState, env: int) -> float:
    """Return the height of the base above the ground [m]."""
    return state.qpos[env, 2] - surface_at(state.ground, state.qpos[env, 0], state.qpos[env, 1])[0]


@wp.func
def clearance_of(ground: Ground, position: wp.vec3) -> float:
    """Return the distance of a point from the plane of the triangle below it [m]; negative below ground."""
    surface = surface_at(ground, position[0], position[1])
    return (position[2] - surface[0]) * normal_of(surface)[2]
