"""Shapes of geoms: how far each reaches from its centre in a direction."""

import mujoco
import numpy as np
import warp as wp

_SPHERE = wp.constant(int(mujoco.mjtGeom.mjGEOM_SPHERE))
_CAPSULE = wp.constant(int(mujoco.mjtGeom.mjGEOM_CAPSULE))
_CYLINDER = wp.constant(int(mujoco.mjtGeom.mjGEOM_CYLINDER))
_ELLIPSOID = wp.constant(int(mujoco.mjtGeom.mjGEOM_ELLIPSOID))
_BOX = wp.constant(int(mujoco.mjtGeom.mjGEOM_BOX))
SOLID = (*map(int, (_SPHERE, _CAPSULE, _CYLINDER, _ELLIPSOID, _BOX)), int(mujoco.mjtGeom.mjGEOM_MESH))
"""MuJoCo's types of geoms that have such a shape."""


@wp.struct
class Solid:
    """A geom with its shape: a sphere, capsule, cylinder, ellipsoid, box, or the convex hull of a mesh."""

    index: wp.int32
    shape: wp.int32
    """MuJoCo's type of geom."""
    size: wp.vec3
    """MuJoCo's sizes [m]."""
    first: wp.int32
    """Where in `hulls` the points of a mesh begin."""
    points: wp.int32
    """Number of these points."""


@wp.func
def reach(solid: Solid, axes: wp.mat33, direction: wp.vec3, hulls: wp.array[wp.vec3]) -> wp.float32:
    """Return how far a geom reaches from its centre in a direction of length 1 [m]. `axes` are its own in the world."""
    along = wp.transpose(axes) * direction
    size = solid.size
    if solid.shape == _SPHERE:
        return size[0]
    if solid.shape == _CAPSULE:
        return size[0] + size[1] * wp.abs(along[2])
    if solid.shape == _CYLINDER:
        return size[0] * wp.length(wp.vec2(along[0], along[1])) + size[1] * wp.abs(along[2])
    if solid.shape == _ELLIPSOID:
        return wp.length(wp.cw_mul(size, along))
    if solid.shape == _BOX:
        return wp.dot(size, wp.vec3(wp.abs(along[0]), wp.abs(along[1]), wp.abs(along[2])))
    farthest = wp.float32(0.0)  # A mesh's centre is in its hull.
    for point in range(solid.points):
        farthest = wp.max(farthest, wp.dot(hulls[solid.first + point], along))
    return farthest


def hulls_of(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points of the convex hulls of all meshes, (n, 3), and of each mesh the first, and their number, (nmesh,).

    They are in the frames of the geoms [m]. Of a mesh without a hull they are all of its points.
    """
    hulls: list[np.ndarray] = [np.zeros((0, 3))]
    for mesh in range(model.nmesh):
        points = model.mesh_vert[model.mesh_vertadr[mesh] :][: model.mesh_vertnum[mesh]]
        if (graph := model.mesh_graphadr[mesh]) >= 0:  # It begins with the numbers of points and faces.
            count = model.mesh_graph[graph]
            points = points[model.mesh_graph[graph + 2 + count :][:count]]
        hulls.append(points)
    counts = np.array([len(each) for each in hulls[1:]], dtype=np.int32)
    return np.concatenate(hulls).astype(np.float32), np.cumsum(counts) - counts, counts
