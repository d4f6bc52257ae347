"""Events. Names are mjlab's where it has the term. Ranges are lowest and highest, drawn uniformly."""

# Kernel bodies are Warp's language, whose numbers and arrays pyright reads as Python's. Arrays come by position.
# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false, reportInvalidTypeForm=false
# pyright: reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

from typing import Any

import warp as wp

from shoal.mdp.names import Actuator, Geom, Joint
from shoal.mdp.random import uniform


@wp.func
def reset_root_state_uniform(state: Any, env: wp.int32, x: wp.vec2, y: wp.vec2, yaw: wp.vec2) -> None:
    """Put the base into the default pose, at rest, moved [m] and turned about z [rad]."""
    for column in range(7):
        state.qpos[env, column] = state.home[column]
    state.qpos[env, 0] = state.home[0] + uniform(state, env, x[0], x[1])
    state.qpos[env, 1] = state.home[1] + uniform(state, env, y[0], y[1])
    heading = uniform(state, env, yaw[0], yaw[1])
    turn = wp.quat(state.home[4], state.home[5], state.home[6], state.home[3])
    turn = wp.quat_from_axis_angle(wp.vec3(0.0, 0.0, 1.0), heading) * turn
    state.qpos[env, 3] = turn[3]
    state.qpos[env, 4] = turn[0]
    state.qpos[env, 5] = turn[1]
    state.qpos[env, 6] = turn[2]
    for column in range(6):
        state.qvel[env, column] = 0.0


@wp.func
def reset_joints_by_offset(
    state: Any, env: wp.int32, joints: wp.array[Joint], position: wp.vec2, velocity: wp.vec2
) -> None:
    """Put joints near the default pose [rad or m], with a speed [rad/s or m/s]."""
    for i in range(joints.shape[0]):
        state.qpos[env, joints[i].qpos] = joints[i].default_pos + uniform(state, env, position[0], position[1])
        state.qvel[env, joints[i].dof] = uniform(state, env, velocity[0], velocity[1])


@wp.func
def hold_default_pose(state: Any, env: wp.int32, actuators: wp.array[Actuator]) -> None:
    """Set the targets of position servos to the default pose."""
    for i in range(actuators.shape[0]):
        state.ctrl[env, actuators[i].index] = actuators[i].default_pos


@wp.func
def push_by_setting_velocity(state: Any, env: wp.int32, x: wp.vec2, y: wp.vec2) -> None:
    """Change the base's velocity in the world [m/s]."""
    state.qvel[env, 0] = state.qvel[env, 0] + uniform(state, env, x[0], x[1])
    state.qvel[env, 1] = state.qvel[env, 1] + uniform(state, env, y[0], y[1])


@wp.func
def geom_friction(state: Any, env: wp.int32, geoms: wp.array[Geom], ranges: wp.vec2) -> None:
    """Draw one sliding friction for all of some geoms."""
    sliding = uniform(state, env, ranges[0], ranges[1])
    for i in range(geoms.shape[0]):
        usual = state.geom_friction[env, geoms[i].index]
        state.geom_friction[env, geoms[i].index] = wp.vec3(sliding, usual[1], usual[2])


@wp.func
def add_body_mass(state: Any, env: wp.int32, body: wp.int32, ranges: wp.vec2) -> None:
    """Add a mass to a body [kg]."""
    state.body_mass[env, body] = state.default_body_mass[body] + uniform(state, env, ranges[0], ranges[1])


@wp.func
def scale_servo_gains(state: Any, env: wp.int32, actuators: wp.array[Actuator], kp: wp.vec2, kd: wp.vec2) -> None:
    """Multiply stiffness and damping of position servos, each by a factor of its own."""
    for i in range(actuators.shape[0]):
        index = actuators[i].index
        stiffness = state.default_actuator_gainprm[index][0] * uniform(state, env, kp[0], kp[1])
        damping = state.default_actuator_biasprm[index][2] * uniform(state, env, kd[0], kd[1])
        gain = state.actuator_gainprm[env, index]
        gain[0] = stiffness
        state.actuator_gainprm[env, index] = gain
        bias = state.actuator_biasprm[env, index]
        bias[1] = -stiffness
        bias[2] = damping
        state.actuator_biasprm[env, index] = bias
