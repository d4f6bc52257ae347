"""Contacts of geoms and bodies that a task tracks: whether each touches, since when, and how it moves."""

from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import ContactData, Contacts, Solids
from shoal.mdp.ground import normal_of, surface_at
from shoal.mdp.needs import contact_field
from shoal.mdp.shapes import reach

_Force = Annotated[Contacts, contact_field("force")]
_Torque = Annotated[Contacts, contact_field("torque")]
_Dist = Annotated[Contacts, contact_field("dist")]
_Pos = Annotated[Contacts, contact_field("pos")]
_Normal = Annotated[Contacts, contact_field("normal")]
_Tangent = Annotated[Contacts, contact_field("tangent")]
"""Contacts with a field."""


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
    """Update the contact of one geom or body after a step, but for its times."""
    velocity = wp.vec3(0.0, 0.0, 0.0)
    if not is_first_step:
        velocity = (position - contact.position[env, i]) / step_dt
    contact.velocity[env, i] = velocity
    contact.position[env, i] = position
    contact.found[env, i] = found


@wp.func
def count_time(contact: ContactData, env: int, i: int, found: bool, dt: float, landing: float) -> None:
    """Count the time `dt` [s] in contact or without; `landing` is how much of it is still without where one begins."""
    if found:
        if contact.air_time[env, i] > 0.0:
            contact.last_air_time[env, i] = contact.air_time[env, i] + landing
        contact.contact_time[env, i] = contact.contact_time[env, i] + dt
        contact.air_time[env, i] = 0.0
    else:
        contact.air_time[env, i] = contact.air_time[env, i] + dt
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
    return contact.contact_time[env, i] > 0.0 and contact.contact_time[env, i] < 1.001 * step_dt


@wp.func
def near_ground(state: Any, env: int, i: int, geoms: Solids, tolerance: float) -> bool:
    """Whether the lowest point of a geom is at most `tolerance` [m] above the ground below its centre."""
    position = state.geom_xpos[env, geoms[i].index]
    surface = surface_at(state.ground, position[0], position[1])
    normal = normal_of(surface)
    height = (position[2] - surface[0]) * normal[2]
    return height - reach(geoms[i], state.geom_xmat[env, geoms[i].index], -normal, state.hulls) <= tolerance


@wp.func
def touches(state: Any, env: int, i: int, contact: Contacts, force_threshold: float) -> bool:
    """Whether MuJoCo's sensor has a contact of `bodies`, `geoms` or `subtrees`, patterns of names.

    With one `secondary_body`, `secondary_geom` or `secondary_subtree` only contacts with that count.
    """
    if force_threshold > 0.0:
        return largest_force(state, env, contact, i) > force_threshold
    return state.sensordata[env, contact.sensors[i]] > 0.0


@wp.func
def touches_by_physics_step(state: Any, env: int, i: int, contact: Contacts, force_threshold: float) -> bool:
    """Whether it touches after the last physics step; counts the times of all those of an action, as mjlab does."""
    found = wp.bool(False)
    steps = state.sensor_history.shape[1] // state.sensordata.shape[1]
    dt = state.step_dt / wp.float32(steps)
    for step in range(steps):
        if force_threshold > 0.0:
            found = largest_force_in(state, env, contact, i, step) > force_threshold
        else:
            found = state.sensor_history[env, step * state.sensordata.shape[1] + contact.sensors[i]] > 0.0
        count_time(contact, env, i, found, dt, dt)
    return found


@wp.func
def largest_force(state: Any, env: int, contact: Contacts, i: int) -> float:
    """Return the largest force of the contacts of geom or body `i` that its sensor has [N]."""
    largest = wp.float32(0.0)
    for slot in range(contact.slots):
        largest = wp.max(largest, wp.length(contact_force(state, env, contact, i, slot)))
    return largest


@wp.func
def sensed_vector(state: Any, env: int, contact: Contacts, i: int, slot: int, at: int) -> wp.vec3:
    """Return three numbers of a contact, which begin in its columns `at`."""
    first = contact.sensors[i] + slot * contact.stride + at
    return wp.vec3(state.sensordata[env, first], state.sensordata[env, first + 1], state.sensordata[env, first + 2])


@wp.func
def contact_force(state: Any, env: int, contact: _Force, i: int, slot: int) -> wp.vec3:
    """Return the force of one of the contacts of geom or body `i` on what it touches [N], see `ContactTerm.reduce`."""
    return sensed_vector(state, env, contact, i, slot, contact.force)


@wp.func
def largest_force_in(state: Any, env: int, contact: _Force, i: int, physics_step: int) -> float:
    """Return the largest force in one of the physics steps of the last action, counted from 0 [N]."""
    largest = wp.float32(0.0)
    for slot in range(contact.slots):
        first = contact.sensors[i] + slot * contact.stride + contact.force
        force = wp.vec3()
        for axis in range(3):
            force[axis] = state.sensor_history[env, physics_step * state.sensordata.shape[1] + first + axis]
        largest = wp.max(largest, wp.length(force))
    return largest


@wp.func
def contact_torque(state: Any, env: int, contact: _Torque, i: int, slot: int) -> wp.vec3:
    """Return the torque of a contact on what is touched [N m]."""
    return sensed_vector(state, env, contact, i, slot, contact.torque)


@wp.func
def contact_dist(state: Any, env: int, contact: _Dist, i: int, slot: int) -> float:
    """Return the distance of the two that touch [m], negative where they overlap."""
    return state.sensordata[env, contact.sensors[i] + slot * contact.stride + contact.dist]


@wp.func
def contact_pos(state: Any, env: int, contact: _Pos, i: int, slot: int) -> wp.vec3:
    """Return the position of a contact in the world [m]."""
    return sensed_vector(state, env, contact, i, slot, contact.pos)


@wp.func
def contact_normal(state: Any, env: int, contact: _Normal, i: int, slot: int) -> wp.vec3:
    """Return the normal of a contact in the world, from geom or body `i` to what it touches."""
    return sensed_vector(state, env, contact, i, slot, contact.normal)


@wp.func
def contact_tangent(state: Any, env: int, contact: _Tangent, i: int, slot: int) -> wp.vec3:
    """Return the first tangent of a contact in the world: the second axis of its frame."""
    return sensed_vector(state, env, contact, i, slot, contact.tangent)


@wp.func
def net_force(state: Any, env: int, contact: Contacts, i: int) -> wp.vec3:
    """Return the force on geom or body `i` at all its contacts, in the world [N], of a contact with `netforce`."""
    return -contact_force(state, env, contact, i, 0)
