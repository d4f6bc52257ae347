"""Reward terms, and metrics. Names, parameters and signs are mjlab's where it has the term.

A term is a rate: the task multiplies it by its weight and the length of a step.
"""

# Kernel bodies are Warp's language, whose numbers and arrays pyright reads as Python's. Arrays come by position.
# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false, reportInvalidTypeForm=false
# pyright: reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

from typing import Any

import warp as wp

from shoal.mdp.base import ang_vel_b, body_ang_vel_w, command_at, gravity_b, lin_vel_b, quat_of
from shoal.mdp.contacts import Contact, has_just_landed, net_force
from shoal.mdp.ground import clearance_of
from shoal.mdp.names import Actuator, Joint


@wp.func
def error_lin_vel(state: Any, env: wp.int32, command: wp.int32) -> wp.float32:
    """Return the distance of the base's horizontal velocity from its command [m/s]."""
    wanted = command_at(state, env, command)
    actual = lin_vel_b(state, env)
    return wp.sqrt(
        (wanted[0] - actual[0]) * (wanted[0] - actual[0]) + (wanted[1] - actual[1]) * (wanted[1] - actual[1])
    )


@wp.func
def error_ang_vel(state: Any, env: wp.int32, command: wp.int32) -> wp.float32:
    """Return the distance of the base's angular velocity about z from its command [rad/s]."""
    return wp.abs(command_at(state, env, command)[2] - ang_vel_b(state, env)[2])


@wp.func
def track_linear_velocity(state: Any, env: wp.int32, command: wp.int32, std: wp.float32) -> wp.float32:
    """Reward the commanded horizontal velocity: 1 without error, 1/e with an error of `std` [m/s]."""
    error = error_lin_vel(state, env, command)
    return wp.exp(-error * error / (std * std))


@wp.func
def track_angular_velocity(state: Any, env: wp.int32, command: wp.int32, std: wp.float32) -> wp.float32:
    """Reward the commanded angular velocity about z: 1 without error, 1/e with an error of `std` [rad/s]."""
    error = error_ang_vel(state, env, command)
    return wp.exp(-error * error / (std * std))


@wp.func
def lin_vel_z_l2(state: Any, env: wp.int32) -> wp.float32:
    """Penalise the base's vertical velocity in its own frame, squared."""
    velocity = lin_vel_b(state, env)
    return velocity[2] * velocity[2]


@wp.func
def ang_vel_xy_l2(state: Any, env: wp.int32) -> wp.float32:
    """Penalise the base's roll and pitch velocities, squared."""
    velocity = ang_vel_b(state, env)
    return velocity[0] * velocity[0] + velocity[1] * velocity[1]


@wp.func
def flat_orientation_l2(state: Any, env: wp.int32) -> wp.float32:
    """Penalise the horizontal part of gravity in the base's frame, squared."""
    gravity = gravity_b(state, env)
    return gravity[0] * gravity[0] + gravity[1] * gravity[1]


@wp.func
def upright(state: Any, env: wp.int32, body: wp.int32, std: wp.float32) -> wp.float32:
    """Reward a body that stands upright: exp(-(horizontal part of gravity in its frame)² / std²)."""
    down = wp.quat_rotate_inv(quat_of(state.xquat[env, body]), wp.vec3(0.0, 0.0, -1.0))
    return wp.exp(-(down[0] * down[0] + down[1] * down[1]) / (std * std))


@wp.func
def body_angular_velocity_penalty(state: Any, env: wp.int32, body: wp.int32) -> wp.float32:
    """Penalise a body's angular velocity about the world's x and y, squared."""
    velocity = body_ang_vel_w(state, env, body)
    return velocity[0] * velocity[0] + velocity[1] * velocity[1]


@wp.func
def joint_pos_limits(state: Any, env: wp.int32, joints: wp.array[Joint], soft_factor: wp.float32 = 0.9) -> wp.float32:
    """Penalise how far joints are outside their soft limits [rad]: those at `soft_factor` of the range."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        middle = 0.5 * (joints[i].lower + joints[i].upper)
        half = 0.5 * soft_factor * (joints[i].upper - joints[i].lower)
        total += wp.max(wp.abs(state.qpos[env, joints[i].qpos] - middle) - half, 0.0)
    return total


@wp.func
def variable_posture(
    state: Any,
    env: wp.int32,
    joints: wp.array[Joint],
    command: wp.int32,
    std_standing: wp.array[wp.float32],
    std_walking: wp.array[wp.float32],
    std_running: wp.array[wp.float32],
    walking_threshold: wp.float32 = 0.5,
    running_threshold: wp.float32 = 1.5,
) -> wp.float32:
    """Reward the default pose: exp(-mean of (distance of a joint / its std)²), whose std depends on the command.

    The speed of a command is that along x and y [m/s] plus that about z [rad/s].
    """
    wanted = command_at(state, env, command)
    speed = wp.length(wp.vec2(wanted[0], wanted[1])) + wp.abs(wanted[2])
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        std = std_standing[i]
        if speed >= running_threshold:
            std = std_running[i]
        elif speed >= walking_threshold:
            std = std_walking[i]
        error = (state.qpos[env, joints[i].qpos] - joints[i].default_pos) / std
        total += error * error
    return wp.exp(-total / wp.float32(joints.shape[0]))


@wp.func
def joint_torques_l2(state: Any, env: wp.int32, actuators: wp.array[Actuator]) -> wp.float32:
    """Penalise the torques of position servos, squared: those that follow from the state after the step."""
    total = wp.float32(0.0)
    for i in range(actuators.shape[0]):
        actuator = actuators[i]
        gain = state.actuator_gainprm[env, actuator.index]
        bias = state.actuator_biasprm[env, actuator.index]
        torque = (
            gain[0] * (state.ctrl[env, actuator.index] - state.qpos[env, actuator.qpos])
            + bias[2] * state.qvel[env, actuator.dof]
        )
        torque = wp.clamp(torque, -actuator.limit, actuator.limit)
        total += torque * torque
    return total


@wp.func
def joint_acc_l2(state: Any, env: wp.int32, joints: wp.array[Joint], memory: wp.array2d[wp.float32]) -> wp.float32:
    """Penalise the change of the joints' speeds in a step, as accelerations squared."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        speed = state.qvel[env, joints[i].dof]
        acceleration = (speed - memory[env, i]) / state.step_dt
        memory[env, i] = speed
        total += acceleration * acceleration
    return total


@wp.func
def action_rate_l2(state: Any, env: wp.int32) -> wp.float32:
    """Penalise the change of the actions, squared."""
    total = wp.float32(0.0)
    for i in range(state.action.shape[1]):
        change = state.action[env, i] - state.last_action[env, i]
        total += change * change
    return total


@wp.func
def is_standing(state: Any, env: wp.int32, command: wp.int32, threshold: wp.float32) -> wp.bool:
    """Whether the command is to stand still: the sum of its speeds is below a threshold."""
    wanted = command_at(state, env, command)
    return wp.abs(wanted[0]) + wp.abs(wanted[1]) + wp.abs(wanted[2]) < threshold


@wp.func
def joint_deviation_l2(
    state: Any, env: wp.int32, joints: wp.array[Joint], command: wp.int32, threshold: wp.float32, standing: wp.float32
) -> wp.float32:
    """Penalise distances from the default pose, squared; `standing` times as much where the command is to stand."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        away = state.qpos[env, joints[i].qpos] - joints[i].default_pos
        total += away * away
    return wp.where(is_standing(state, env, command, threshold), standing * total, total)


@wp.func
def feet_air_time(
    state: Any, env: wp.int32, contact: Contact, command: wp.int32, threshold: wp.float32, swing_time: wp.float32
) -> wp.float32:
    """Reward air time beyond `swing_time` [s] at touch-down, unless the command is to stand."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        if has_just_landed(contact, env, foot, state.step_dt) and contact.last_air_time[env, foot] > 0.0:
            total += contact.last_air_time[env, foot] - swing_time
    return wp.where(is_standing(state, env, command, threshold), 0.0, total / state.step_dt)


@wp.func
def feet_slip(state: Any, env: wp.int32, contact: Contact) -> wp.float32:
    """Penalise the horizontal velocity of feet in contact since more than a step, squared."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        if contact.found[env, foot] and not has_just_landed(contact, env, foot, state.step_dt):
            velocity = contact.velocity[env, foot]
            total += velocity[0] * velocity[0] + velocity[1] * velocity[1]
    return total


@wp.func
def is_commanded(state: Any, env: wp.int32, command: wp.int32, threshold: wp.float32) -> wp.float32:
    """Return 1 where the commanded speed, along x and y [m/s] plus about z [rad/s], exceeds a threshold, else 0."""
    wanted = command_at(state, env, command)
    return wp.where(wp.length(wp.vec2(wanted[0], wanted[1])) + wp.abs(wanted[2]) > threshold, 1.0, 0.0)


@wp.func
def feet_in_air(
    state: Any,
    env: wp.int32,
    contact: Contact,
    command: wp.int32,
    threshold_min: wp.float32 = 0.05,
    threshold_max: wp.float32 = 0.5,
    command_threshold: wp.float32 = 0.5,
) -> wp.float32:
    """Reward feet in the air for a time between two [s], where a speed is commanded. mjlab's `feet_air_time`."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        since = contact.air_time[env, foot]
        total += wp.where(since > threshold_min and since < threshold_max, 1.0, 0.0)
    return total * is_commanded(state, env, command, command_threshold)


@wp.func
def feet_clearance(
    state: Any,
    env: wp.int32,
    contact: Contact,
    command: wp.int32,
    target_height: wp.float32,
    command_threshold: wp.float32 = 0.01,
) -> wp.float32:
    """Penalise (distance of a foot's height above the ground from the target) times its horizontal speed [m²/s]."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        velocity = contact.velocity[env, foot]
        speed = wp.length(wp.vec2(velocity[0], velocity[1]))
        total += wp.abs(clearance_of(state.ground, contact.position[env, foot]) - target_height) * speed
    return total * is_commanded(state, env, command, command_threshold)


@wp.func
def feet_swing_height(
    state: Any,
    env: wp.int32,
    contact: Contact,
    command: wp.int32,
    target_height: wp.float32,
    memory: wp.array2d[wp.float32],
    command_threshold: wp.float32 = 0.01,
) -> wp.float32:
    """Penalise (largest height of a swing / target - 1)², when the foot lands."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        if has_just_landed(contact, env, foot, state.step_dt):
            error = memory[env, foot] / target_height - 1.0
            total += wp.where(contact.last_air_time[env, foot] > 0.0, error * error, 0.0)
            memory[env, foot] = 0.0
        elif not contact.found[env, foot]:
            height = clearance_of(state.ground, contact.position[env, foot])
            memory[env, foot] = wp.max(memory[env, foot], height)
    return total * is_commanded(state, env, command, command_threshold)


@wp.func
def soft_landing(
    state: Any,
    env: wp.int32,
    contact: Contact,
    command: wp.int32,
    bodies: wp.array[wp.int32],
    contact_sensors: wp.array[wp.int32],
    command_threshold: wp.float32 = 0.05,
) -> wp.float32:
    """Penalise the force of feet that land [N]. `bodies` are those of the contact."""
    total = wp.float32(0.0)
    for foot in range(bodies.shape[0]):
        if has_just_landed(contact, env, foot, state.step_dt):
            total += wp.length(net_force(state, env, contact_sensors[foot]))
    return total * is_commanded(state, env, command, command_threshold)


@wp.func
def undesired_contacts(
    state: Any, env: wp.int32, bodies: wp.array[wp.int32], contact_sensors: wp.array[wp.int32], threshold: wp.float32
) -> wp.float32:
    """Penalise each of the bodies that is touched with more than `threshold` [N]."""
    total = wp.float32(0.0)
    for i in range(bodies.shape[0]):
        total += wp.where(wp.length(net_force(state, env, contact_sensors[i])) > threshold, 1.0, 0.0)
    return total
