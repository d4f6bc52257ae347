"""Triangle surfaces of what MuJoCo draws: meshes, height fields and primitives. Needs trimesh, which viser brings."""

import mujoco
import numpy as np
from trimesh.creation import box, revolve

_GEOM = mujoco.mjtGeom
_SEGMENTS = 24
"""Corners of a circle."""

Surface = tuple[np.ndarray, np.ndarray]
"""Vertices [m], shape (num_vertices, 3), and triangles that index them, counter-clockwise seen from outside, shape
(num_triangles, 3)."""


def surface_of(model: mujoco.MjModel, kind: float, *about: float) -> Surface | None:
    """Return the surface of a kind of geom, in its own frame; None for an endless plane.

    `about` is the number of a mesh, a height field or a plane's geom, or radius and half length of a capsule. The
    others are as large as 1.
    """
    if kind == _GEOM.mjGEOM_HFIELD:
        return _height_field(model, int(about[0]))
    if kind == _GEOM.mjGEOM_PLANE:
        half_x, half_y, _ = model.geom_size[int(about[0])]
        square = np.array([[-half_x, -half_y, 0], [half_x, -half_y, 0], [half_x, half_y, 0], [-half_x, half_y, 0]])
        return (square, np.array([[0, 1, 2], [0, 2, 3]])) if min(half_x, half_y) > 0 else None
    if kind == _GEOM.mjGEOM_BOX:  # Sides that share no corner, so that the edges look sharp.
        return box((2, 2, 2)).triangles.reshape(-1, 3), np.arange(36).reshape(-1, 3)
    if kind in {_GEOM.mjGEOM_MESH, _GEOM.mjGEOM_SDF}:
        return _mesh(model, int(about[0]))
    revolved = revolve(_outline(kind, *about), sections=_SEGMENTS, process=False)
    return revolved.vertices, revolved.faces


def _outline(kind: float, radius: float = 1.0, half_length: float = 0.0) -> np.ndarray:
    """Return distances from the z axis and heights of what is revolved about it, from the lowest up. Shape (n, 2)."""
    # Each rim twice, for both sides of it: then it looks sharp.
    if kind == _GEOM.mjGEOM_CYLINDER:
        return np.array([(0, -1), (1, -1), (1, -1), (1, 1), (1, 1), (0, 1)])
    if kind == _GEOM.mjGEOM_ARROW:
        return np.array([(0, 0), (1, 0), (1, 0), (1, 0.8), (1, 0.8), (2, 0.8), (2, 0.8), (0, 1)])
    angles = np.linspace(0, np.pi / 2, _SEGMENTS // 4 + 1)
    upper = radius * np.column_stack([np.cos(angles), np.sin(angles)]) + (0, half_length)
    return np.concatenate([upper[::-1] * (1, -1), upper])


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
