"""Reward terms, and metrics. Names, parameters and signs are mjlab's where it has the term.

A term is a rate: the task multiplies it by its weight and the length of a step.
"""

from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import (
    ActionColumns,
    ActuatorIds,
    Actuators,
    BodyId,
    CommandColumn,
    Joints,
    Memory,
    Numbers,
    SensorColumn,
)
from shoal.mdp.base import base_ang_vel, base_lin_vel, body_ang_vel_w, command_at, projected_gravity, quat_of
from shoal.mdp.contact_rewards import (  # noqa: F401  Rewards are named here.
    feet_air_time,
    feet_clearance,
    feet_gait,
    feet_slip,
    feet_swing_height,
    feet_swing_time,
    is_commanded,
    is_standing,
    self_collision_cost,
    self_collision_substeps,
    soft_landing,
    undesired_contacts,
)
from shoal.mdp.ground import base_height
from shoal.mdp.needs import columns


@wp.func
def error_lin_vel(state: Any, env: int, command: CommandColumn) -> float:
    """Return the distance of the base's horizontal velocity from its command [m/s]."""
    error = command_at(state, env, command) - base_lin_vel(state, env)
    return wp.length(wp.vec2(error[0], error[1]))


@wp.func
def error_ang_vel(state: Any, env: int, command: CommandColumn) -> float:
    """Return the distance of the base's angular velocity about z from its command [rad/s]."""
    return wp.abs(command_at(state, env, command)[2] - base_ang_vel(state, env)[2])


@wp.func
def average_error_ang_vel(state: Any, env: int, command: CommandColumn, time: float, memory: Memory) -> float:
    """Return the distance of the base's angular velocity about z from its command, averaged over `time` [s; rad/s].

    The average is exponential, and of the signed error: over the period of its steps a robot sways to both sides, which
    says nothing about where it turns.
    """
    error = command_at(state, env, command)[2] - base_ang_vel(state, env)[2]
    memory[env, 0] += (1.0 - wp.exp(-state.step_dt / time)) * (error - memory[env, 0])
    return wp.abs(memory[env, 0])


@wp.func
def is_alive(state: Any, env: int) -> float:
    """Return 1 unless the episode ends by a termination that is no time-out."""
    return wp.where(state.terminated[env], 0.0, 1.0)


@wp.func
def is_terminated(state: Any, env: int) -> float:
    """Return 1 where the episode ends by a termination that is no time-out."""
    return wp.where(state.terminated[env], 1.0, 0.0)


@wp.func
def track_linear_velocity(state: Any, env: int, command: CommandColumn, std: float) -> float:
    """Reward the commanded velocity, 0 along z: 1 without error, 1/e with an error of `std` [m/s]."""
    error = error_lin_vel(state, env, command)
    return wp.exp(-(error * error + lin_vel_z_l2(state, env)) / (std * std))


@wp.func
def track_angular_velocity(state: Any, env: int, command: CommandColumn, std: float) -> float:
    """Reward the commanded angular velocity, 0 about x and y: 1 without error, 1/e with an error of `std` [rad/s]."""
    error = error_ang_vel(state, env, command)
    return wp.exp(-(error * error + ang_vel_xy_l2(state, env)) / (std * std))


@wp.func
def track_lin_vel_xy_exp(state: Any, env: int, command: CommandColumn, std: float) -> float:
    """Reward the commanded horizontal velocity: 1 without error, 1/e with an error of `std` [m/s]. Isaac Lab's."""
    error = error_lin_vel(state, env, command)
    return wp.exp(-error * error / (std * std))


@wp.func
def track_ang_vel_z_exp(state: Any, env: int, command: CommandColumn, std: float) -> float:
    """Reward the commanded angular velocity about z: 1 without error, 1/e with an error of `std` [rad/s]."""
    error = error_ang_vel(state, env, command)
    return wp.exp(-error * error / (std * std))


@wp.func
def track_average_ang_vel_z_exp(
    state: Any, env: int, command: CommandColumn, std: float, time: float, memory: Memory
) -> float:
    """Reward the commanded angular velocity about z, averaged over `time` [s]: 1/e with an error of `std` [rad/s]."""
    error = average_error_ang_vel(state, env, command, time, memory)
    return wp.exp(-error * error / (std * std))


@wp.func
def base_height_l2(state: Any, env: int, target_height: float) -> float:
    """Penalise the distance of the base's height above the ground from a target [m], squared."""
    error = base_height(state, env) - target_height
    return error * error


@wp.func
def lin_vel_z_l2(state: Any, env: int) -> float:
    """Penalise the base's vertical velocity in its own frame, squared."""
    velocity = base_lin_vel(state, env)
    return velocity[2] * velocity[2]


@wp.func
def ang_vel_xy_l2(state: Any, env: int) -> float:
    """Penalise the base's roll and pitch velocities, squared."""
    velocity = base_ang_vel(state, env)
    return velocity[0] * velocity[0] + velocity[1] * velocity[1]


@wp.func
def flat_orientation_l2(state: Any, env: int) -> float:
    """Penalise the horizontal part of gravity in the base's frame, squared."""
    gravity = projected_gravity(state, env)
    return gravity[0] * gravity[0] + gravity[1] * gravity[1]


@wp.func
def upright(state: Any, env: int, body: BodyId, std: float) -> float:
    """Reward a body that stands upright: exp(-(horizontal part of gravity in its frame)² / std²)."""
    down = wp.quat_rotate_inv(quat_of(state.xquat[env, body]), wp.vec3(0.0, 0.0, -1.0))
    return wp.exp(-(down[0] * down[0] + down[1] * down[1]) / (std * std))


@wp.func
def body_angular_velocity_penalty(state: Any, env: int, body: BodyId) -> float:
    """Penalise a body's angular velocity about the world's x and y, squared."""
    velocity = body_ang_vel_w(state, env, body)
    return velocity[0] * velocity[0] + velocity[1] * velocity[1]


@wp.func
def angular_momentum_penalty(state: Any, env: int, sensor: Annotated[SensorColumn, columns(3)]) -> float:
    """Penalise the angular momentum of a robot, squared; `sensor` is a ``subtreeangmom`` of its base."""
    total = wp.float32(0.0)
    for part in range(3):
        momentum = state.sensordata[env, sensor + part]
        total += momentum * momentum
    return total


@wp.func
def joint_pos_limits(state: Any, env: int, joints: Joints, soft_factor: float = 0.9) -> float:
    """Penalise how far joints are outside their soft limits [rad]: those at `soft_factor` of the range."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        middle = 0.5 * (joints[i].lower + joints[i].upper)
        half = 0.5 * soft_factor * (joints[i].upper - joints[i].lower)
        total += wp.max(wp.abs(state.qpos[env, joints[i].qpos] - middle) - half, 0.0)
    return total


@wp.func
def posture(state: Any, env: int, joints: Joints, std: Numbers) -> float:
    """Reward the default pose: exp(-mean of (distance of a joint / its std)²)."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        error = (state.qpos[env, joints[i].qpos] - joints[i].default_pos) / std[i]
        total += error * error
    return wp.exp(-total / wp.float32(joints.shape[0]))


@wp.func
def variable_posture(
    state: Any,
    env: int,
    joints: Joints,
    command: CommandColumn,
    std_standing: Numbers,
    std_walking: Numbers,
    std_running: Numbers,
    walking_threshold: float = 0.5,
    running_threshold: float = 1.5,
) -> float:
    """Reward the default pose: exp(-mean of (distance of a joint / its std)²), whose std depends on the command.

    The speed of a command is that along x and y [m/s] plus that about z [rad/s].
    """
    wanted = command_at(state, env, command)
    speed = wp.length(wp.vec2(wanted[0], wanted[1])) + wp.abs(wanted[2])
    if speed >= running_threshold:
        return posture(state, env, joints, std_running)
    if speed >= walking_threshold:
        return posture(state, env, joints, std_walking)
    return posture(state, env, joints, std_standing)


@wp.func
def joint_torques_l2(state: Any, env: int, actuators: Actuators) -> float:
    """Penalise the torques of all actuators of joints in the last physics step, squared."""
    total = wp.float32(0.0)
    for i in range(actuators.shape[0]):
        torque = state.qfrc_actuator[env, actuators[i].dof]
        total += actuators[i].share * torque * torque
    return total


@wp.func
def electrical_power_cost(state: Any, env: int, actuators: Actuators) -> float:
    """Penalise the mechanical power of actuators of joints, where they do not brake [W]."""
    total = wp.float32(0.0)
    for i in range(actuators.shape[0]):
        power = state.qfrc_actuator[env, actuators[i].dof] * state.qvel[env, actuators[i].dof]
        total += actuators[i].share * wp.max(power, 0.0)
    return total


@wp.func
def joint_vel_l2(state: Any, env: int, joints: Joints) -> float:
    """Penalise the speeds of joints, squared."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        total += state.qvel[env, joints[i].dof] * state.qvel[env, joints[i].dof]
    return total


@wp.func
def joint_acc_l2(state: Any, env: int, joints: Joints, memory: Memory) -> float:
    """Penalise the change of the joints' speeds in a step, as accelerations squared."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        speed = state.qvel[env, joints[i].dof]
        acceleration = (speed - memory[env, i]) / state.step_dt
        memory[env, i] = speed
        total += acceleration * acceleration
    return total


@wp.func
def action_l2(state: Any, env: int) -> float:
    """Penalise large actions, squared."""
    total = wp.float32(0.0)
    for i in range(state.action.shape[1]):
        total += state.action[env, i] * state.action[env, i]
    return total


@wp.func
def action_rate_l2(state: Any, env: int) -> float:
    """Penalise the change of the actions, squared."""
    total = wp.float32(0.0)
    for i in range(state.action.shape[1]):
        change = state.action[env, i] - state.last_action[env, i]
        total += change * change
    return total


@wp.func
def next_action_acc(state: Any, env: int, i: int, column: int, memory: Memory) -> float:
    """Return the second difference of the action in a column, and remember the first."""
    change = state.action[env, column] - state.last_action[env, column]
    before = memory[env, i]
    memory[env, i] = change
    return change - before


@wp.func
def action_acc_l2(
    state: Any,
    env: int,
    actuators: ActuatorIds,  # noqa: ARG001  The columns of their actions follow.
    action_columns: ActionColumns,
    memory: Memory,
) -> float:
    """Penalise the second difference of the actions of actuators, squared."""
    total = wp.float32(0.0)
    for i in range(action_columns.shape[0]):
        acceleration = next_action_acc(state, env, i, action_columns[i], memory)
        total += acceleration * acceleration
    return total


@wp.func
def mean_action_acc(
    state: Any,
    env: int,
    actuators: ActuatorIds,  # noqa: ARG001  The columns of their actions follow.
    action_columns: ActionColumns,
    memory: Memory,
) -> float:
    """Return the mean magnitude of the second difference of the actions of actuators."""
    total = wp.float32(0.0)
    for i in range(action_columns.shape[0]):
        total += wp.abs(next_action_acc(state, env, i, action_columns[i], memory))
    return total / wp.float32(action_columns.shape[0])


@wp.func
def joint_deviation_l1(state: Any, env: int, joints: Joints) -> float:
    """Penalise distances from the default pose [rad or m]."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        total += wp.abs(state.qpos[env, joints[i].qpos] - joints[i].default_pos)
    return total


@wp.func
def stand_still(state: Any, env: int, joints: Joints, command: CommandColumn, command_threshold: float = 0.1) -> float:
    """Penalise distances from the default pose [rad or m] where no speed above a threshold is commanded."""
    return joint_deviation_l1(state, env, joints) * (1.0 - is_commanded(state, env, command, command_threshold))


@wp.func
def joint_deviation_l2(
    state: Any, env: int, joints: Joints, command: CommandColumn, threshold: float, standing: float
) -> float:
    """Penalise distances from the default pose, squared; `standing` times as much where the command is to stand."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        away = state.qpos[env, joints[i].qpos] - joints[i].default_pos
        total += away * away
    return wp.where(is_standing(state, env, command, threshold), standing * total, total)
