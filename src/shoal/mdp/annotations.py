"""What the parameters of a term's function are, as annotations, for a `wp.func` and for a function on torch tensors.

Each alias is a type of Warp's with `Takes`: what a declaration gives for the parameter, and so what it becomes.
`shoal.mdp.needs` has what a function may need besides, as in ``Annotated[Actuators, POSITION]``.
"""

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin

import warp as wp

from shoal.errors import ShoalError
from shoal.mdp.accesses import python_of
from shoal.mdp.networks import NetworkData
from shoal.mdp.shapes import Solid
from shoal.mdp.terms import CHOICES

__all__ = [
    "ActionColumns", "Activation", "Actuator", "ActuatorId", "ActuatorIds", "Actuators", "Axes", "Before", "BodyId",
    "BodyIds", "CameraIds", "CommandColumn", "ContactData", "Contacts", "Distribution", "Geom", "GeomId", "Geoms",
    "Grid", "Image", "InputOrder", "Joint", "JointId", "Joints", "LightIds", "MaterialIds", "Memory", "Network",
    "Numbers", "Operation", "OptionalNumbers", "PairIds", "RayData", "Rays", "RgbImage", "RootBody",
    "SegmentationImage", "SensorColumn", "SensorColumns", "SiteId", "SiteIds", "Solids", "TendonIds",
]  # fmt: skip


@wp.struct
class Joint:
    """A joint with one degree of freedom."""

    index: wp.int32
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
    """An actuator of a joint with one degree of freedom."""

    index: wp.int32
    """Column of its control in ``ctrl``."""
    qpos: wp.int32
    """Column of its joint's position in ``qpos``."""
    dof: wp.int32
    """Column of its joint's speed in ``qvel``."""
    default_pos: wp.float32
    """Its joint's position in the default pose [rad or m]."""
    gear: wp.float32
    """Its length for each unit of its joint's position, and its joint's torque for each unit of its force."""
    gain: wp.float32
    """Its force for each unit of its control."""
    share: wp.float32
    """1, divided by the number of the selected actuators that act on its joint."""
    is_dc_motor: wp.int32
    """Whether it is MuJoCo's DC motor, and so its torque falls with the speed."""


@wp.struct
class Geom:
    """A geom."""

    index: wp.int32
    body: wp.int32


@wp.struct
class ContactData:
    """The contacts of several geoms or bodies, each array (num_envs, number of them); and where their sensors are."""

    found: wp.array2d[wp.bool]
    """Whether each touches."""
    position: wp.array2d[wp.vec3]
    """Where each is in the world [m]."""
    velocity: wp.array2d[wp.vec3]
    """How each moved during the last step [m/s]; 0 in the first step of an episode."""
    air_time: wp.array2d[wp.float32]
    """Time without contact until now [s]; 0 in contact."""
    contact_time: wp.array2d[wp.float32]
    """Time in contact until now [s]; 0 without."""
    last_air_time: wp.array2d[wp.float32]
    """Length of the last time without contact [s]; 0 where there was none in this episode."""
    sensors: wp.array[wp.int32]
    """First column of each in ``sensordata``. Shape (number of them,)."""
    slots: wp.int32
    """Contacts of each that its sensor has."""
    stride: wp.int32
    """Columns of each of these contacts; `found` is the first, the others are at:"""
    force: wp.int32
    torque: wp.int32
    dist: wp.int32
    pos: wp.int32
    normal: wp.int32
    tangent: wp.int32


@wp.struct
class RayData:
    """What rays hit, each array (num_envs, number of rays): all rays of the first frame, and then of the next."""

    distance: wp.array2d[wp.float32]
    """Distance to what they hit [m]; -1 where they hit nothing."""
    normal: wp.array2d[wp.vec3]
    """Direction in the world that is upright on what they hit; 0 where they hit nothing."""
    max_distance: wp.float32
    """Length of the rays [m]."""


@dataclass(frozen=True, slots=True)
class Takes:
    """What a declaration gives for a parameter: a pattern of names, if `what` is a kind of MuJoCo's objects."""

    what: str
    said: str = ""
    """In words; nothing where the argument is made for the term."""
    entry: Any = None
    """Struct of the entries about what is selected; None for indices."""
    is_one: bool = False
    """Whether the pattern must match one object."""


@dataclass(frozen=True, slots=True)
class Before:
    """Beside `Memory`, in rewards: a `wp.func` of `state` and `env`, whose value before the step the memory has."""

    function: Any


def _several(kind: str, plural: str, entry: Any = None) -> Takes:
    return Takes(kind, f"pattern of {plural}", entry)


def _one(kind: str) -> Takes:
    return Takes(kind, f"pattern of one {kind}", is_one=True)


Joints = Annotated[wp.array[Joint], _several("joint", "joints", Joint)]
Actuators = Annotated[wp.array[Actuator], _several("actuator", "actuators of joints", Actuator)]
ActuatorIds = Annotated[wp.array[wp.int32], _several("actuator", "actuators")]
Geoms = Annotated[wp.array[Geom], _several("geom", "geoms", Geom)]
Solids = Annotated[wp.array[Solid], _several("geom", "geoms", Solid)]
BodyIds = Annotated[wp.array[wp.int32], _several("body", "bodies")]
SiteIds = Annotated[wp.array[wp.int32], _several("site", "sites")]
TendonIds = Annotated[wp.array[wp.int32], _several("tendon", "tendons")]
PairIds = Annotated[wp.array[wp.int32], _several("pair", "pairs")]
CameraIds = Annotated[wp.array[wp.int32], _several("camera", "cameras")]
LightIds = Annotated[wp.array[wp.int32], _several("light", "lights")]
MaterialIds = Annotated[wp.array[wp.int32], _several("material", "materials")]
SensorColumns = Annotated[wp.array[wp.int32], _several("sensor", "sensors")]
"""Columns of ``sensordata``."""
JointId = Annotated[int, _one("joint")]
ActuatorId = Annotated[int, _one("actuator")]
GeomId = Annotated[int, _one("geom")]
BodyId = Annotated[int, _one("body")]
SiteId = Annotated[int, _one("site")]
RootBody = Annotated[int, Takes("root", "pattern of one body with a free joint")]
"""A body with a free joint; with the default 0 the base, that of the model's first joint."""
SensorColumn = Annotated[int, _one("sensor")]
"""The first column of a sensor in ``sensordata``."""
COMMAND = Takes("command", "name of a command")
CommandColumn = Annotated[int, COMMAND]
"""The first column of a command in `state.commands`."""
Contacts = Annotated[ContactData, Takes("contact", "name of a contact")]
Numbers = Annotated[wp.array[wp.float32], Takes("numbers", "number by pattern")]
"""A number for each name that is selected before it."""
OptionalNumbers = Annotated[Any, Takes("numbers", "number by pattern")]
"""The same, or the integer 0 for None."""
Grid = Annotated[wp.array[wp.vec2], Takes("grid", "length, width, distance [m]")]
IMAGE = Takes("image", "name of a camera")
Image = Annotated[wp.array2d[wp.float32], IMAGE]
"""The depth of each of a camera's pixels [m], row by row from the top; 0 where it sees nothing."""
RgbImage = Annotated[wp.array2d[wp.uint32], IMAGE]
"""The colour of each pixel, of which blue, green and red are the lowest three bytes."""
SegmentationImage = Annotated[wp.array2d[wp.vec2i], IMAGE]
"""What each pixel sees: the index of a geom, and MuJoCo's type of geoms; -1 and -1 where it sees nothing."""
IMAGE_KINDS = {wp.float32: "depth", wp.uint32: "rgb", wp.vec2i: "segmentation"}
"""What an image is of, by the type of its pixels."""
Rays = Annotated[RayData, Takes("rays", "name of rays")]
Axes = Annotated[wp.array[wp.int32], Takes("axes", "columns of the field")]
Network = Annotated[NetworkData, Takes("network", "file with weights")]
"""A network of actuators, with a memory for each name that is selected before it, see `shoal.mdp.networks`."""


def _choice(name: str) -> Takes:
    return Takes(name, " or ".join(get_args(CHOICES[name])))


Operation = Annotated[int, _choice("operation")]
Distribution = Annotated[int, _choice("distribution")]
Activation = Annotated[int, _choice("activation")]
InputOrder = Annotated[int, _choice("input_order")]
Memory = Annotated[wp.array2d[wp.float32], Takes("memory")]
"""An array of the term's own: a column for each name that is selected before it, or one."""
ActionColumns = Annotated[wp.array[wp.int32], Takes("action_columns")]
"""Columns of the actions of the actuators that are selected before it."""
ALIASES: dict[str, Any] = {name: value for name, value in vars().items() if get_origin(value) is Annotated}


def takes(annotation: Any) -> Takes | None:
    """Return what a parameter of this annotation takes, or None for numbers.

    An alias may stand beside another type, as in ``Annotated[wp.array2d[wp.vec3], Memory]``.
    """
    for each in getattr(annotation, "__metadata__", ()):
        if isinstance(each, Takes):
            return each
        if found := takes(each):
            return found
    return None


@cache
def hints_of(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, by parameter and ``return``.

    Raises:
        ShoalError: One is a string, as with ``from __future__ import annotations``, of what cannot be found.
    """
    python = python_of(function)
    try:
        return inspect.get_annotations(python, eval_str=True, locals=dict(inspect.getclosurevars(python).nonlocals))
    except (NameError, AttributeError) as error:
        raise ShoalError(f"An annotation of {python.__name__}() cannot be found ({error}): import it there.") from error


def before_of(function: Any) -> dict[str, Any]:
    """Return the functions whose values before a step the parameters of a reward's function have, by parameter."""
    parts = {name: getattr(each, "__metadata__", ()) for name, each in hints_of(function).items()}
    return {name: part.function for name, found in parts.items() for part in found if isinstance(part, Before)}
