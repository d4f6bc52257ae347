"""What MuJoCo draws of several environments, as plain arrays for the web viewer: kinds of surfaces, and instances.

MuJoCo's abstract scene says what is drawn, where, and in which colour, as in its own viewers: geoms, sites, tendons,
contacts and marks. Of a texture only its mean colour is kept. Skins, flexes and lines are left out.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import mujoco
import numpy as np
from numpy.lib.stride_tricks import as_strided

from shoal.sim.render.marks import Mark, Pen

_GEOM = mujoco.mjtGeom
_UNITS = frozenset(
    map(int, (_GEOM.mjGEOM_SPHERE, _GEOM.mjGEOM_ELLIPSOID, _GEOM.mjGEOM_BOX, _GEOM.mjGEOM_CYLINDER, _GEOM.mjGEOM_ARROW))
)
"""Kinds whose instances have the same surface, scaled."""
_BY_DATA = frozenset(map(int, (_GEOM.mjGEOM_MESH, _GEOM.mjGEOM_SDF, _GEOM.mjGEOM_HFIELD)))
_MOST_GEOMS = 10_000
"""Room for what is drawn of an environment, as in MuJoCo's renderer."""
_FIRST_HIDDEN_GROUP = 3
"""Geoms of this group and above are for collisions; MuJoCo's viewers hide them at first."""

Kind = tuple[float, ...]
"""What `shoal.sim.render.surfaces.surface_of` takes; empty for what is left out."""


State = Mapping[str, np.ndarray]
"""Further fields of `MjData` by name, see `Picture.state`. Shapes (num_envs, n)."""
_NONE: State = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Shown:
    """What is drawn beside the visible geoms."""

    collisions: bool = False
    """Geoms for collisions."""
    forces: bool = False
    """Forces at contacts, which need the state."""
    frames: bool = False
    """Frames of bodies."""


@dataclass(frozen=True, slots=True)
class Instances:
    """Where, and in which colours, one surface is drawn."""

    envs: np.ndarray
    """The environment of each. Shape (n,)."""

    positions: np.ndarray
    """[m]. Shape (n, 3)."""
    turns: np.ndarray
    """Rotation matrices. Shape (n, 3, 3)."""
    scales: np.ndarray
    """Shape (n, 3)."""
    colours: np.ndarray
    """Red, green, blue and opacity, 0 to 1. Shape (n, 4)."""


class Drawing:
    """Draws all that moves, with contacts and marks; or all that does not."""

    def __init__(self, model: mujoco.MjModel, *, moving: bool, shown: Shown = Shown()) -> None:
        category = mujoco.mjtCatBit
        self._categories = int(
            category.mjCAT_DYNAMIC.value | category.mjCAT_DECOR.value if moving else category.mjCAT_STATIC.value
        )
        self._model, self._data = model, mujoco.MjData(model)
        self._camera, self._option, self._pen = mujoco.MjvCamera(), mujoco.MjvOption(), Pen(model)
        self._option.flags[mujoco.mjtVisFlag.mjVIS_CONTACTPOINT] = True
        self._option.flags[mujoco.mjtVisFlag.mjVIS_CONTACTFORCE] = shown.forces
        self._option.geomgroup[_FIRST_HIDDEN_GROUP:] = shown.collisions
        self._option.frame = mujoco.mjtFrame.mjFRAME_BODY if shown.frames else mujoco.mjtFrame.mjFRAME_NONE
        self._scene = mujoco.MjvScene(model, maxgeom=_MOST_GEOMS)
        # All geoms of the scene at once: they lie in one array of structures.
        first, second, *_ = self._scene.geoms
        step = second.pos.ctypes.data - first.pos.ctypes.data
        self._columns = [
            as_strided(field, (_MOST_GEOMS, field.size), (step, field.itemsize))
            for field in (first.pos, first.mat, first.size, first.rgba)
        ]
        self._kinds = _Kinds(model)
        self._tints = np.array([*(_mean_of_texture(model, each) for each in range(model.nmat)), np.ones(3)])
        """Of each material; the last one where there is none."""

    def at(self, positions: np.ndarray, state: State = _NONE) -> Iterator[mujoco.MjData]:
        """Yield the data at each of some joint positions, (num_envs, nq); forces only with the state, too."""
        for env, row in enumerate(positions):
            self._data.qpos[:] = row
            for name, rows in state.items():
                getattr(self._data, name)[:] = rows[env]
            (mujoco.mj_forward if state else mujoco.mj_fwdPosition)(self._model, self._data)
            yield self._data

    def instances(
        self, positions: np.ndarray, offsets: np.ndarray, marks: Sequence[Sequence[Mark]] = (), state: State = _NONE
    ) -> dict[tuple[Kind, bool], Instances]:
        """Return what is drawn, by kind and by whether it is transparent.

        Joint positions have the shape (num_envs, nq), and the offset of each environment [m] is (num_envs, 3).
        """
        kinds: list[Kind] = []
        rows: list[np.ndarray] = []
        for env, data in enumerate(self.at(positions, state)):
            mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, self._categories, self._scene)
            self._pen.draw(marks[env] if marks else (), self._scene)
            geoms = self._scene.geoms[: self._scene.ngeom]
            kinds += [self._kinds[geom.type, geom.objtype, geom.objid] for geom in geoms]
            rows.append(np.concatenate([column[: len(geoms)] for column in self._columns], axis=1))
            rows[-1][:, :3] += offsets[env]
            rows[-1][:, 15:18] *= self._tints[[geom.matid for geom in geoms]]
        table, envs = np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        indices: dict[tuple[Kind, bool], list[int]] = defaultdict(list)
        for at, key in enumerate(zip(kinds, (table[:, 18] < 1).tolist(), strict=True)):
            indices[key].append(at)
        found: dict[tuple[Kind, bool], Instances] = {}
        for (kind, clear), at in indices.items():
            if kind:
                own = table[at]
                scales = own[:, 12:15] if kind[0] in _UNITS else np.ones((len(at), 3), np.float32)
                turns = own[:, 3:12].reshape(-1, 3, 3)
                found[kind, clear] = Instances(envs[at], own[:, :3], turns, scales, own[:, 15:])
        return found


class _Kinds(dict[tuple[int, int, int], Kind]):
    """The kind of each geom of a scene, by its type, and by type and number of the object that it stands for."""

    def __init__(self, model: mujoco.MjModel) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, key: tuple[int, int, int]) -> Kind:
        kind, object_type, number = key
        found: Kind = ()
        if kind in _UNITS:
            found = (kind,)
        elif kind in _BY_DATA:
            found = (kind, int(self._model.geom_dataid[number]))
        elif kind == _GEOM.mjGEOM_PLANE:
            found = (kind, number)
        elif kind == _GEOM.mjGEOM_CAPSULE and object_type == mujoco.mjtObj.mjOBJ_TENDON:
            found = (int(_GEOM.mjGEOM_CYLINDER),)  # Its length changes: scaled ends are no spheres.
        elif kind == _GEOM.mjGEOM_CAPSULE:
            is_site = object_type == mujoco.mjtObj.mjOBJ_SITE
            found = (kind, *(self._model.site_size if is_site else self._model.geom_size)[number, :2].tolist())
        self[key] = found
        return found


def _mean_of_texture(model: mujoco.MjModel, material: int) -> np.ndarray:
    """Return the mean colour of a material's texture, 0 to 1; white where it has none. Shape (3,)."""
    texture = int(model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB])
    if texture < 0:
        return np.ones(3)
    channels, start = int(model.tex_nchannel[texture]), int(model.tex_adr[texture])
    texels = int(model.tex_height[texture]) * int(model.tex_width[texture])
    pixels = model.tex_data[start : start + texels * channels].reshape(texels, channels)
    return np.broadcast_to(pixels[:, :3].mean(axis=0) / 255.0, 3)


def actuator_limits(model: mujoco.MjModel) -> dict[str, float]:
    """Return the largest force or torque of each actuator [N or Nm], by its name; infinite where none is declared."""
    limits: dict[str, float] = {}
    for index in range(model.nu):
        actuator, joint = model.actuator(index), int(model.actuator_trnid[index, 0])
        limit = np.abs(model.actuator_forcerange[index]).max() if model.actuator_forcelimited[index] else np.inf
        is_of_joint = model.actuator_trntype[index] == mujoco.mjtTrn.mjTRN_JOINT
        if is_of_joint and model.jnt_actfrclimited[joint] and (gear := abs(model.actuator_gear[index, 0])):
            limit = min(limit, np.abs(model.jnt_actfrcrange[joint]).max() / gear)
        limits[actuator.name or (model.joint(joint).name if is_of_joint else "") or f"actuator {index}"] = float(limit)
    return limits
