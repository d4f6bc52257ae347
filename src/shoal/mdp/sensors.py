"""Sensors that a configuration declares, added to a model: MuJoCo's of contacts, and all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import warp as wp

from shoal.errors import ShoalError, UsageError, did_you_mean
from shoal.mdp.annotations import ContactData, Geom, Takes
from shoal.mdp.binding import Binder, Bound
from shoal.mdp.cameras import CameraTerm
from shoal.mdp.config import TermsConfig
from shoal.mdp.contacts import touches, touches_by_physics_step
from shoal.mdp.names import matching
from shoal.mdp.terms import BuiltinSensorTerm, ContactTerm, Term

if TYPE_CHECKING:
    from shoal.sim.engines.engine import Engine

_OBJECTS = {
    "body": ("bodies", mujoco.mjtObj.mjOBJ_XBODY),
    "subtree": ("bodies", mujoco.mjtObj.mjOBJ_BODY),
    "site": ("sites", mujoco.mjtObj.mjOBJ_SITE),
    "geom": ("geoms", mujoco.mjtObj.mjOBJ_GEOM),
    "joint": ("joints", mujoco.mjtObj.mjOBJ_JOINT),
    "actuator": ("actuators", mujoco.mjtObj.mjOBJ_ACTUATOR),
    "tendon": ("tendons", mujoco.mjtObj.mjOBJ_TENDON),
    "camera": ("cameras", mujoco.mjtObj.mjOBJ_CAMERA),
}
"""Where a spec has the objects that a sensor is of, and MuJoCo's type of them."""
_REFERENCES = {f"reference_{kind}": where for kind, where in _OBJECTS.items()}
_SECONDARY = {
    "secondary_body": ("bodies", mujoco.mjtObj.mjOBJ_BODY),
    "secondary_geom": ("geoms", mujoco.mjtObj.mjOBJ_GEOM),
    "secondary_subtree": ("bodies", mujoco.mjtObj.mjOBJ_XBODY),
}
_PRIMARY: dict[str, Any] = dict(zip(("bodies", "geoms", "subtrees"), _SECONDARY.values(), strict=True))
"""The same of contacts, whose sensors have another type of bodies and subtrees."""
CONTACT_FIELDS = {"found": 1, "force": 3, "torque": 3, "dist": 1, "pos": 3, "normal": 3, "tangent": 3}
"""Numbers of each field of MuJoCo's contact sensor, in its order."""
_REDUCE = ("none", "mindist", "maxforce", "netforce")
"""In MuJoCo's order."""


class _Sensors:
    """Adds sensors to a model."""

    def __init__(self, spec: mujoco.MjSpec, config: TermsConfig) -> None:
        self._spec = spec
        self._roles, self._objects = config.named_roles(), config.terms("objects")
        first = next(iter(spec.joints), None)  # As `RobotTask` has it.
        if first is not None and first.type == mujoco.mjtJoint.mjJNT_FREE:
            self._roles |= {"base": first.parent.name}

    def selected(self, path: str, term: Term, known: Mapping[str, Any]) -> tuple[list[str], Any]:
        """Return the names of what the one parameter of `known` that is given selects, and its type; none without."""
        given = [name for name in term.parameters if name in known]
        if not given:
            return [], None
        if len(given) > 1:
            raise UsageError(f"{path} has both {' and '.join(given)}: give one of them.")
        plural, kind = known[given[0]]
        names = [each.name for each in getattr(self._spec, plural)]
        where, patterns = f"{path}.{given[0]}", getattr(term, given[0])
        found = matching(
            "body" if plural == "bodies" else plural[:-1], names, patterns, where, self._roles, self._objects
        )
        if known is not _PRIMARY and len(found) > 1:
            listed = ", ".join(names[at] for at in found)
            raise UsageError(
                f"{where} is '{patterns}', which matches more than one ({listed}), but a sensor of MuJoCo's takes one: "
                "name one, or a subtree that has all, or declare several."
            )
        return [names[at] for at in found], kind

    def add(self, path: str, term: Term, kinds: Mapping[str, Any], others: Mapping[str, Any], **sensor: Any) -> None:
        """Add a sensor for each selected thing of `kinds`, relative to one of `others`; of contacts named by it too."""
        known = [*kinds, *others, *(["sites"] if kinds is _PRIMARY else [])]
        for each in term.parameters:
            if each not in known:
                hint = did_you_mean(each, known)
                raise UsageError(f"{path}.{each} is given, but a sensor has no such parameter.{hint}")
        (names, kind), (references, other) = (self.selected(path, term, each) for each in (kinds, others))
        if references:
            sensor |= {"reftype": other, "refname": references[0]}
        name = path.partition(".")[2]
        if kinds is _PRIMARY and not names:
            raise UsageError(f"{path} has no contacts: give bodies, geoms or subtrees.")
        for each in names:
            own = f"{name} {each}" if kinds is _PRIMARY else name
            self._spec.add_sensor(name=own, objtype=kind, objname=each, **sensor)
        if not names:
            self._spec.add_sensor(name=name, **sensor)

    def add_camera(self, path: str, term: CameraTerm) -> None:
        """Add a camera, unless it is one of the model."""
        usual = CameraTerm()
        given = [each for each in ("parent_body", "pos", "quat", "fovy") if getattr(term, each) != getattr(usual, each)]
        if unknown := next(iter(term.parameters), None):
            hint = did_you_mean(unknown, CameraTerm.__dataclass_fields__)
            raise UsageError(f"{path}.{unknown} is given, but a camera has no such parameter.{hint}")
        if term.camera_name and given:
            raise UsageError(f"{path} has camera_name, and {given[0]} of a new camera: give one of them.")
        if term.camera_name:
            return
        bodies = self._spec.bodies
        parent = bodies[0]
        if term.parent_body:
            names = [each.name for each in bodies]
            where = f"{path}.parent_body"
            found = matching("body", names, term.parent_body, where, self._roles, self._objects)
            if len(found) > 1:
                listed = ", ".join(names[at] for at in found)
                raise UsageError(
                    f"{where} is '{term.parent_body}', which matches more than one body ({listed}): name one."
                )
            parent = bodies[found[0]]
        name = path.partition(".")[2]
        parent.add_camera(name=name, pos=term.pos, quat=term.quat, fovy=term.fovy)


def add_sensors(spec: mujoco.MjSpec, config: TermsConfig) -> None:
    """Add the sensors that a configuration declares, and those of its contacts that are not functions.

    Raises:
        UsageError: A pattern matches nothing, or there is no such sensor or field.
    """
    sensors = _Sensors(spec, config)
    members = mujoco.mjtSensor.__members__.items()
    types = {name.removeprefix("mjSENS_").lower().replace("actfrc", "actuatorfrc"): kind for name, kind in members}
    for name, term in config.terms("sensors").items():
        if isinstance(term, CameraTerm):
            sensors.add_camera(f"sensors.{name}", term)
        if not isinstance(term, BuiltinSensorTerm):
            continue
        if term.func not in types:
            hint = did_you_mean(str(term.func), types)
            raise UsageError(f"sensors.{name} is '{term.func}', which is no sensor of MuJoCo's.{hint}")
        sensors.add(f"sensors.{name}", term, _OBJECTS, _REFERENCES, type=types[str(term.func)], cutoff=term.cutoff)
    for name, term in config.terms("contacts").items():
        if term.func == "touches":
            wrong = next((each for each in term.fields if each not in CONTACT_FIELDS), None)
            if wrong or (term.force_threshold and "force" not in term.fields):
                why = f"has '{wrong}'" if wrong else "lacks 'force', which its force_threshold needs"
                raise UsageError(f"contacts.{name}.fields {why}: choose from {', '.join(CONTACT_FIELDS)}.")
            kind = mujoco.mjtSensor.mjSENS_CONTACT
            sensors.add(f"contacts.{name}", term, _PRIMARY, _SECONDARY, type=kind, intprm=_numbers(term))


def build_tracers(binder: Binder, engine: Engine, age: wp.array, step_dt: float) -> list[Callable[[], None]]:
    """Return what traces the cameras and rays that terms observe, in this order, before the engine starts.

    `age` are the steps of each environment's episode, (num_envs,), and `step_dt` is the length of one [s].
    """
    if not (binder.images or binder.rays):
        return []
    from shoal.sim.engines.tracing import Scene, TracedCamera, TracedRays  # Slow to import.

    model, made = binder.names.model, list[Callable[[], None]]()
    scene = Scene(engine, model, age, step_dt)
    for name, images in binder.images.items():
        term, rule = binder.cameras[name], Takes("camera", is_one=True)
        _check_groups(f"sensors.{name}.enabled_geom_groups", term.enabled_geom_groups, model)
        index, _ = binder.selection(f"sensors.{name}.camera_name", rule, term.camera_name or name)
        made.append(TracedCamera(scene, term, camera=int(index), images=images).trace)
    for name, (frames, hits) in binder.rays.items():
        term = binder.ray_casts[name]
        _check_groups(f"sensors.{name}.include_geom_groups", term.include_geom_groups, model)
        made.append(TracedRays(scene, term, frames=frames, hits=hits).trace)
    return [scene.refit, *made]


def _check_groups(path: str, groups: tuple[int, ...], model: mujoco.MjModel) -> None:
    """Refuse groups without a geom."""
    present = sorted({*model.geom_group.tolist()})
    if not {*groups} & {*present}:
        raise UsageError(f"{path} is {groups}, but the model's geoms are in the groups {present}: name one of them.")


def _fields_of(term: ContactTerm) -> list[str]:
    """Return the fields in MuJoCo's order; `found` is always one."""
    return [name for name in CONTACT_FIELDS if name in ("found", *term.fields)]


def _numbers(term: ContactTerm) -> tuple[int, int, int]:
    """Return MuJoCo's numbers of a contact sensor: the set of its fields, how it reduces, and its slots."""
    chosen = sum(1 << at for at, name in enumerate(CONTACT_FIELDS) if name in _fields_of(term))
    return chosen, _REDUCE.index(term.reduce), 1 if term.reduce == "netforce" else term.num_slots


def bind_contacts(
    binder: Binder, terms: Mapping[str, ContactTerm], allocate: Callable[[str, int, Any], wp.array]
) -> dict[str, Bound]:
    """Bind contacts by name, and let `allocate` make the arrays of what is tracked: by name, columns and type.

    Raises:
        ShoalError: A function is of no geoms or bodies.
    """
    found: dict[str, Bound] = {}
    struct: Any = ContactData
    for name, term in terms.items():
        contact = binder.structs[name] = struct()
        is_sensed = term.func == "touches"  # MuJoCo's, and not those of a function.
        bound = _bind_sensed(binder, name, term) if is_sensed else binder.bind(f"contacts.{name}", term, "contacts")
        if not bound.of:
            raise ShoalError(f"contacts.{name} tracks nothing: its function must take i, and geoms or bodies after it.")
        if term.track_air_time and not is_sensed:
            raise UsageError(
                f"contacts.{name}.track_air_time needs MuJoCo's sensor, but its function is {term.func}: leave one out."
            )
        binder.columns[name], found[name] = bound.columns, bound
        for field, kind in struct.vars.items():
            if getattr(kind.type, "ndim", 0) == 2:  # noqa: PLR2004  A row for each environment.
                setattr(contact, field, allocate(f"contacts/{name}/{field}", len(bound.columns), kind.type.dtype))
    return found


def _bind_sensed(binder: Binder, name: str, term: ContactTerm) -> Bound:
    """Bind contacts that are MuJoCo's, and write where in ``sensordata`` they are."""
    path, contact = f"contacts.{name}", binder.structs[name]
    parameter = next(each for each in term.parameters if each in _PRIMARY)
    rule = Takes("geom", entry=Geom) if parameter == "geoms" else Takes("body")
    selection, columns = binder.selection(f"{path}.{parameter}", rule, getattr(term, parameter))
    addresses = [binder.names.model.sensor(f"{name} {each}").adr[0] for each in columns]
    contact.sensors = wp.array(np.array(addresses, dtype=np.int32), device=binder.device)
    contact.slots = _numbers(term)[2]
    for field in _fields_of(term):
        if field != "found":
            setattr(contact, field, contact.stride)
        contact.stride += CONTACT_FIELDS[field]
    where = getattr(term, "sites", None)
    if where is not None:
        selection, sites = binder.selection(f"{path}.sites", Takes("site"), where)
        if len(sites) != len(columns):
            raise UsageError(
                f"contacts.{name}.sites selects {len(sites)} sites for {len(columns)} {parameter}: give each one."
            )
    arguments = binder.contact(name), binder.number(f"{path}.force_threshold", term.force_threshold)
    function = touches_by_physics_step if term.track_air_time else touches
    called = binder.name_function(function)
    return Bound(path.replace(".", "_"), function, called, arguments, columns, is_by_column=True, of=selection)
