"""Terms of motion tracking. Names, definitions and weights are mjlab's, which follow BeyondMimic (arXiv 2508.08241).

`anchor_body` is the body by which the motion is moved to where the robot is; the *moved* pose of a body is its pose in
the motion, turned about z and shifted horizontally so that the anchors agree.
"""

from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import Actuators, BodyId, BodyIds, Joints, Numbers
from shoal.mdp.base import (
    base_quat,
    body_ang_vel_w,
    body_lin_vel_w,
    quat_error_magnitude,
    quat_of,
    two_columns,
    yaw_quat,
)
from shoal.mdp.events import between
from shoal.mdp.needs import POSITION
from shoal.mdp.random import uniform, uniform_int


@wp.struct
class Reference:
    """The motion. Arrays have a row for each frame, and a column for each of all bodies."""

    frames: wp.int32
    qpos: wp.array2d[wp.float32]
    qvel: wp.array2d[wp.float32]
    body_pos: wp.array2d[wp.vec3]
    body_quat: wp.array2d[wp.quat]
    body_lin_vel: wp.array2d[wp.vec3]
    body_ang_vel: wp.array2d[wp.vec3]
    targets: wp.array2d[wp.float32]  # A column for each actuator.


# The frame, and poses.


@wp.func
def frame_of(state: Any, env: int) -> int:
    """Return the frame that the robot is to be in after the present step."""
    return wp.min(state.start_frame[env] + state.age[env], state.reference.frames - 1)


@wp.func
def next_frame_of(state: Any, env: int) -> int:
    """Return the frame that the robot is to be in after the next step: what is observed."""
    return wp.min(state.start_frame[env] + state.age[env] + 1, state.reference.frames - 1)


@wp.func
def heading_to_robot(state: Any, env: int, anchor: int) -> wp.quat:
    """Return the rotation about z from the motion's anchor to the robot's."""
    turn = quat_of(state.xquat[env, anchor]) * wp.quat_inverse(state.reference.body_quat[frame_of(state, env), anchor])
    return yaw_quat(turn)


@wp.func
def moved_pos(state: Any, env: int, anchor: int, body: BodyId) -> wp.vec3:
    """Return the moved position of a body [m]; heights are the motion's."""
    frame = frame_of(state, env)
    origin = state.reference.body_pos[frame, anchor]
    position = wp.vec3(state.xpos[env, anchor][0], state.xpos[env, anchor][1], origin[2])
    offset = state.reference.body_pos[frame, body] - origin
    return position + wp.quat_rotate(heading_to_robot(state, env, anchor), offset)


@wp.func
def moved_quat(state: Any, env: int, anchor: int, body: BodyId) -> wp.quat:
    """Return the moved orientation of a body."""
    return heading_to_robot(state, env, anchor) * state.reference.body_quat[frame_of(state, env), body]


# Actions.


@wp.func
def motion_joint_position(
    state: Any, env: int, i: int, action: float, actuators: Annotated[Actuators, POSITION], scale: Numbers
) -> None:
    """Set the target of a position actuator, `scale` [rad or m] for each unit of the action, around the motion's.

    That is the one with whose torque the joint does what the motion does, by inverse dynamics, see `targets_of`.
    Johannink et al., "Residual reinforcement learning for robot control", arXiv:1812.03201.
    """
    target = state.reference.targets[frame_of(state, env), actuators[i].index] + scale[i] * action
    state.ctrl[env, actuators[i].index] = actuators[i].gear * (target - state.encoder_bias[env, actuators[i].dof])


# Observations.


@wp.func
def motion_joint_pos(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the position of a joint in the motion [rad]."""
    return state.reference.qpos[next_frame_of(state, env), joints[i].qpos]


@wp.func
def motion_joint_vel(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the speed of a joint in the motion [rad/s]."""
    return state.reference.qvel[next_frame_of(state, env), joints[i].dof]


@wp.func
def motion_anchor_pos_b(state: Any, env: int, anchor_body: BodyId) -> wp.vec3:
    """Return the anchor's position in the motion, in the robot's anchor's frame [m]."""
    offset = state.reference.body_pos[next_frame_of(state, env), anchor_body] - state.xpos[env, anchor_body]
    return wp.quat_rotate_inv(quat_of(state.xquat[env, anchor_body]), offset)


@wp.func
def motion_anchor_ori_b(state: Any, env: int, anchor_body: BodyId) -> wp.spatial_vector:
    """Return the anchor's orientation in the motion, in the robot's anchor's frame: two columns of its matrix."""
    turn = wp.quat_inverse(quat_of(state.xquat[env, anchor_body]))
    return two_columns(turn * state.reference.body_quat[next_frame_of(state, env), anchor_body])


@wp.func
def robot_body_pos_b(state: Any, env: int, i: int, bodies: BodyIds, anchor_body: BodyId) -> wp.vec3:
    """Return the position of a body in the anchor's frame [m]."""
    offset = state.xpos[env, bodies[i]] - state.xpos[env, anchor_body]
    return wp.quat_rotate_inv(quat_of(state.xquat[env, anchor_body]), offset)


@wp.func
def robot_body_ori_b(state: Any, env: int, i: int, bodies: BodyIds, anchor_body: BodyId) -> wp.spatial_vector:
    """Return the orientation of a body in the anchor's frame: two columns of its matrix."""
    turn = wp.quat_inverse(quat_of(state.xquat[env, anchor_body]))
    return two_columns(turn * quat_of(state.xquat[env, bodies[i]]))


# Rewards.


@wp.func
def motion_global_anchor_position_error_exp(state: Any, env: int, anchor_body: BodyId, std: float) -> float:
    """Return exp(-(distance of the anchor from the motion)² / std²), in the world."""
    error = state.reference.body_pos[frame_of(state, env), anchor_body] - state.xpos[env, anchor_body]
    return wp.exp(-wp.dot(error, error) / (std * std))


@wp.func
def motion_global_anchor_orientation_error_exp(state: Any, env: int, anchor_body: BodyId, std: float) -> float:
    """Return exp(-(angle of the anchor from the motion)² / std²), in the world."""
    wanted = state.reference.body_quat[frame_of(state, env), anchor_body]
    error = quat_error_magnitude(wanted, quat_of(state.xquat[env, anchor_body]))
    return wp.exp(-error * error / (std * std))


@wp.func
def motion_relative_body_position_error_exp(
    state: Any, env: int, bodies: BodyIds, anchor_body: BodyId, std: float
) -> float:
    """Return exp(-mean of (distance of a body from its moved position)² / std²)."""
    total = wp.float32(0.0)
    for i in range(bodies.shape[0]):
        error = moved_pos(state, env, anchor_body, bodies[i]) - state.xpos[env, bodies[i]]
        total += wp.dot(error, error)
    return wp.exp(-total / float(bodies.shape[0]) / (std * std))


@wp.func
def motion_relative_body_orientation_error_exp(
    state: Any, env: int, bodies: BodyIds, anchor_body: BodyId, std: float
) -> float:
    """Return exp(-mean of (angle of a body from its moved orientation)² / std²)."""
    total = wp.float32(0.0)
    for i in range(bodies.shape[0]):
        error = quat_error_magnitude(
            moved_quat(state, env, anchor_body, bodies[i]), quat_of(state.xquat[env, bodies[i]])
        )
        total += error * error
    return wp.exp(-total / float(bodies.shape[0]) / (std * std))


@wp.func
def motion_global_body_linear_velocity_error_exp(state: Any, env: int, bodies: BodyIds, std: float) -> float:
    """Return exp(-mean of (difference of a body's velocity from the motion's)² / std²), in the world."""
    total = wp.float32(0.0)
    for i in range(bodies.shape[0]):
        wanted = state.reference.body_lin_vel[frame_of(state, env), bodies[i]]
        error = wanted - body_lin_vel_w(state, env, bodies[i])
        total += wp.dot(error, error)
    return wp.exp(-total / float(bodies.shape[0]) / (std * std))


@wp.func
def motion_global_body_angular_velocity_error_exp(state: Any, env: int, bodies: BodyIds, std: float) -> float:
    """Return exp(-mean of (difference of a body's angular velocity from the motion's)² / std²), in the world."""
    total = wp.float32(0.0)
    for i in range(bodies.shape[0]):
        wanted = state.reference.body_ang_vel[frame_of(state, env), bodies[i]]
        error = wanted - body_ang_vel_w(state, env, bodies[i])
        total += wp.dot(error, error)
    return wp.exp(-total / float(bodies.shape[0]) / (std * std))


# Terminations.


@wp.func
def motion_ended(state: Any, env: int) -> bool:
    """Whether the motion has no further frame."""
    return state.start_frame[env] + state.age[env] >= state.reference.frames - 1


@wp.func
def bad_anchor_pos(state: Any, env: int, anchor_body: BodyId, threshold: float) -> bool:
    """Whether the anchor is further than `threshold` from the motion's [m]."""
    wanted = state.reference.body_pos[frame_of(state, env), anchor_body]
    return wp.length(wanted - state.xpos[env, anchor_body]) > threshold


@wp.func
def bad_anchor_pos_z_only(state: Any, env: int, anchor_body: BodyId, threshold: float) -> bool:
    """Whether the height of the anchor is further than `threshold` from the motion's [m]."""
    wanted = state.reference.body_pos[frame_of(state, env), anchor_body]
    return wp.abs(wanted[2] - state.xpos[env, anchor_body][2]) > threshold


@wp.func
def bad_anchor_ori(state: Any, env: int, anchor_body: BodyId, threshold: float) -> bool:
    """Whether the anchor leans otherwise: the z of gravity's direction in the two frames differs by `threshold`."""
    down = wp.vec3(0.0, 0.0, -1.0)
    wanted = wp.quat_rotate_inv(state.reference.body_quat[frame_of(state, env), anchor_body], down)
    actual = wp.quat_rotate_inv(quat_of(state.xquat[env, anchor_body]), down)
    return wp.abs(wanted[2] - actual[2]) > threshold


@wp.func
def bad_motion_body_pos(state: Any, env: int, bodies: BodyIds, anchor_body: BodyId, threshold: float) -> bool:
    """Whether one of the bodies is further than `threshold` from its moved position [m]."""
    furthest = wp.float32(0.0)
    for i in range(bodies.shape[0]):
        error = moved_pos(state, env, anchor_body, bodies[i]) - state.xpos[env, bodies[i]]
        furthest = wp.max(furthest, wp.length(error))
    return furthest > threshold


@wp.func
def bad_motion_body_pos_z_only(state: Any, env: int, bodies: BodyIds, anchor_body: BodyId, threshold: float) -> bool:
    """Whether the height of one of the bodies is further than `threshold` from the motion's [m]."""
    furthest = wp.float32(0.0)
    for i in range(bodies.shape[0]):
        error = moved_pos(state, env, anchor_body, bodies[i])[2] - state.xpos[env, bodies[i]][2]
        furthest = wp.max(furthest, wp.abs(error))
    return furthest > threshold


# Events.


@wp.func
def start_on_motion(
    state: Any,
    env: int,
    actuators: Annotated[Actuators, POSITION],
    joints: Joints,
    uniform_ratio: float,
    before: float,
    from_start: bool,
    position: wp.vec2,
    x: wp.vec2,
    y: wp.vec2,
    z: wp.vec2,
    roll: wp.vec2,
    pitch: wp.vec2,
    yaw: wp.vec2,
) -> None:
    """Put the robot into a frame of the motion, moved [m], turned [rad], and with joints nearby [rad].

    The frame is drawn where another environment's last episode failed, up to `before` seconds earlier; or from all
    frames, with the probability `uniform_ratio` and where that episode did not fail. With `from_start` it is the first.
    """
    # The others read `known_failure`, which `follow_failures` writes in another kernel.
    state.own_failure[env] = wp.where(state.time_out[env], 0, state.last_frame[env])
    frame = uniform_int(state, env, state.reference.frames - 1)
    other = uniform_int(state, env, state.known_failure.shape[0])
    earlier = wp.int32(uniform(state, env, 0.0, before) / state.step_dt)
    if uniform(state, env, 0.0, 1.0) >= uniform_ratio and state.known_failure[other] > 0:
        frame = wp.max(state.known_failure[other] - earlier, 0)
    if from_start:
        frame = 0
    state.start_frame[env] = frame
    for column in range(state.reference.qpos.shape[1]):
        state.qpos[env, column] = state.reference.qpos[frame, column]
    for column in range(state.reference.qvel.shape[1]):
        state.qvel[env, column] = state.reference.qvel[frame, column]
    offset, angles = between(state, env, x, y, z), between(state, env, roll, pitch, yaw)
    turn = wp.quat_rpy(angles[0], angles[1], angles[2]) * base_quat(state, env)
    state.qpos[env, 3] = turn[3]
    for column in range(3):
        state.qpos[env, column] = state.qpos[env, column] + offset[column]
        state.qpos[env, 4 + column] = turn[column]
    for i in range(joints.shape[0]):
        angle = state.qpos[env, joints[i].qpos] + uniform(state, env, position[0], position[1])
        state.qpos[env, joints[i].qpos] = wp.clamp(angle, joints[i].lower, joints[i].upper)
    for i in range(actuators.shape[0]):
        state.ctrl[env, actuators[i].index] = actuators[i].gear * state.qpos[env, actuators[i].qpos]


@wp.func
def apply_motion_assistance(
    state: Any,
    env: int,
    body: BodyId,
    strength: float,
    stiffness: float,
    damping: float,
    upright: float,
    spin: float,
) -> None:
    """Apply a force and a torque to a body that draw it to the motion; of mode `step`.

    The force is `stiffness` [N/m] times the distance and `damping` [N s/m] times the difference of the velocity, the
    torque `upright` [N m/rad] times twice the sine of half the angle and `spin` [N m s/rad] times the difference of the
    angular velocity. All are multiplied by `strength`, which a curriculum lowers to 0. Yuan and Kitani, "Residual force
    control for agile human behavior imitation and extended motion synthesis", arXiv:2006.07364.
    """
    frame, motion = frame_of(state, env), state.reference
    distance = motion.body_pos[frame, body] - state.xpos[env, body]
    velocity = motion.body_lin_vel[frame, body] - body_lin_vel_w(state, env, body)
    turn = motion.body_quat[frame, body] * wp.quat_inverse(quat_of(state.xquat[env, body]))
    angle = 2.0 * wp.where(turn[3] < 0.0, -1.0, 1.0) * wp.vec3(turn[0], turn[1], turn[2])
    speed = motion.body_ang_vel[frame, body] - body_ang_vel_w(state, env, body)
    force = stiffness * distance + damping * velocity
    state.xfrc_applied[env, body] = wp.spatial_vector(strength * force, strength * (upright * angle + spin * speed))


# Metrics.


@wp.func
def follow_failures(state: Any, env: int) -> None:
    """Let new episodes of the others begin where the last one failed, see `start_on_motion`."""
    state.known_failure[env] = state.own_failure[env]
    state.last_frame[env] = frame_of(state, env)


@wp.func
def failed_share(state: Any, env: int) -> float:
    """Return 1 where the last episode of an environment failed."""
    return wp.where(state.own_failure[env] > 0, 1.0, 0.0)


@wp.func
def error_body_pos(state: Any, env: int, bodies: BodyIds, anchor_body: BodyId) -> float:
    """Return the mean distance of bodies from their moved positions [m]."""
    total = wp.float32(0.0)
    for i in range(bodies.shape[0]):
        total += wp.length(moved_pos(state, env, anchor_body, bodies[i]) - state.xpos[env, bodies[i]])
    return total / float(bodies.shape[0])


@wp.func
def error_joint_pos(state: Any, env: int, joints: Joints) -> float:
    """Return the length of the differences of all joints from the motion [rad]."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        error = state.reference.qpos[frame_of(state, env), joints[i].qpos] - state.qpos[env, joints[i].qpos]
        total += error * error
    return wp.sqrt(total)
