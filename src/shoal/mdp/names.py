"""Selections by name: patterns of joints, bodies, geoms, sites, actuators and sensors of a model, resolved once."""

# pyright: reportInvalidTypeForm=false

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mujoco
import numpy as np
import warp as wp

from shoal.errors import ShoalError, UsageError, did_you_mean

NO_LIMIT = 1e6
"""Limit of what has none."""


@wp.struct
class Joint:
    """A joint with one degree of freedom."""

    qpos: wp.int32
    """Column of its position in ``qpos``."""
    dof: wp.int32
    """Column of its speed in ``qvel``."""
    default_pos: wp.float32
    """Its position in the default pose [rad or m]."""
    lower: wp.float32
    """Lowest position [rad or m]."""
    upper: wp.float32
    """Highest position [rad or m]."""


@wp.struct
class Actuator:
    """An actuator of a joint."""

    index: wp.int32
    """Column of its control in ``ctrl``."""
    qpos: wp.int32
    """Column of its joint's position in ``qpos``."""
    dof: wp.int32
    """Column of its joint's speed in ``qvel``."""
    default_pos: wp.float32
    """Its joint's position in the default pose [rad or m]."""
    limit: wp.float32
    """Largest force or torque [N or N m]."""
    is_dc_motor: wp.int32
    """Whether it is MuJoCo's DC motor, and so its torque falls with the speed."""


@wp.struct
class Geom:
    """A geom."""

    index: wp.int32
    body: wp.int32
    radius: wp.float32
    """The first of its sizes: the radius of a sphere or capsule [m]."""


_OBJECTS = {
    "joint": (mujoco.mjtObj.mjOBJ_JOINT, "njnt"),
    "actuator": (mujoco.mjtObj.mjOBJ_ACTUATOR, "nu"),
    "geom": (mujoco.mjtObj.mjOBJ_GEOM, "ngeom"),
    "body": (mujoco.mjtObj.mjOBJ_BODY, "nbody"),
    "site": (mujoco.mjtObj.mjOBJ_SITE, "nsite"),
    "sensor": (mujoco.mjtObj.mjOBJ_SENSOR, "nsensor"),
}
"""MuJoCo's type of each kind, and the field of `MjModel` with their number."""
_PLURALS = {"bodies": "body"} | {f"{kind}s": kind for kind in _OBJECTS if kind != "body"}
_STRUCTS = {"joint": Joint, "actuator": Actuator, "geom": Geom}
_SHOWN = 12


def contact_sensor(body: str, kind: str = "contact") -> str:
    """Return the name of the sensor of a body's contacts, or of another kind: `self contact`."""
    return f"{kind} {body}"


def kind_of(parameter: str) -> tuple[str, bool] | None:
    """Return what a parameter of this name selects, by its last word, and whether it selects several; or None."""
    word = parameter.rpartition("_")[2]
    if word in _PLURALS:
        return _PLURALS[word], True
    return (word, False) if word in _OBJECTS else None


class Names:
    """The names of a model, and its default pose."""

    def __init__(self, model: mujoco.MjModel, home: np.ndarray, roles: Mapping[str, str]) -> None:
        """Prepare. `home` is the default pose, (nq,); `roles` are patterns that others may contain, as ``{feet}``."""
        self.model = model
        self.home = home
        self.roles = roles

    def select(self, kind: str, patterns: str | Iterable[str], path: str) -> list[int]:
        """Return the indices of all objects whose names match, in the model's order, see `matching`."""
        return matching(kind, self.names(kind), patterns, path, self.roles)

    def names(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind; a joint with more than one degree of freedom has none."""
        objects, count = _OBJECTS[kind]
        indices = range(getattr(self.model, count))
        names = [mujoco.mj_id2name(self.model, objects, index) or "" for index in indices]
        if kind == "joint":
            names = [name if self._is_scalar(index) else "" for index, name in enumerate(names)]
        return names

    def rows(self, kind: str, indices: list[int]) -> tuple[Any, np.ndarray]:
        """Return the type and values of an array with one entry for each selected object."""
        if kind == "sensor":
            sizes = self.model.sensor_dim[indices]
            return wp.int32, np.concatenate(
                [np.arange(size) + start for size, start in zip(sizes, self.model.sensor_adr[indices], strict=True)]
            ).astype(np.int32)
        if kind not in _STRUCTS:
            return wp.int32, np.array(indices, dtype=np.int32)
        struct: Any = _STRUCTS[kind]
        rows: Any = np.zeros(len(indices), dtype=struct.numpy_dtype())
        for row, index in zip(rows, indices, strict=True):
            for name, value in getattr(self, f"_{kind}")(index).items():
                row[name] = value
        return struct, rows

    @property
    def begins_with_free_joint(self) -> bool:
        """Whether the model begins with a free joint."""
        return bool(self.model.njnt) and self.model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE

    def numbers_of(self, sensors: list[int]) -> tuple[str, ...]:
        """Return a name for each number of some sensors."""
        names, sizes = self.names("sensor"), self.model.sensor_dim
        return tuple(f"{names[each]} {part}" for each in sensors for part in range(sizes[each]))

    def contact_sensors(self, bodies: Iterable[str], path: str, kind: str = "contact") -> np.ndarray:
        """Return where in ``sensordata`` the contacts of bodies begin, see `shoal.mdp.contacts.add_contact_sensors`.

        Raises:
            ShoalError: The model has no such sensor.
        """
        names = [contact_sensor(body, kind) for body in bodies]
        missing = [name for name in names if mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_SENSOR, name) < 0]
        if missing:
            func = "touches_itself" if kind.startswith("self") else "touches"
            raise ShoalError(
                f"{path} reads the sensor '{missing[0]}', which the model does not have: declare contacts={{\"name\": "
                f'Contact("{func}", bodies=...)}} of these bodies, and call add_contact_sensors() in build_model.'
            )
        return np.array([self.model.sensor(name).adr[0] for name in names], dtype=np.int32)

    def _is_scalar(self, joint: int) -> bool:
        return int(self.model.jnt_type[joint]) in (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))

    def _joint(self, index: int) -> dict[str, float]:
        model = self.model
        qpos = int(model.jnt_qposadr[index])
        lower, upper = model.jnt_range[index] if model.jnt_limited[index] else (-NO_LIMIT, NO_LIMIT)
        return {
            "qpos": qpos,
            "dof": int(model.jnt_dofadr[index]),
            "default_pos": self.home[qpos],
            "lower": lower,
            "upper": upper,
        }

    def _actuator(self, index: int) -> dict[str, float]:
        model = self.model
        joint = self._joint(int(model.actuator_trnid[index, 0]))
        limit = model.actuator_forcerange[index, 1] if model.actuator_forcelimited[index] else NO_LIMIT
        is_dc_motor = model.actuator_gaintype[index] == mujoco.mjtGain.mjGAIN_DCMOTOR
        own = {"index": index, "limit": limit, "is_dc_motor": is_dc_motor}
        return own | {name: joint[name] for name in ("qpos", "dof", "default_pos")}

    def _geom(self, index: int) -> dict[str, float]:
        return {"index": index, "body": int(self.model.geom_bodyid[index]), "radius": self.model.geom_size[index, 0]}


def matching(
    kind: str, names: Sequence[str], patterns: str | Iterable[str], path: str, roles: Mapping[str, str]
) -> list[int]:
    """Return where in the names of a kind those are that match, in their order.

    Raises:
        UsageError: A pattern matches nothing, or is none.
    """
    found: set[int] = set()
    listed = (patterns,) if isinstance(patterns, str) else patterns
    if not isinstance(listed, tuple | list) or not all(isinstance(each, str) for each in listed):
        raise UsageError(f"{path} is {patterns!r}, but must be a pattern of names, or several.")
    for each in listed:
        pattern = _filled(each, path, roles)
        try:
            those = {index for index, name in enumerate(names) if name and re.fullmatch(pattern, name)}
        except re.error as error:
            raise UsageError(f"{path} is '{pattern}', which is no pattern that Python understands: {error}.") from error
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
