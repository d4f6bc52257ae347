"""Observation terms. Names are mjlab's where it has the term.

A function with a parameter `i` returns column `i`: it has a column for each name that its next parameter selects.
"""

from typing import Any

import warp as wp

from shoal.mdp.base import (  # noqa: F401  Observations are named here.
    base_ang_vel,
    base_lin_vel,
    base_quat,
    command_at,
    projected_gravity,
)
from shoal.mdp.contacts import Contact, net_force
from shoal.mdp.ground import clearance_of, surface_at
from shoal.mdp.names import Joint


@wp.func
def joint_pos_rel(
    state: Any,
    env: wp.int32,
    i: wp.int32,
    joints: wp.array[Joint],
    biased: wp.bool = False,  # noqa: FBT002
) -> wp.float32:
    """Return the distance of a joint from the default pose [rad or m], `biased` with the error of its encoder."""
    error = wp.where(biased, state.encoder_bias[env, joints[i].dof], 0.0)
    return state.qpos[env, joints[i].qpos] + error - joints[i].default_pos


@wp.func
def joint_vel_rel(state: Any, env: wp.int32, i: wp.int32, joints: wp.array[Joint]) -> wp.float32:
    """Return the speed of a joint [rad/s or m/s]."""
    return state.qvel[env, joints[i].dof]


@wp.func
def last_action(
    state: Any,
    env: wp.int32,
    i: wp.int32,
    actuators: wp.array[wp.int32],  # noqa: ARG001  The columns of their actions follow.
    action_columns: wp.array[wp.int32],
) -> wp.float32:
    """Return the last action of an actuator."""
    return state.action[env, action_columns[i]]


@wp.func
def velocity_command(state: Any, env: wp.int32, command: wp.int32) -> wp.vec3:
    """Return a command of three columns."""
    return command_at(state, env, command)


@wp.func
def height_scan(state: Any, env: wp.int32, i: wp.int32, grid: wp.array[wp.vec2]) -> wp.float32:
    """Return the height of the base above the ground, less that in the default pose, at a point that turns with it [m].

    `grid` is length, width, and distance between two points [m].
    """
    ahead = wp.quat_rotate(base_quat(state, env), wp.vec3(1.0, 0.0, 0.0))
    heading = wp.atan2(ahead[1], ahead[0])
    point = grid[i]
    x = state.qpos[env, 0] + wp.cos(heading) * point[0] - wp.sin(heading) * point[1]
    y = state.qpos[env, 1] + wp.sin(heading) * point[0] + wp.cos(heading) * point[1]
    return state.qpos[env, 2] - state.home[2] - surface_at(state.ground, x, y)[0]


@wp.func
def contact_forces(
    state: Any,
    env: wp.int32,
    i: wp.int32,
    bodies: wp.array[wp.int32],  # noqa: ARG001  Their sensors follow.
    contact_sensors: wp.array[wp.int32],
) -> wp.vec3:
    """Return the force on a body at all its contacts, in the world [N]."""
    return net_force(state, env, contact_sensors[i])


@wp.func
def foot_contact_forces(
    state: Any, env: wp.int32, i: wp.int32, bodies: wp.array[wp.int32], contact_sensors: wp.array[wp.int32]
) -> wp.vec3:
    """Return `contact_forces` f as sign(f) log(1 + |f|)."""
    force = contact_forces(state, env, i, bodies, contact_sensors)
    for part in range(3):
        force[part] = wp.sign(force[part]) * wp.log(1.0 + wp.abs(force[part]))
    return force


@wp.func
def builtin_sensor(state: Any, env: wp.int32, i: wp.int32, sensors: wp.array[wp.int32]) -> wp.float32:
    """Return the numbers of MuJoCo's sensors."""
    return state.sensordata[env, sensors[i]]


@wp.func
def feet_contact(state: Any, env: wp.int32, i: wp.int32, contact: Contact) -> wp.float32:  # noqa: ARG001
    """Return 1 where a foot touches, else 0."""
    return wp.where(contact.found[env, i], 1.0, 0.0)


@wp.func
def feet_air_time(state: Any, env: wp.int32, i: wp.int32, contact: Contact) -> wp.float32:  # noqa: ARG001
    """Return the time that a foot has been in the air [s]."""
    return contact.air_time[env, i]


@wp.func
def feet_height(state: Any, env: wp.int32, i: wp.int32, contact: Contact) -> wp.float32:
    """Return the height of a foot above the ground [m]."""
    return clearance_of(state.ground, contact.position[env, i])
