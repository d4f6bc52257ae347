"""Scene geometry of a MuJoCo model as plain arrays, for the web viewer: surfaces, colours and poses.

Geoms that look alike share one surface. Of a texture only its mean colour is kept. Sites are spheres. Skins, flexes and
tendons are not drawn.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import mujoco
import numpy as np

from shoal.sim.render.marks import Mark, Sphere
from shoal.sim.render.surfaces import BY_MESH, surface_of
from shoal.sim.render.surroundings import GROUND

FIRST_HIDDEN_GROUP = 3
"""Geoms of this group and above are for collisions; MuJoCo's viewers hide them, and such sites, at first."""

_GREY = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo's default colour of a geom; a material's colour replaces it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One surface, and its geoms. Colours are red, green, blue and opacity, 0 to 1."""

    vertices: np.ndarray
    """In the geom's own frame [m]. Shape (num_vertices, 3)."""
    triangles: np.ndarray
    geoms: np.ndarray
    """Indices in the model. Shape (num_geoms,)."""
    colours: np.ndarray
    """Shape (num_geoms, 4)."""
    hidden: bool
    """Whether it is for collisions only."""


@dataclass(frozen=True, slots=True)
class Ground:
    """An infinite plane."""

    geom: int
    colour: tuple[float, ...]


class SceneGeometry:
    """Visible shapes of a model, and their poses for any joint positions."""

    def __init__(self, model: mujoco.MjModel) -> None:
        """Collect the shapes of a model."""
        self._model = model
        self._data = mujoco.MjData(model)
        self.shapes = _shapes_of(model)
        self.grounds = _grounds_of(model)
        self.moves = model.body_weldid[model.geom_bodyid] != 0
        """Geoms that are not fixed to the world. Shape (num_geoms,)."""
        self.has_free_joint = bool((model.jnt_type == mujoco.mjtJoint.mjJNT_FREE).any())
        self.mean_size = float(model.stat.meansize)
        """Mean size of geoms [m]."""
        self._sites = np.flatnonzero((model.site_group < FIRST_HIDDEN_GROUP) & (model.site_rgba[:, 3] > 0))
        self._solid = ~np.isin(model.geom_type, GROUND)
        self.is_shared = bool((model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD).any())
        """Whether all environments share one height field, each at a place of its own."""

    def poses(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions [m] and quaternions of all geoms, for joint positions of shape (num_envs, nq).

        Shapes (num_envs, num_geoms, 3) and (num_envs, num_geoms, 4), float32, the real part first.
        """
        ngeom = self._model.ngeom
        places, rotations = (np.empty((len(positions), ngeom, size), np.float32) for size in (3, 4))
        for env, data in enumerate(self._at(positions)):
            places[env], rotations[env] = data.geom_xpos, data.geom_xquat
        return places, rotations

    def _at(
        self, positions: Iterable[np.ndarray], compute: Callable[..., None] = mujoco.mj_kinematics
    ) -> Iterator[mujoco.MjData]:
        """Yield the scene's data at each of some joint positions, (nq,)."""
        for row in positions:
            self._data.qpos[:] = row
            compute(self._model, self._data)
            yield self._data

    def belongs(self, geoms: np.ndarray, body: str) -> np.ndarray:
        """Return whether each of some geoms is of a body by its name; all are, if that is empty. Shape (n,)."""
        bodies = self._model.geom_bodyid[geoms]
        return bodies == (self._model.body(body).id if body else bodies)

    def contacts(self, positions: np.ndarray) -> list[np.ndarray]:
        """Return the contact points of each environment [m], (n, 3), for joint positions of shape (num_envs, nq)."""
        return [data.contact.pos.copy().reshape(-1, 3) for data in self._at(positions, mujoco.mj_fwdPosition)]

    def sites(self, positions: np.ndarray) -> list[list[Mark]]:
        """Return the visible sites of each environment, for joint positions of shape (num_envs, nq)."""
        if not len(self._sites):
            return [[] for _ in positions]
        sizes, colours = self._model.site_size[:, 0], self._model.site_rgba
        return [
            [Sphere(data.site_xpos[i].copy(), sizes[i], tuple(colours[i])) for i in self._sites]
            for data in self._at(positions)
        ]

    def extent(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest corner of the bounding box without the ground [m], for positions (nq,)."""
        model, solid = self._model, self._solid
        data = next(self._at([positions]))
        if not solid.any():
            return np.full(3, -1.0), np.full(3, 1.0)
        turns = data.geom_xmat[solid].reshape(-1, 3, 3)
        middles = data.geom_xpos[solid] + np.einsum("gij,gj->gi", turns, model.geom_aabb[solid, :3])
        reaches = np.einsum("gij,gj->gi", np.abs(turns), model.geom_aabb[solid, 3:])
        return (middles - reaches).min(axis=0), (middles + reaches).max(axis=0)


def _shapes_of(model: mujoco.MjModel) -> list[Shape]:
    """Return the visible shapes of a model, without infinite planes."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for geom in range(model.ngeom):
        if not _is_infinite(model, geom) and _colour_of(model, geom)[3] > 0:
            alike.setdefault(_surface_key(model, geom), []).append(geom)
    shapes: list[Shape] = []
    for geoms in alike.values():
        vertices, triangles = surface_of(model, geoms[0])
        colours = np.array([_colour_of(model, geom) for geom in geoms])
        hidden = bool(model.geom_group[geoms[0]] >= FIRST_HIDDEN_GROUP)
        shapes.append(Shape(vertices.astype(np.float32), triangles, np.array(geoms), colours, hidden))
    return shapes


def _grounds_of(model: mujoco.MjModel) -> list[Ground]:
    """Return the visible infinite planes of a model."""
    geoms = (geom for geom in range(model.ngeom) if _is_infinite(model, geom))
    grounds = (Ground(geom, _colour_of(model, geom)) for geom in geoms if model.geom_group[geom] < FIRST_HIDDEN_GROUP)
    return [ground for ground in grounds if ground.colour[3] > 0]


def _is_infinite(model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom is a plane that MuJoCo draws infinite in some direction."""
    return bool(model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_PLANE and (model.geom_size[geom, :2] <= 0).any())


def _surface_key(model: mujoco.MjModel, geom: int) -> tuple[object, ...]:
    """Return a key that is equal for geoms that can share a surface."""
    kind = int(model.geom_type[geom])
    hidden = bool(model.geom_group[geom] >= FIRST_HIDDEN_GROUP)
    if kind in {*BY_MESH, mujoco.mjtGeom.mjGEOM_HFIELD}:
        return kind, hidden, int(model.geom_dataid[geom])
    return kind, hidden, *model.geom_size[geom].tolist()


def _colour_of(model: mujoco.MjModel, geom: int) -> tuple[float, ...]:
    """Return a geom's colour by MuJoCo's rule: its own one, unless that is the default and it has a material."""
    own = tuple(model.geom_rgba[geom].tolist())
    material = int(model.geom_matid[geom])
    if material < 0 or own != _GREY:
        return own
    *rgb, opacity = model.mat_rgba[material].tolist()
    return (*(np.array(rgb) * _mean_of_texture(model, material)).tolist(), opacity)


def _mean_of_texture(model: mujoco.MjModel, material: int) -> np.ndarray:
    """Return the mean colour of a material's texture, 0 to 1; white where it has none. Shape (3,)."""
    texture = int(model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB])
    if texture < 0:
        return np.ones(3)
    channels, start = int(model.tex_nchannel[texture]), int(model.tex_adr[texture])
    texels = int(model.tex_height[texture]) * int(model.tex_width[texture])
    pixels = model.tex_data[start : start + texels * channels].reshape(texels, channels)
    return np.broadcast_to(pixels[:, :3].mean(axis=0) / 255.0, 3)
