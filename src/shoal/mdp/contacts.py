"""Contacts of geoms and bodies that a task tracks: whether each touches, since when, and how it moves."""

from collections.abc import Callable
from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import (
    BodyIds,
    ContactData,
    ContactSensors,
    SelfContactSensors,
    SensorColumn,
    Solids,
)
from shoal.mdp.ground import normal_of, surface_at
from shoal.mdp.needs import columns
from shoal.mdp.shapes import reach


def new_contact(allocate: Callable[[str, int, Any], wp.array], path: str, columns: int) -> Any:
    """Return a contact of so many geoms or bodies, whose arrays `allocate` makes: by name, columns and type."""
    struct: Any = ContactData
    contact = struct()
    for name, field in struct.vars.items():
        setattr(contact, name, allocate(f"{path}/{name}", columns, field.type.dtype))
    return contact


@wp.func
def track_contact(
    contact: ContactData,
    env: int,
    i: int,
    found: bool,
    position: wp.vec3,
    step_dt: float,
    is_first_step: bool,
) -> None:
    """Update the contact of one geom or body after a step."""
    velocity = wp.vec3(0.0, 0.0, 0.0)
    if not is_first_step:
        velocity = (position - contact.position[env, i]) / step_dt
    contact.velocity[env, i] = velocity
    contact.position[env, i] = position
    contact.found[env, i] = found
    if found:
        if contact.contact_time[env, i] == 0.0:
            contact.last_air_time[env, i] = contact.air_time[env, i]
        contact.contact_time[env, i] = contact.contact_time[env, i] + step_dt
        contact.air_time[env, i] = 0.0
    else:
        contact.air_time[env, i] = contact.air_time[env, i] + step_dt
        contact.contact_time[env, i] = 0.0


@wp.func
def clear_contact(contact: ContactData, env: int, i: int) -> None:
    """Begin an episode. Its position is written by the first step, and before if an observation asks for contacts."""
    contact.found[env, i] = False
    contact.velocity[env, i] = wp.vec3(0.0, 0.0, 0.0)
    contact.air_time[env, i] = 0.0
    contact.contact_time[env, i] = 0.0
    contact.last_air_time[env, i] = 0.0


@wp.func
def has_just_landed(contact: ContactData, env: int, i: int, step_dt: float) -> bool:
    """Whether the contact began with the last step, as mjlab's `compute_first_contact`."""
    return contact.contact_time[env, i] > 0.0 and contact.contact_time[env, i] < 1.5 * step_dt


@wp.func
def near_ground(state: Any, env: int, i: int, geoms: Solids, tolerance: float) -> bool:
    """Whether the lowest point of a geom is at most `tolerance` [m] above the ground below its centre."""
    place = state.geom_xpos[env, geoms[i].index]
    surface = surface_at(state.ground, place[0], place[1])
    normal = normal_of(surface)
    height = (place[2] - surface[0]) * normal[2]
    return height - reach(geoms[i], state.geom_xmat[env, geoms[i].index], -normal, state.hulls) <= tolerance


@wp.func
def touches(
    state: Any,
    env: int,
    i: int,
    bodies: BodyIds,  # noqa: ARG001  Their sensors follow.
    contact_sensors: ContactSensors,
) -> bool:
    """Whether something touches a body, by MuJoCo's contact sensor."""
    return state.sensordata[env, contact_sensors[i]] > 0.0


@wp.func
def touches_itself(
    state: Any,
    env: int,
    i: int,
    bodies: BodyIds,  # noqa: ARG001  Their sensors follow.
    self_contact_sensors: SelfContactSensors,
    force_threshold: float = 10.0,
) -> bool:
    """Whether two of a body and its descendants touch each other with more than a force [N]."""
    return wp.length(net_force(state, env, self_contact_sensors[i])) > force_threshold


@wp.func
def net_force(state: Any, env: int, sensor: Annotated[SensorColumn, columns(4)]) -> wp.vec3:
    """Return the force on a body at all its contacts, in the world [N]; of a sensor `self contact` any force."""
    # The sensor has the number of contacts, then the force of the body on what it touches.
    return -wp.vec3(
        state.sensordata[env, sensor + 1], state.sensordata[env, sensor + 2], state.sensordata[env, sensor + 3]
    )
