"""Actions, rewards and observations of a legged robot that tracks a velocity, as Warp kernels.

The robot's free joint comes first: ``qpos`` begins with the base's position and quaternion (real part first), ``qvel``
with its velocity in the world and its angular velocity in its own frame, as MuJoCo has it. One joint follows for each
actuator, in the actuators' order.
"""

# Kernel bodies are Warp's language, whose numbers and arrays pyright reads as Python's. Arrays come by position.
# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false, reportInvalidTypeForm=false
# pyright: reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

import warp as wp

from shoal.mdp.ground import Ground, clearance_of, surface_at
from shoal.sim.engines.engine import vec10

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
"""Names of the columns of the terms."""

STANDING = wp.constant(0.1)
"""A command with a smaller sum of speeds is one to stand still [m/s + rad/s]."""
LARGEST_ACTION = wp.constant(10.0)
"""Actions are clipped to this: a policy that diverges must not command unbounded angles."""


@wp.struct
class RewardParams:
    """Parameters of rewards and terminations."""

    step_dt: wp.float32
    sigma: wp.float32
    """Squared error at which a tracking term has fallen to 1/e."""
    swing_time: wp.float32
    """Air time with reward 0 [s]."""
    lowest_gravity: wp.float32
    """The base's vertical part of gravity above which it leans too much: minus the cosine of the limit."""
    height_limit: wp.float32
    """Height of the base above the ground below which it has fallen [m]."""
    foot_radius: wp.float32
    """A foot whose middle is less than this above the ground touches it [m]."""


@wp.func
def to_base(qpos: wp.array2d[wp.float32], env: wp.int32, vector: wp.vec3) -> wp.vec3:
    """Rotate a vector from the world to the base's frame."""
    # Warp's quaternions have the real part last.
    turn = wp.quat(qpos[env, 4], qpos[env, 5], qpos[env, 6], qpos[env, 3])
    return wp.quat_rotate_inv(turn, vector)


@wp.func
def lin_vel_of(qvel: wp.array2d[wp.float32], env: wp.int32) -> wp.vec3:
    """Return the base's velocity in the world [m/s]."""
    return wp.vec3(qvel[env, 0], qvel[env, 1], qvel[env, 2])


@wp.func
def ang_vel_of(qvel: wp.array2d[wp.float32], env: wp.int32) -> wp.vec3:
    """Return the base's angular velocity in its own frame [rad/s]."""
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
def command_of(commands: wp.array2d[wp.float32], env: wp.int32) -> wp.vec3:
    """Return the command of one robot: lin_vel x and y [m/s], ang_vel z [rad/s]."""
    return wp.vec3(commands[env, 0], commands[env, 1], commands[env, 2])


@wp.kernel(enable_backward=False)
def apply_actions(
    actions: wp.array2d[wp.float32],
    default_joint_pos: wp.array[wp.float32],
    scale: wp.float32,
    ctrl: wp.array2d[wp.float32],
) -> None:
    """Joint position targets around the keyframe. One thread for each number."""
    env, joint = wp.tid()
    ctrl[env, joint] = default_joint_pos[joint] + scale * clipped(actions[env, joint])


@wp.kernel(enable_backward=False)
def compute_base_rewards(
    rules: RewardParams,
    ground: Ground,
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    commands: wp.array2d[wp.float32],
    terms: wp.array2d[wp.float32],
    terminated: wp.array[wp.bool],
    metrics: wp.array2d[wp.float32],
) -> None:
    """Rewards of tracking and of the base's motion; terminates where the robot has fallen."""
    env = wp.tid()
    command = command_of(commands, env)
    lin_vel = to_base(qpos, env, lin_vel_of(qvel, env))
    ang_vel = ang_vel_of(qvel, env)
    gravity = to_base(qpos, env, wp.vec3(0.0, 0.0, -1.0))
    x_error = command[0] - lin_vel[0]
    y_error = command[1] - lin_vel[1]
    yaw_error = command[2] - ang_vel[2]
    squared_error = x_error * x_error + y_error * y_error
    metrics[env, 0] = wp.sqrt(squared_error)
    metrics[env, 1] = wp.abs(yaw_error)
    terms[env, wp.static(TERMS.index("track_linear_velocity"))] = wp.exp(-squared_error / rules.sigma)
    terms[env, wp.static(TERMS.index("track_angular_velocity"))] = wp.exp(-yaw_error * yaw_error / rules.sigma)
    terms[env, wp.static(TERMS.index("lin_vel_z"))] = lin_vel[2] * lin_vel[2]
    terms[env, wp.static(TERMS.index("ang_vel_xy"))] = ang_vel[0] * ang_vel[0] + ang_vel[1] * ang_vel[1]
    terms[env, wp.static(TERMS.index("flat_orientation"))] = gravity[0] * gravity[0] + gravity[1] * gravity[1]
    height = qpos[env, 2] - surface_at(ground, qpos[env, 0], qpos[env, 1])[0]
    terminated[env] = gravity[2] > rules.lowest_gravity or height < rules.height_limit


@wp.kernel(enable_backward=False)
def compute_joint_rewards(
    rules: RewardParams,
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    ctrl: wp.array2d[wp.float32],
    actions: wp.array2d[wp.float32],
    default_joint_pos: wp.array[wp.float32],
    gainprm: wp.array2d[vec10],
    biasprm: wp.array2d[vec10],
    torque_limits: wp.array[wp.float32],
    commands: wp.array2d[wp.float32],
    last_actions: wp.array2d[wp.float32],
    last_joint_vel: wp.array2d[wp.float32],
    terms: wp.array2d[wp.float32],
) -> None:
    """Rewards of joints and actions. Torques follow from this environment's gains after the step."""
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
        acceleration = (speed - last_joint_vel[env, joint]) / rules.step_dt
        action = clipped(actions[env, joint])
        change = action - last_actions[env, joint]
        away = angle - default_joint_pos[joint]
        torques += torque * torque
        accelerations += acceleration * acceleration
        rates += change * change
        deviation += away * away
        last_joint_vel[env, joint] = speed
        last_actions[env, joint] = action
    terms[env, wp.static(TERMS.index("joint_torques"))] = torques
    terms[env, wp.static(TERMS.index("joint_acc"))] = accelerations
    terms[env, wp.static(TERMS.index("action_rate"))] = rates
    terms[env, wp.static(TERMS.index("joint_deviation"))] = wp.where(
        is_standing(command_of(commands, env)), 10.0 * deviation, deviation
    )


@wp.kernel(enable_backward=False)
def compute_feet_rewards(
    rules: RewardParams,
    ground: Ground,
    geom_xpos: wp.array2d[wp.vec3],
    feet: wp.array[wp.int32],
    commands: wp.array2d[wp.float32],
    last_feet: wp.array2d[wp.vec3],
    air_times: wp.array2d[wp.float32],
    terms: wp.array2d[wp.float32],
) -> None:
    """Rewards of air time and foot slip. The air time of a foot whose episode has just begun is negative."""
    env = wp.tid()
    stands = is_standing(command_of(commands, env))
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
    terms[env, wp.static(TERMS.index("feet_air_time"))] = swings / rules.step_dt  # A rate.
    terms[env, wp.static(TERMS.index("feet_slip"))] = slips


@wp.struct
class Noise:
    """Largest errors of the policy's observations."""

    lin_vel: wp.float32
    ang_vel: wp.float32
    gravity: wp.float32
    joint_pos: wp.float32
    joint_vel: wp.float32


@wp.kernel(enable_backward=False)
def observe(
    noise: Noise,
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    default_joint_pos: wp.array[wp.float32],
    commands: wp.array2d[wp.float32],
    last_actions: wp.array2d[wp.float32],
    rng: wp.array[wp.uint32],
    policy: wp.array2d[wp.float32],
    critic: wp.array2d[wp.float32],
) -> None:
    """Velocities, gravity, command, joints and last actions: with noise for the policy, without for the critic."""
    env = wp.tid()
    random = rng[env]
    joints = last_actions.shape[1]
    lin_vel = to_base(qpos, env, lin_vel_of(qvel, env))
    ang_vel = ang_vel_of(qvel, env)
    gravity = to_base(qpos, env, wp.vec3(0.0, 0.0, -1.0))
    command = command_of(commands, env)
    for axis in range(3):
        critic[env, axis] = lin_vel[axis]
        critic[env, 3 + axis] = ang_vel[axis]
        critic[env, 6 + axis] = gravity[axis]
        critic[env, 9 + axis] = command[axis]
        policy[env, axis] = lin_vel[axis] + noise.lin_vel * wp.randf(random, -1.0, 1.0)
        policy[env, 3 + axis] = ang_vel[axis] + noise.ang_vel * wp.randf(random, -1.0, 1.0)
        policy[env, 6 + axis] = gravity[axis] + noise.gravity * wp.randf(random, -1.0, 1.0)
        policy[env, 9 + axis] = command[axis]
    for joint in range(joints):
        angle = qpos[env, 7 + joint] - default_joint_pos[joint]
        joint_vel = qvel[env, 6 + joint]
        critic[env, 12 + joint] = angle
        critic[env, 12 + joints + joint] = joint_vel
        critic[env, 12 + 2 * joints + joint] = last_actions[env, joint]
        policy[env, 12 + joint] = angle + noise.joint_pos * wp.randf(random, -1.0, 1.0)
        policy[env, 12 + joints + joint] = joint_vel + noise.joint_vel * wp.randf(random, -1.0, 1.0)
        policy[env, 12 + 2 * joints + joint] = last_actions[env, joint]
    rng[env] = random
