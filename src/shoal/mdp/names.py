"""Selections by name: patterns of joints, bodies, geoms and other objects of a model, resolved once."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import mujoco
import numpy as np
import warp as wp

from shoal.errors import UsageError, did_you_mean
from shoal.mdp.actuators import NO_LIMIT, SCALAR, acts_on_scalar_joint
from shoal.mdp.annotations import Actuator
from shoal.mdp.patterns import is_of, matches
from shoal.mdp.shapes import SOLID, hulls_of

OBJECTS = {
    "joint": (mujoco.mjtObj.mjOBJ_JOINT, "njnt"),
    "actuator": (mujoco.mjtObj.mjOBJ_ACTUATOR, "nactuator"),
    "geom": (mujoco.mjtObj.mjOBJ_GEOM, "ngeom"),
    "body": (mujoco.mjtObj.mjOBJ_BODY, "nbody"),
    "site": (mujoco.mjtObj.mjOBJ_SITE, "nsite"),
    "sensor": (mujoco.mjtObj.mjOBJ_SENSOR, "nsensor"),
    "tendon": (mujoco.mjtObj.mjOBJ_TENDON, "ntendon"),
    "pair": (mujoco.mjtObj.mjOBJ_PAIR, "npair"),
    "camera": (mujoco.mjtObj.mjOBJ_CAMERA, "ncam"),
    "light": (mujoco.mjtObj.mjOBJ_LIGHT, "nlight"),
    "material": (mujoco.mjtObj.mjOBJ_MATERIAL, "nmat"),
}
"""MuJoCo's type of each kind, and the field of `MjModel` with their number."""
_SHOWN = 12


class Names:
    """The names of a model, and its default pose."""

    def __init__(
        self, model: mujoco.MjModel, home: np.ndarray, roles: Mapping[str, str], objects: Collection[str] = ()
    ) -> None:
        """Prepare. `home` is the default pose, (nq,); `roles` are patterns that others may contain, as ``{feet}``.

        `objects` are the names of those in the scene, see `matching`.
        """
        self.model = model
        self.home = home
        self.roles = roles
        self.objects = objects

    @cached_property
    def hulls(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The convex hulls of all meshes, see `hulls_of`."""
        return hulls_of(self.model)

    def select(self, kind: str, patterns: str | Iterable[str], path: str) -> list[int]:
        """Return the indices of all objects whose names match, in the model's order, see `matching`.

        Raises:
            UsageError: Actuators have no column of their own.
        """
        if kind == "actuator" and self.model.nu != self.model.nactuator:
            raise UsageError(f"{path} cannot select actuators, since one has several controls: split it in the model.")
        return matching(kind, self.names(kind), patterns, path, self.roles, self.objects)

    def names(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind; a joint with more than one degree of freedom has none."""
        objects, count = OBJECTS[kind]
        indices = range(getattr(self.model, count))
        names = [mujoco.mj_id2name(self.model, objects, index) or "" for index in indices]
        if kind == "joint":
            names = [name if self.model.jnt_type[index] in SCALAR else "" for index, name in enumerate(names)]
        return names

    def rows(self, kind: str, indices: list[int], path: str, entry: Any = None) -> tuple[Any, np.ndarray]:
        """Return the type and values of an array with one entry for each selected object, for the parameter at `path`.

        `entry` is the struct of an entry, or None for indices.

        Raises:
            UsageError: An object has no such entry, as an actuator of a tendon has no joint.
        """
        if kind == "sensor":
            sizes = self.model.sensor_dim[indices]
            return wp.int32, np.concatenate(
                [np.arange(size) + start for size, start in zip(sizes, self.model.sensor_adr[indices], strict=True)]
            ).astype(np.int32)
        if entry is None:
            return wp.int32, np.array(indices, dtype=np.int32)
        values = getattr(self, f"_{entry.key.lower()}")
        rows: Any = np.zeros(len(indices), dtype=entry.numpy_dtype())
        for row, index in zip(rows, indices, strict=True):
            for name, value in values(index, path).items():
                row[name] = value
        if entry is Actuator:
            rows["share"] = 1.0 / (rows["dof"][:, None] == rows["dof"]).sum(axis=1)
        return entry, rows

    def root(self, pattern: Any, path: str) -> int | None:
        """Return the body that a pattern matches, or without one that of the first joint; None without a free joint."""
        model = self.model
        joints = [0] if not pattern else model.body_jntadr[self.select("body", pattern, path)].tolist()
        is_free = model.njnt and len(joints) == 1 and model.jnt_type[joints[0]] == mujoco.mjtJoint.mjJNT_FREE
        return int(model.jnt_bodyid[joints[0]]) if is_free else None

    def numbers_of(self, sensors: list[int]) -> tuple[str, ...]:
        """Return a name for each number of some sensors."""
        names, sizes = self.names("sensor"), self.model.sensor_dim
        return tuple(f"{names[each]} {part}" for each in sensors for part in range(sizes[each]))

    def _joint(self, index: int, path: str) -> dict[str, float]:
        del path
        model = self.model
        qpos = int(model.jnt_qposadr[index])
        lower, upper = model.jnt_range[index] if model.jnt_limited[index] else (-NO_LIMIT, NO_LIMIT)
        return {
            "index": index,
            "qpos": qpos,
            "dof": int(model.jnt_dofadr[index]),
            "default_pos": self.home[qpos],
            "lower": lower,
            "upper": upper,
        }

    def _actuator(self, index: int, path: str) -> dict[str, float]:
        model = self.model
        if not acts_on_scalar_joint(model, index):
            raise UsageError(
                f"{path} selects {self.names('actuator')[index]}, which acts on no hinge or slide joint: select others."
            )
        joint = self._joint(int(model.actuator_trnid[index, 0]), path)
        own = {
            "index": index,
            "gear": model.actuator_gear[index, 0],
            "gain": model.actuator_gainprm[index, 0],
            "is_dc_motor": model.actuator_gaintype[index] == mujoco.mjtGain.mjGAIN_DCMOTOR,
        }
        return own | {name: joint[name] for name in ("qpos", "dof", "default_pos")}

    def _geom(self, index: int, path: str) -> dict[str, float]:
        del path
        return {"index": index, "body": int(self.model.geom_bodyid[index])}

    def _solid(self, index: int, path: str) -> dict[str, Any]:
        model = self.model
        shape, mesh = int(model.geom_type[index]), int(model.geom_dataid[index])
        if shape not in SOLID:
            kind = mujoco.mjtGeom(shape).name.removeprefix("mjGEOM_").lower()
            raise UsageError(
                f"{path} selects {self.names('geom')[index]}, which is a {kind}: select spheres, capsules, "
                "cylinders, ellipsoids, boxes or meshes."
            )
        _, first, points = self.hulls
        hull = {"first": first[mesh], "points": points[mesh]} if shape == mujoco.mjtGeom.mjGEOM_MESH else {}
        return {"index": index, "shape": shape, "size": model.geom_size[index], **hull}


def matching(
    kind: str,
    names: Sequence[str],
    patterns: str | Iterable[str],
    path: str,
    roles: Mapping[str, str],
    objects: Collection[str] = (),
) -> list[int]:
    """Return where in the names of a kind those are that match, in their order.

    A pattern without a slash selects nothing of `objects`: ``.*`` is all of the robot.

    Raises:
        UsageError: A pattern matches nothing, or is none.
    """
    found: set[int] = set()
    listed = (patterns,) if isinstance(patterns, str) else patterns
    if not isinstance(listed, tuple | list) or not all(isinstance(each, str) for each in listed):
        raise UsageError(f"{path} is {patterns!r}, but must be a pattern of names, or several.")
    for each in listed:
        pattern = _filled(each, path, roles)
        others = () if "/" in pattern else objects
        those = {
            at for at, name in enumerate(names) if name and not is_of(name, others) and matches(pattern, name, path)
        }
        if not those:
            named = [name for name in names if name]
            known = ", ".join(named[:_SHOWN]) + (", ..." if len(named) > _SHOWN else "")
            hint = did_you_mean(pattern, named) or (f" It has: {known}." if named else " It has none with a name.")
            raise UsageError(f"{path} is '{pattern}', which matches no {kind} of the model.{hint}")
        found |= those
    return sorted(found)


def _filled(pattern: str, path: str, roles: Mapping[str, str]) -> str:
    """Replace the names of roles in braces."""

    def role(match: re.Match[str]) -> str:
        if match[1] not in roles:
            raise UsageError(
                f"{path} is '{pattern}', but the robot has no '{match[1]}'.{did_you_mean(match[1], roles)}"
            )
        return f"(?:{roles[match[1]]})"

    return re.sub(r"\{([a-z_]+)\}", role, pattern)
