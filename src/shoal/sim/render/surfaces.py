"""Triangle surfaces of MuJoCo's geoms: meshes, height fields and primitives."""

from collections.abc import Callable

import mujoco
import numpy as np

SEGMENTS = 24
"""Corners of a circle, and twice those of a half turn from pole to pole."""

BY_MESH = frozenset({int(mujoco.mjtGeom.mjGEOM_MESH), int(mujoco.mjtGeom.mjGEOM_SDF)})
"""Geoms that are drawn as one of the model's meshes."""

_ON_THE_AXIS = 1e-9
"""Largest distance of a point on the axis [m]: a ring there is a point."""

Surface = tuple[np.ndarray, np.ndarray]
"""Vertices [m], shape (num_vertices, 3), and triangles that index them, counter-clockwise seen from outside, shape
(num_triangles, 3)."""


def surface_of(model: mujoco.MjModel, geom: int) -> Surface:
    """Return a geom's surface, in its own frame."""
    kind, data = int(model.geom_type[geom]), int(model.geom_dataid[geom])
    if kind in BY_MESH:
        return _mesh(model, data)
    if kind == mujoco.mjtGeom.mjGEOM_HFIELD:
        return _height_field(model, data)
    return _PRIMITIVES[kind](*model.geom_size[geom].tolist())


def _plane(half_x: float, half_y: float, _spacing: float) -> Surface:
    corners = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]]) * (half_x, half_y, 1.0)
    return corners, np.array([[0, 1, 2], [0, 2, 3]])


def _box(half_x: float, half_y: float, half_z: float) -> Surface:
    """Return six sides that share no corner, so that the edges look sharp."""
    top = np.array([[-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1]])
    # Rolling the axes turns the top to the other sides and keeps the order of corners; so does turning it upside down.
    upper = [np.roll(top, shift, axis=1) for shift in range(3)]
    lower = [np.roll(top * (-1, 1, -1), shift, axis=1) for shift in range(3)]
    sides = np.concatenate(upper + lower) * (half_x, half_y, half_z)
    first = 4 * np.arange(6)[:, None, None]
    return sides, (first + np.array([[0, 1, 2], [0, 2, 3]])).reshape(-1, 3)


def sphere(radius: float, _y: float = 0.0, _z: float = 0.0) -> Surface:
    """Return a sphere."""
    return _ellipsoid(radius, radius, radius)


def _ellipsoid(half_x: float, half_y: float, half_z: float) -> Surface:
    angles = np.linspace(-np.pi / 2, np.pi / 2, SEGMENTS // 2 + 1)
    vertices, triangles = _revolved(np.cos(angles), np.sin(angles))
    return vertices * (half_x, half_y, half_z), triangles


def _capsule(radius: float, half_length: float, _z: float) -> Surface:
    angles = np.linspace(0.0, np.pi / 2, SEGMENTS // 4 + 1)
    distances, heights = radius * np.cos(angles), half_length + radius * np.sin(angles)
    return _revolved(np.concatenate([distances[::-1], distances]), np.concatenate([-heights[::-1], heights]))


def _cylinder(radius: float, half_length: float, _z: float) -> Surface:
    # Each rim twice, for the side and for the end: then it looks sharp.
    distances, heights = np.array([0, 1, 1, 1, 1, 0]), np.array([-1, -1, -1, 1, 1, 1])
    return _revolved(radius * distances, half_length * heights, creases=(1, 3))


def _revolved(distances: np.ndarray, heights: np.ndarray, creases: tuple[int, ...] = ()) -> Surface:
    """Revolve points at distances and heights, each (num_points,), about the z axis, from the lowest up.

    There is no surface between `creases` and their successors, which have the same positions.
    """
    turn = np.linspace(0.0, 2 * np.pi, SEGMENTS, endpoint=False)
    ring = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    rings = [np.column_stack([d * ring, np.full(SEGMENTS, h)]) for d, h in zip(distances, heights, strict=True)]
    here = np.arange(SEGMENTS)
    there = (here + 1) % SEGMENTS
    triangles: list[np.ndarray] = []
    for point in range(len(distances) - 1):
        if point in creases:
            continue
        low, high = point * SEGMENTS, (point + 1) * SEGMENTS
        if distances[point] > _ON_THE_AXIS:
            triangles.append(np.stack([low + here, low + there, high + there], axis=1))
        if distances[point + 1] > _ON_THE_AXIS:
            triangles.append(np.stack([low + here, high + there, high + here], axis=1))
    return np.concatenate(rings), np.concatenate(triangles)


def _mesh(model: mujoco.MjModel, mesh: int) -> Surface:
    """Return a mesh, with a vertex for each normal that meets in a corner: so edges stay sharp where it has them."""
    faces = slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])
    corners = np.stack([model.mesh_face[faces].ravel(), model.mesh_facenormal[faces].ravel()], axis=1)
    pairs, triangles = np.unique(corners, axis=0, return_inverse=True)
    return model.mesh_vert[model.mesh_vertadr[mesh] + pairs[:, 0]], triangles.reshape(-1, 3)


def _height_field(model: mujoco.MjModel, field: int) -> Surface:
    rows, columns = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
    half_x, half_y, top, _bottom = model.hfield_size[field].tolist()
    start = int(model.hfield_adr[field])
    heights = model.hfield_data[start : start + rows * columns] * top
    y, x = np.meshgrid(np.linspace(-half_y, half_y, rows), np.linspace(-half_x, half_x, columns), indexing="ij")
    here = (np.arange(rows - 1)[:, None] * columns + np.arange(columns - 1)).ravel()
    right, above = here + 1, here + columns
    triangles = np.concatenate([np.stack([here, right, above + 1], 1), np.stack([here, above + 1, above], 1)])
    return np.column_stack([x.ravel(), y.ravel(), heights]), triangles


_PRIMITIVES: dict[int, Callable[[float, float, float], Surface]] = {
    mujoco.mjtGeom.mjGEOM_PLANE: _plane,
    mujoco.mjtGeom.mjGEOM_BOX: _box,
    mujoco.mjtGeom.mjGEOM_SPHERE: sphere,
    mujoco.mjtGeom.mjGEOM_ELLIPSOID: _ellipsoid,
    mujoco.mjtGeom.mjGEOM_CAPSULE: _capsule,
    mujoco.mjtGeom.mjGEOM_CYLINDER: _cylinder,
}
