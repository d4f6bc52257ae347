"""Actions, rewards and observations of a legged robot that follows a velocity, as Warp kernels.

The robot's free joint comes first: ``qpos`` begins with the trunk's position and quaternion (real part first), ``qvel``
with its velocity in the world and its angular velocity in its own frame, as MuJoCo has it. One joint follows for each
actuator, in the actuators' order.
"""

# Kernel bodies are Warp's language, whose numbers and arrays pyright reads as Python's. Arrays come by position.
# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false, reportInvalidTypeForm=false
# pyright: reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

import warp as wp

from shoal.sim.engines.engine import vec10
from shoal.tasks.quadruped.ground import Ground, clearance_of, surface_at

TRACK_LINEAR = wp.constant(0)
TRACK_ANGULAR = wp.constant(1)
LIN_VEL_Z = wp.constant(2)
ANG_VEL_XY = wp.constant(3)
FLAT_ORIENTATION = wp.constant(4)
JOINT_TORQUES = wp.constant(5)
JOINT_ACC = wp.constant(6)
ACTION_RATE = wp.constant(7)
FEET_AIR_TIME = wp.constant(8)
JOINT_DEVIATION = wp.constant(9)
FEET_SLIP = wp.constant(10)

TERMS = (
    "track_linear_velocity",
    "track_angular_velocity",
    "lin_vel_z",
    "ang_vel_xy",
    "flat_orientation",
    "joint_torques",
    "joint_acc",
    "action_rate",
    "feet_air_time",
    "joint_deviation",
    "feet_slip",
)
"""Names of the columns of the terms, by the numbers above."""

STANDING = wp.constant(0.1)
"""A command that is slower in all is one to stand still [m/s + rad/s]."""
LARGEST_ACTION = wp.constant(10.0)
"""Actions are clipped to this; a policy that has gone astray must not ask for angles without bounds."""


@wp.struct
class Rules:
    """Numbers of rewards and failures."""

    step_dt: wp.float32
    """Time between two actions [s]."""
    sigma: wp.float32
    """Squared error at which a tracking term has fallen to 1/e."""
    swing_time: wp.float32
    """Time in the air that is worth nothing [s]."""
    lowest_gravity: wp.float32
    """The trunk's vertical part of gravity above which it leans too much: minus the cosine of the limit."""
    height_limit: wp.float32
    """Height of the trunk above the ground below which it has fallen [m]."""
    foot_radius: wp.float32
    """A foot whose middle is less than this above the ground touches it [m]."""


@wp.func
def to_trunk(qpos: wp.array2d[wp.float32], env: wp.int32, vector: wp.vec3) -> wp.vec3:
    """Turn a vector of the world into the trunk's frame."""
    # Warp's quaternions have the real part last.
    turn = wp.quat(qpos[env, 4], qpos[env, 5], qpos[env, 6], qpos[env, 3])
    return wp.quat_rotate_inv(turn, vector)


@wp.func
def speed_of(qvel: wp.array2d[wp.float32], env: wp.int32) -> wp.vec3:
    """Return the trunk's velocity in the world [m/s]."""
    return wp.vec3(qvel[env, 0], qvel[env, 1], qvel[env, 2])


@wp.func
def turning_of(qvel: wp.array2d[wp.float32], env: wp.int32) -> wp.vec3:
    """Return the trunk's angular velocity in its own frame [rad/s]."""
    return wp.vec3(qvel[env, 3], qvel[env, 4], qvel[env, 5])


@wp.func
def clipped(action: wp.float32) -> wp.float32:
    """Return an action within bounds."""
    return wp.clamp(action, -LARGEST_ACTION, LARGEST_ACTION)


@wp.func
def is_standing(command: wp.vec3) -> wp.bool:
    """Whether a command is to stand still."""
    return wp.abs(command[0]) + wp.abs(command[1]) + wp.abs(command[2]) < STANDING


@wp.func
def command_to(commands: wp.array2d[wp.float32], env: wp.int32) -> wp.vec3:
    """Return the command to one robot: forwards [m/s], to the left [m/s], turning left [rad/s]."""
    return wp.vec3(commands[env, 0], commands[env, 1], commands[env, 2])


@wp.kernel(enable_backward=False)
def actuate(
    actions: wp.array2d[wp.float32],
    standing: wp.array[wp.float32],
    scale: wp.float32,
    ctrl: wp.array2d[wp.float32],
) -> None:
    """Ask for joint angles around those of the keyframe. One thread for each number."""
    env, joint = wp.tid()
    ctrl[env, joint] = standing[joint] + scale * clipped(actions[env, joint])


@wp.kernel(enable_backward=False)
def judge_trunk(
    rules: Rules,
    ground: Ground,
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    commands: wp.array2d[wp.float32],
    terms: wp.array2d[wp.float32],
    terminated: wp.array[wp.bool],
    errors: wp.array2d[wp.float32],
) -> None:
    """Judge how well the command was followed, and how quietly; fail what has fallen."""
    env = wp.tid()
    command = command_to(commands, env)
    speed = to_trunk(qpos, env, speed_of(qvel, env))
    turning = turning_of(qvel, env)
    gravity = to_trunk(qpos, env, wp.vec3(0.0, 0.0, -1.0))
    x_error = command[0] - speed[0]
    y_error = command[1] - speed[1]
    yaw_error = command[2] - turning[2]
    squared_error = x_error * x_error + y_error * y_error
    errors[env, 0] = wp.sqrt(squared_error)
    errors[env, 1] = wp.abs(yaw_error)
    terms[env, TRACK_LINEAR] = wp.exp(-squared_error / rules.sigma)
    terms[env, TRACK_ANGULAR] = wp.exp(-yaw_error * yaw_error / rules.sigma)
    terms[env, LIN_VEL_Z] = speed[2] * speed[2]
    terms[env, ANG_VEL_XY] = turning[0] * turning[0] + turning[1] * turning[1]
    terms[env, FLAT_ORIENTATION] = gravity[0] * gravity[0] + gravity[1] * gravity[1]
    height = qpos[env, 2] - surface_at(ground, qpos[env, 0], qpos[env, 1])[0]
    terminated[env] = gravity[2] > rules.lowest_gravity or height < rules.height_limit


@wp.kernel(enable_backward=False)
def judge_joints(
    rules: Rules,
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    ctrl: wp.array2d[wp.float32],
    actions: wp.array2d[wp.float32],
    standing: wp.array[wp.float32],
    gainprm: wp.array2d[vec10],
    biasprm: wp.array2d[vec10],
    torque_limits: wp.array[wp.float32],
    commands: wp.array2d[wp.float32],
    last_actions: wp.array2d[wp.float32],
    last_speeds: wp.array2d[wp.float32],
    terms: wp.array2d[wp.float32],
) -> None:
    """Judge what the motors did. Torques are those that this environment's gains give after the step."""
    env = wp.tid()
    torques = wp.float32(0.0)
    accelerations = wp.float32(0.0)
    rates = wp.float32(0.0)
    deviation = wp.float32(0.0)
    for joint in range(actions.shape[1]):
        angle = qpos[env, 7 + joint]
        speed = qvel[env, 6 + joint]
        limit = torque_limits[joint]
        torque = gainprm[env, joint][0] * (ctrl[env, joint] - angle) + biasprm[env, joint][2] * speed
        torque = wp.clamp(torque, -limit, limit)
        acceleration = (speed - last_speeds[env, joint]) / rules.step_dt
        action = clipped(actions[env, joint])
        change = action - last_actions[env, joint]
        away = angle - standing[joint]
        torques += torque * torque
        accelerations += acceleration * acceleration
        rates += change * change
        deviation += away * away
        last_speeds[env, joint] = speed
        last_actions[env, joint] = action
    terms[env, JOINT_TORQUES] = torques
    terms[env, JOINT_ACC] = accelerations
    terms[env, ACTION_RATE] = rates
    terms[env, JOINT_DEVIATION] = wp.where(is_standing(command_to(commands, env)), 10.0 * deviation, deviation)


@wp.kernel(enable_backward=False)
def judge_feet(
    rules: Rules,
    ground: Ground,
    geom_xpos: wp.array2d[wp.vec3],
    feet: wp.array[wp.int32],
    commands: wp.array2d[wp.float32],
    last_feet: wp.array2d[wp.vec3],
    air_times: wp.array2d[wp.float32],
    terms: wp.array2d[wp.float32],
) -> None:
    """Judge long swings, and feet that slip. The air time of a foot whose episode has just begun is negative."""
    env = wp.tid()
    stands = is_standing(command_to(commands, env))
    swings = wp.float32(0.0)
    slips = wp.float32(0.0)
    for foot in range(feet.shape[0]):
        place = geom_xpos[env, feet[foot]]
        speed = (place - last_feet[env, foot]) / rules.step_dt
        last_feet[env, foot] = place
        air_time = air_times[env, foot]
        if clearance_of(ground, place) > rules.foot_radius:
            air_times[env, foot] = wp.max(air_time, 0.0) + rules.step_dt
        else:
            if air_time > 0.0 and not stands:
                swings += air_time - rules.swing_time
            if air_time == 0.0:
                slips += speed[0] * speed[0] + speed[1] * speed[1]
            air_times[env, foot] = 0.0
    terms[env, FEET_AIR_TIME] = swings / rules.step_dt  # A rate: it counts in this step alone.
    terms[env, FEET_SLIP] = slips


@wp.struct
class Noise:
    """Largest errors of what the policy observes."""

    speed: wp.float32
    """Of the trunk [m/s]."""
    turning: wp.float32
    """Of the trunk [rad/s]."""
    gravity: wp.float32
    """Of its direction, along each axis."""
    angle: wp.float32
    """Of each joint [rad]."""
    joint_speed: wp.float32
    """Of each joint [rad/s]."""


@wp.kernel(enable_backward=False)
def observe(
    noise: Noise,
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    standing: wp.array[wp.float32],
    commands: wp.array2d[wp.float32],
    last_actions: wp.array2d[wp.float32],
    rng: wp.array[wp.uint32],
    policy: wp.array2d[wp.float32],
    critic: wp.array2d[wp.float32],
) -> None:
    """Observe velocities, gravity, the command, joints and the last action: with errors, and for the critic without."""
    env = wp.tid()
    random = rng[env]
    joints = last_actions.shape[1]
    speed = to_trunk(qpos, env, speed_of(qvel, env))
    turning = turning_of(qvel, env)
    gravity = to_trunk(qpos, env, wp.vec3(0.0, 0.0, -1.0))
    command = command_to(commands, env)
    for axis in range(3):
        critic[env, axis] = speed[axis]
        critic[env, 3 + axis] = turning[axis]
        critic[env, 6 + axis] = gravity[axis]
        critic[env, 9 + axis] = command[axis]
        policy[env, axis] = speed[axis] + noise.speed * wp.randf(random, -1.0, 1.0)
        policy[env, 3 + axis] = turning[axis] + noise.turning * wp.randf(random, -1.0, 1.0)
        policy[env, 6 + axis] = gravity[axis] + noise.gravity * wp.randf(random, -1.0, 1.0)
        policy[env, 9 + axis] = command[axis]
    for joint in range(joints):
        angle = qpos[env, 7 + joint] - standing[joint]
        joint_speed = qvel[env, 6 + joint]
        critic[env, 12 + joint] = angle
        critic[env, 12 + joints + joint] = joint_speed
        critic[env, 12 + 2 * joints + joint] = last_actions[env, joint]
        policy[env, 12 + joint] = angle + noise.angle * wp.randf(random, -1.0, 1.0)
        policy[env, 12 + joints + joint] = joint_speed + noise.joint_speed * wp.randf(random, -1.0, 1.0)
        policy[env, 12 + 2 * joints + joint] = last_actions[env, joint]
    rng[env] = random
