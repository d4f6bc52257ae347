"""Observation terms. Names are mjlab's where it has the term.

A function with a parameter `i` returns column `i`: it has a column for each name that its next parameter selects.
"""

from typing import Any

import warp as wp

from shoal.mdp.annotations import (
    ActionColumns,
    ActuatorIds,
    BodyIds,
    CommandColumn,
    Contacts,
    ContactSensors,
    Grid,
    Joints,
    SensorColumns,
)
from shoal.mdp.base import (  # noqa: F401  Observations are named here.
    base_ang_vel,
    base_lin_vel,
    base_quat,
    command_at,
    heading_w,
    periods_of,
    projected_gravity,
)
from shoal.mdp.base import lin_vel_w as root_lin_vel_w  # noqa: F401  It is named here.
from shoal.mdp.contacts import net_force
from shoal.mdp.ground import base_height, clearance_of, surface_at  # noqa: F401  The first is named here.
from shoal.mdp.needs import FreeJointState


@wp.func
def root_pos_w(state: FreeJointState, env: int) -> wp.vec3:
    """Return the base's position in the world [m]."""
    return wp.vec3(state.qpos[env, 0], state.qpos[env, 1], state.qpos[env, 2])


@wp.func
def root_quat_w(state: FreeJointState, env: int) -> wp.vec4:
    """Return the base's orientation in the world, with the real part first."""
    return wp.vec4(state.qpos[env, 3], state.qpos[env, 4], state.qpos[env, 5], state.qpos[env, 6])


@wp.func
def root_ang_vel_w(state: Any, env: int) -> wp.vec3:
    """Return the base's angular velocity in the world [rad/s]."""
    return wp.quat_rotate(base_quat(state, env), base_ang_vel(state, env))


@wp.func
def joint_pos(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the position of a joint [rad or m]."""
    return state.qpos[env, joints[i].qpos]


@wp.func
def joint_pos_sin(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the sine of the position of a hinge joint."""
    return wp.sin(state.qpos[env, joints[i].qpos])


@wp.func
def joint_pos_cos(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the cosine of the position of a hinge joint."""
    return wp.cos(state.qpos[env, joints[i].qpos])


@wp.func
def joint_pos_rel(
    state: Any,
    env: int,
    i: int,
    joints: Joints,
    biased: bool = False,
) -> float:
    """Return the distance of a joint from the default pose [rad or m], `biased` with the error of its encoder."""
    error = wp.where(biased, state.encoder_bias[env, joints[i].dof], 0.0)
    return state.qpos[env, joints[i].qpos] + error - joints[i].default_pos


@wp.func
def joint_vel_rel(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the speed of a joint [rad/s or m/s]."""
    return state.qvel[env, joints[i].dof]


@wp.func
def last_action(
    state: Any,
    env: int,
    i: int,
    actuators: ActuatorIds,  # noqa: ARG001  The columns of their actions follow.
    action_columns: ActionColumns,
) -> float:
    """Return the last action of an actuator."""
    return state.action[env, action_columns[i]]


@wp.func
def last_actions(state: Any, env: int, i: int) -> float:
    """Return all last actions."""
    return state.action[env, i]


@wp.func
def velocity_command(state: Any, env: int, command: CommandColumn) -> wp.vec3:
    """Return a command of three columns."""
    return command_at(state, env, command)


@wp.func
def generated_commands(state: Any, env: int, i: int, command: CommandColumn) -> float:
    """Return a command of any columns."""
    return state.commands[env, command + i]


@wp.func
def gait_phase(state: Any, env: int, period: float) -> wp.vec2:
    """Return sine and cosine of a clock with a `period` [s], which begins with the episode."""
    angle = 2.0 * wp.pi * periods_of(state, env, period)
    return wp.vec2(wp.sin(angle), wp.cos(angle))


@wp.func
def height_scan(state: Any, env: int, i: int, grid: Grid) -> float:
    """Return the height of the base above the ground, less that in the default pose, at a point that turns with it [m].

    `grid` is length, width, and distance between two points [m].
    """
    heading, point = heading_w(state, env), grid[i]
    x = state.qpos[env, 0] + wp.cos(heading) * point[0] - wp.sin(heading) * point[1]
    y = state.qpos[env, 1] + wp.sin(heading) * point[0] + wp.cos(heading) * point[1]
    return state.qpos[env, 2] - state.home[2] - surface_at(state.ground, x, y)[0]


@wp.func
def contact_forces(
    state: Any,
    env: int,
    i: int,
    bodies: BodyIds,  # noqa: ARG001  Their sensors follow.
    contact_sensors: ContactSensors,
) -> wp.vec3:
    """Return the force on a body at all its contacts, in the world [N]."""
    return net_force(state, env, contact_sensors[i])


@wp.func
def foot_contact_forces(state: Any, env: int, i: int, bodies: BodyIds, contact_sensors: ContactSensors) -> wp.vec3:
    """Return `contact_forces` f as sign(f) log(1 + |f|)."""
    force = contact_forces(state, env, i, bodies, contact_sensors)
    for part in range(3):
        force[part] = wp.sign(force[part]) * wp.log(1.0 + wp.abs(force[part]))
    return force


@wp.func
def builtin_sensor(state: Any, env: int, i: int, sensors: SensorColumns) -> float:
    """Return the numbers of MuJoCo's sensors."""
    return state.sensordata[env, sensors[i]]


@wp.func
def foot_contact(state: Any, env: int, i: int, contact: Contacts) -> float:  # noqa: ARG001
    """Return 1 where a foot touches, else 0."""
    return wp.where(contact.found[env, i], 1.0, 0.0)


@wp.func
def foot_air_time(state: Any, env: int, i: int, contact: Contacts) -> float:  # noqa: ARG001
    """Return the time that a foot has been in the air [s]."""
    return contact.air_time[env, i]


@wp.func
def foot_height(state: Any, env: int, i: int, contact: Contacts) -> float:
    """Return the height of a foot above the ground [m]."""
    return clearance_of(state.ground, contact.position[env, i])
