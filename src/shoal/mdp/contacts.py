"""Contacts of geoms and bodies that a task tracks: whether each touches, since when, and how it moves."""

from collections.abc import Callable
from typing import Any

import warp as wp

from shoal.mdp.ground import normal_of, surface_at
from shoal.mdp.needs import needs
from shoal.mdp.shapes import Solid, reach


@wp.struct
class Contact:
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


def new_contact(contact: Any, allocate: Callable[[str, int, Any], wp.array], path: str, columns: int) -> None:
    """Make the arrays of a contact of so many geoms or bodies with `allocate`: by name, columns and type."""
    for name, field in Contact.vars.items():
        if getattr(field.type, "ndim", 0) == 2:  # noqa: PLR2004
            setattr(contact, name, allocate(f"{path}/{name}", columns, field.type.dtype))


@wp.func
def track_contact(
    contact: Contact,
    env: wp.int32,
    i: wp.int32,
    found: wp.bool,
    position: wp.vec3,
    step_dt: wp.float32,
    is_first_step: wp.bool,
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
def clear_contact(contact: Contact, env: wp.int32, i: wp.int32) -> None:
    """Begin an episode. Its position is written by the first step, and before if an observation asks for contacts."""
    contact.found[env, i] = False
    contact.velocity[env, i] = wp.vec3(0.0, 0.0, 0.0)
    contact.air_time[env, i] = 0.0
    contact.contact_time[env, i] = 0.0
    contact.last_air_time[env, i] = 0.0


@wp.func
def has_just_landed(contact: Contact, env: wp.int32, i: wp.int32, step_dt: wp.float32) -> wp.bool:
    """Whether the contact began with the last step, as mjlab's `compute_first_contact`."""
    return contact.contact_time[env, i] > 0.0 and contact.contact_time[env, i] < 1.5 * step_dt


@wp.func
def near_ground(state: Any, env: wp.int32, i: wp.int32, geoms: wp.array[Solid], tolerance: wp.float32) -> wp.bool:
    """Whether the lowest point of a geom is at most `tolerance` [m] above the ground below its centre."""
    place = state.geom_xpos[env, geoms[i].index]
    surface = surface_at(state.ground, place[0], place[1])
    normal = normal_of(surface)
    height = (place[2] - surface[0]) * normal[2]
    return height - reach(geoms[i], state.geom_xmat[env, geoms[i].index], -normal, state.hulls) <= tolerance


@wp.func
def touches(state: Any, env: wp.int32, i: wp.int32, contact: Contact, force_threshold: wp.float32) -> wp.bool:
    """Whether the sensor has a contact, with more than a force [N] if that is above 0."""
    if force_threshold > 0.0:
        return largest_force(state, env, contact, i) > force_threshold
    return state.sensordata[env, contact.sensors[i]] > 0.0


@wp.func
def largest_force(state: Any, env: wp.int32, contact: Contact, i: wp.int32) -> wp.float32:
    """Return the largest force of the contacts of geom or body `i` that its sensor has [N]."""
    largest = wp.float32(0.0)
    for slot in range(contact.slots):
        largest = wp.max(largest, wp.length(contact_force(state, env, contact, i, slot)))
    return largest


@wp.func
def sensed_vector(state: Any, env: wp.int32, contact: Contact, i: wp.int32, slot: wp.int32, at: wp.int32) -> wp.vec3:
    """Return three numbers of a contact, which begin in its columns `at`."""
    first = contact.sensors[i] + slot * contact.stride + at
    return wp.vec3(state.sensordata[env, first], state.sensordata[env, first + 1], state.sensordata[env, first + 2])


@needs(force=1)
@wp.func
def contact_force(state: Any, env: wp.int32, contact: Contact, i: wp.int32, slot: wp.int32) -> wp.vec3:
    """Return the force of one of the contacts of geom or body `i` on what it touches [N], see `ContactTerm.reduce`."""
    return sensed_vector(state, env, contact, i, slot, contact.force)


@needs(force=1)
@wp.func
def largest_force_in(state: Any, env: wp.int32, contact: Contact, i: wp.int32, physics_step: wp.int32) -> wp.float32:
    """Return the largest force in one of the physics steps of the last action, counted from 0 [N]."""
    largest = wp.float32(0.0)
    for slot in range(contact.slots):
        first = contact.sensors[i] + slot * contact.stride + contact.force
        force = wp.vec3()
        for axis in range(3):
            force[axis] = state.sensor_history[physics_step, env, first + axis]
        largest = wp.max(largest, wp.length(force))
    return largest


@needs(torque=1)
@wp.func
def contact_torque(state: Any, env: wp.int32, contact: Contact, i: wp.int32, slot: wp.int32) -> wp.vec3:
    """Return the torque of a contact on what is touched [N m]."""
    return sensed_vector(state, env, contact, i, slot, contact.torque)


@needs(dist=1)
@wp.func
def contact_dist(state: Any, env: wp.int32, contact: Contact, i: wp.int32, slot: wp.int32) -> wp.float32:
    """Return the distance of the two that touch [m], negative where they overlap."""
    return state.sensordata[env, contact.sensors[i] + slot * contact.stride + contact.dist]


@needs(pos=1)
@wp.func
def contact_pos(state: Any, env: wp.int32, contact: Contact, i: wp.int32, slot: wp.int32) -> wp.vec3:
    """Return the place of a contact in the world [m]."""
    return sensed_vector(state, env, contact, i, slot, contact.pos)


@needs(normal=1)
@wp.func
def contact_normal(state: Any, env: wp.int32, contact: Contact, i: wp.int32, slot: wp.int32) -> wp.vec3:
    """Return the normal of a contact in the world, from geom or body `i` to what it touches."""
    return sensed_vector(state, env, contact, i, slot, contact.normal)


@needs(tangent=1)
@wp.func
def contact_tangent(state: Any, env: wp.int32, contact: Contact, i: wp.int32, slot: wp.int32) -> wp.vec3:
    """Return the first tangent of a contact in the world: the second axis of its frame."""
    return sensed_vector(state, env, contact, i, slot, contact.tangent)


@wp.func
def net_force(state: Any, env: wp.int32, contact: Contact, i: wp.int32) -> wp.vec3:
    """Return the force on geom or body `i` at all its contacts, in the world [N], of a contact with `netforce`."""
    return -contact_force(state, env, contact, i, 0)
