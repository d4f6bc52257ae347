"""Events. Names are mjlab's where it has the term. Ranges are lowest and highest, drawn uniformly.

Those that draw parameters of the model are in `shoal.mdp.randomization`, and named here too.
"""

from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import Actuators, BodyId, BodyIds, CommandColumn, Joints, Memory, RootBody
from shoal.mdp.base import base_ang_vel, base_quat, command_at, lin_vel_w, put_root, quat_of, qvel_of, root_quat
from shoal.mdp.levels import draw_first_levels, reset_on_sub_terrain, update_terrain_levels  # noqa: F401  Named here.
from shoal.mdp.needs import MOCAP, POSITION
from shoal.mdp.random import uniform
from shoal.mdp.randomization import (  # noqa: F401  Events are named here.
    FIELDS,
    body_com_offset,
    effort_limits,
    encoder_bias,
    gravity,
    pd_gains,
    pseudo_inertia,
)

vars().update(FIELDS)
_NONE = wp.vec2(0.0, 0.0)


@wp.func
def between(state: Any, env: int, x: wp.vec2, y: wp.vec2, z: wp.vec2) -> wp.vec3:
    """Return a vector, each part of which is drawn uniformly."""
    first = uniform(state, env, x[0], x[1])
    second = uniform(state, env, y[0], y[1])
    return wp.vec3(first, second, uniform(state, env, z[0], z[1]))


@wp.func
def add_root_velocity(state: Any, env: int, root_body: RootBody, linear: wp.vec3, angular: wp.vec3) -> None:
    """Change the velocity [m/s] and angular velocity [rad/s] of a body with a free joint, both given in the world."""
    first = qvel_of(state, root_body)
    turning = wp.quat_rotate_inv(root_quat(state, env, root_body), angular)
    for column in range(3):
        state.qvel[env, first + column] = state.qvel[env, first + column] + linear[column]
        state.qvel[env, first + 3 + column] = state.qvel[env, first + 3 + column] + turning[column]


@wp.func
def reset_root_state_uniform(
    state: Any,
    env: int,
    x: wp.vec2 = _NONE,
    y: wp.vec2 = _NONE,
    z: wp.vec2 = _NONE,
    roll: wp.vec2 = _NONE,
    pitch: wp.vec2 = _NONE,
    yaw: wp.vec2 = _NONE,
    velocity_x: wp.vec2 = _NONE,
    velocity_y: wp.vec2 = _NONE,
    velocity_z: wp.vec2 = _NONE,
    velocity_roll: wp.vec2 = _NONE,
    velocity_pitch: wp.vec2 = _NONE,
    velocity_yaw: wp.vec2 = _NONE,
    root_body: RootBody = 0,
) -> None:
    """Put the base near the default pose, moved [m] and turned [rad], with a velocity in the world [m/s, rad/s].

    Or another body with a free joint, such as that of an object.
    """
    offset = between(state, env, x, y, z)
    put_root(state, env, root_body, offset, between(state, env, roll, pitch, yaw))
    linear = between(state, env, velocity_x, velocity_y, velocity_z)
    add_root_velocity(state, env, root_body, linear, between(state, env, velocity_roll, velocity_pitch, velocity_yaw))


@wp.func
def reset_joints_by_offset(state: Any, env: int, joints: Joints, position: wp.vec2, velocity: wp.vec2) -> None:
    """Put joints near the default pose [rad or m], within their limits, with a speed [rad/s or m/s]."""
    for i in range(joints.shape[0]):
        position_i = joints[i].default_pos + uniform(state, env, position[0], position[1])
        state.qpos[env, joints[i].qpos] = wp.clamp(position_i, joints[i].lower, joints[i].upper)
        state.qvel[env, joints[i].dof] = uniform(state, env, velocity[0], velocity[1])


@wp.func
def reset_joints_by_scale(state: Any, env: int, joints: Joints, position: wp.vec2, velocity: wp.vec2) -> None:
    """Put joints at the default pose times a factor, within their limits, and multiply their speeds. Isaac Lab's."""
    for i in range(joints.shape[0]):
        position_i = joints[i].default_pos * uniform(state, env, position[0], position[1])
        state.qpos[env, joints[i].qpos] = wp.clamp(position_i, joints[i].lower, joints[i].upper)
        state.qvel[env, joints[i].dof] = state.qvel[env, joints[i].dof] * uniform(state, env, velocity[0], velocity[1])


@wp.func
def reset_mocap_pose_uniform(
    state: Any,
    env: int,
    body: Annotated[BodyId, MOCAP],
    x: wp.vec2 = _NONE,
    y: wp.vec2 = _NONE,
    z: wp.vec2 = _NONE,
    roll: wp.vec2 = _NONE,
    pitch: wp.vec2 = _NONE,
    yaw: wp.vec2 = _NONE,
) -> None:
    """Put a body that is moved by the task (`base` mocap) near its default pose, moved [m] and turned [rad]."""
    mocap = state.default_body_mocapid[body]
    turn = between(state, env, roll, pitch, yaw)
    placed = quat_of(state.default_body_quat[body]) * wp.quat_rpy(turn[0], turn[1], turn[2])
    state.mocap_pos[env, mocap] = state.default_body_pos[body] + between(state, env, x, y, z)
    state.mocap_quat[env, mocap] = wp.vec4(placed[3], placed[0], placed[1], placed[2])


@wp.func
def hold_default_pose(state: Any, env: int, actuators: Annotated[Actuators, POSITION]) -> None:
    """Set the targets of position actuators to the default pose."""
    for i in range(actuators.shape[0]):
        state.ctrl[env, actuators[i].index] = actuators[i].gear * actuators[i].default_pos


@wp.func
def push_by_setting_velocity(
    state: Any,
    env: int,
    x: wp.vec2,
    y: wp.vec2,
    z: wp.vec2 = _NONE,
    roll: wp.vec2 = _NONE,
    pitch: wp.vec2 = _NONE,
    yaw: wp.vec2 = _NONE,
    root_body: RootBody = 0,
) -> None:
    """Change the velocity of the base, or another body with a free joint, in the world [m/s, rad/s]."""
    linear = between(state, env, x, y, z)
    add_root_velocity(state, env, root_body, linear, between(state, env, roll, pitch, yaw))


@wp.func
def apply_external_force_torque(state: Any, env: int, bodies: BodyIds, force: wp.vec2, torque: wp.vec2) -> None:
    """Apply a constant force [N] and torque [N m] to bodies, drawn for each part, in the world; of mode `reset`."""
    for i in range(bodies.shape[0]):
        push = between(state, env, force, force, force)
        state.xfrc_applied[env, bodies[i]] = wp.spatial_vector(push, between(state, env, torque, torque, torque))


@wp.func
def apply_body_impulse(
    state: Any,
    env: int,
    bodies: BodyIds,
    force: wp.vec2,
    torque: wp.vec2,
    duration: wp.vec2,
    interval: wp.vec2,
    memory: Memory,
) -> None:
    """Apply a force [N] and torque [N m] to bodies for a `duration` [s], in intervals [s] that follow; of mode `step`.

    Each part is drawn in the world, and acts at the centre of mass. An episode begins with an interval.
    """
    left = memory[env, 0]  # The time that is left: of an impulse above 0, until the next one below.
    acts = left > 0.0
    left = wp.where(acts, wp.max(left - state.step_dt, 0.0), wp.min(left + state.step_dt, 0.0))
    if left == 0.0:
        if acts or memory[env, 0] == 0.0:
            for i in range(bodies.shape[0]):
                state.xfrc_applied[env, bodies[i]] = wp.spatial_vector()
            left = -uniform(state, env, interval[0], interval[1])
        else:
            apply_external_force_torque(state, env, bodies, force, torque)
            left = uniform(state, env, duration[0], duration[1])
    memory[env, 0] = left


@wp.func
def apply_assistance(
    state: Any,
    env: int,
    body: BodyId,
    command: CommandColumn,
    strength: float,
    upright: float,
    damping: float,
    drive: float,
    turn: float,
    lift: float,
) -> None:
    """Apply a force and a torque to a body that hold the base upright and move it as commanded; of mode `step`.

    The torque is `upright` [N m] times the sine of the base's tilt, less `damping` [N m s/rad] times its angular
    velocity about horizontal axes, and about the vertical `turn` [N m s/rad] times the error of the velocity; the force
    is `drive` [N s/m] times the error along horizontal axes, and `lift` [N] up. All are multiplied by `strength`, which
    a curriculum lowers to 0. Yu, Turk and Liu, "Learning symmetric and low-energy locomotion", arXiv:1801.08093.
    """
    turned, wanted = base_quat(state, env), command_at(state, env, command)
    up = wp.quat_rotate(turned, wp.vec3(0.0, 0.0, 1.0))
    spin = wp.quat_rotate(turned, base_ang_vel(state, env))
    ahead = wp.quat_rotate(turned, wp.vec3(1.0, 0.0, 0.0))
    ahead = wp.normalize(wp.vec3(ahead[0], ahead[1], 0.0))
    error = wanted[0] * ahead + wanted[1] * wp.vec3(-ahead[1], ahead[0], 0.0) - lin_vel_w(state, env)
    torque = upright * wp.cross(up, wp.vec3(0.0, 0.0, 1.0)) - damping * spin
    torque = wp.vec3(torque[0], torque[1], turn * (wanted[2] - spin[2]))
    force = wp.vec3(drive * error[0], drive * error[1], lift)
    state.xfrc_applied[env, body] = wp.spatial_vector(strength * force, strength * torque)
