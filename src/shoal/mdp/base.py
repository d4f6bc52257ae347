"""The base of a robot in its own frame, and bodies with a free joint: what many terms need.

The robot's free joint is the model's first: ``qpos`` begins with the base's position and quaternion (real part first),
``qvel`` with its velocity in the world and its angular velocity in its own frame, as MuJoCo has it.
"""

from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import BodyId, CommandColumn, RootBody
from shoal.mdp.needs import FreeBody, FreeJointState, columns


@wp.func
def quat_at(qpos: wp.array2d[wp.float32], env: int, first: int) -> wp.quat:
    """Return the quaternion in four columns from `first` on. Warp's quaternions have the real part last."""
    return wp.quat(qpos[env, first + 1], qpos[env, first + 2], qpos[env, first + 3], qpos[env, first])


@wp.func
def base_quat(state: FreeJointState, env: int) -> wp.quat:
    """Return the base's orientation."""
    return quat_at(state.qpos, env, 3)


@wp.func
def to_base(state: Any, env: int, vector: wp.vec3) -> wp.vec3:
    """Rotate a vector from the world to the base's frame."""
    return wp.quat_rotate_inv(base_quat(state, env), vector)


@wp.func
def lin_vel_w(state: FreeJointState, env: int) -> wp.vec3:
    """Return the base's velocity in the world [m/s]."""
    return wp.vec3(state.qvel[env, 0], state.qvel[env, 1], state.qvel[env, 2])


@wp.func
def base_lin_vel(state: Any, env: int) -> wp.vec3:
    """Return the base's velocity in its own frame [m/s]."""
    return to_base(state, env, lin_vel_w(state, env))


@wp.func
def base_ang_vel(state: FreeJointState, env: int) -> wp.vec3:
    """Return the base's angular velocity in its own frame [rad/s]."""
    return wp.vec3(state.qvel[env, 3], state.qvel[env, 4], state.qvel[env, 5])


@wp.func
def projected_gravity(state: Any, env: int) -> wp.vec3:
    """Return the direction of gravity in the base's frame."""
    return to_base(state, env, wp.vec3(0.0, 0.0, -1.0))


@wp.func
def command_at(state: Any, env: int, command: Annotated[CommandColumn, columns(3)]) -> wp.vec3:
    """Return the three columns of a command that begin at `command`."""
    return wp.vec3(state.commands[env, command], state.commands[env, command + 1], state.commands[env, command + 2])


@wp.func
def heading_w(state: Any, env: int) -> float:
    """Return the angle of the base's x axis about the world's z, -pi to pi [rad]."""
    ahead = wp.quat_rotate(base_quat(state, env), wp.vec3(1.0, 0.0, 0.0))
    return wp.atan2(ahead[1], ahead[0])


@wp.func
def is_commanded(state: Any, env: int, command: CommandColumn, threshold: float) -> float:
    """Return 1 where the commanded speed, along x and y [m/s] plus about z [rad/s], exceeds a threshold, else 0."""
    wanted = command_at(state, env, command)
    return wp.where(wp.length(wp.vec2(wanted[0], wanted[1])) + wp.abs(wanted[2]) > threshold, 1.0, 0.0)


@wp.func
def periods_of(state: Any, env: int, period: float) -> float:
    """Return how many periods, each of `period` [s], have passed since the episode began."""
    return wp.float32(state.age[env]) * state.step_dt / period


@wp.func
def quat_of(real_first: wp.vec4) -> wp.quat:
    """Return MuJoCo's quaternion as Warp's, whose real part is last."""
    return wp.quat(real_first[1], real_first[2], real_first[3], real_first[0])


@wp.func
def quat_error_magnitude(a: wp.quat, b: wp.quat) -> float:
    """Return the angle of the rotation from one orientation to another, 0 to pi [rad]."""
    turn = wp.quat_inverse(a) * b
    return 2.0 * wp.atan2(wp.length(wp.vec3(turn[0], turn[1], turn[2])), wp.abs(turn[3]))


@wp.func
def yaw_quat(turn: wp.quat) -> wp.quat:
    """Return the part of a rotation that is about z: that of its yaw angle."""
    yaw = wp.atan2(2.0 * (turn[3] * turn[2] + turn[0] * turn[1]), 1.0 - 2.0 * (turn[1] * turn[1] + turn[2] * turn[2]))
    return wp.quat_from_axis_angle(wp.vec3(0.0, 0.0, 1.0), yaw)


@wp.func
def two_columns(turn: wp.quat) -> wp.spatial_vector:
    """Return the first two columns of a rotation's matrix, row by row."""
    matrix = wp.quat_to_matrix(turn)
    return wp.spatial_vector(matrix[0, 0], matrix[0, 1], matrix[1, 0], matrix[1, 1], matrix[2, 0], matrix[2, 1])


@wp.func
def body_lin_vel_w(state: Any, env: int, body: BodyId) -> wp.vec3:
    """Return the velocity of a body's origin in the world [m/s]."""
    # MuJoCo has velocities at the centre of mass of all that hangs together.
    velocity = state.cvel[env, body]
    arm = state.xpos[env, body] - state.subtree_com[env, state.default_body_rootid[body]]
    return wp.spatial_bottom(velocity) + wp.cross(wp.spatial_top(velocity), arm)


@wp.func
def body_ang_vel_w(state: Any, env: int, body: BodyId) -> wp.vec3:
    """Return the angular velocity of a body in the world [rad/s]."""
    return wp.spatial_top(state.cvel[env, body])


@wp.func
def qpos_of(state: Any, root_body: FreeBody) -> int:
    """Return the first of seven columns of ``qpos`` of a body with a free joint."""
    return state.default_jnt_qposadr[state.default_body_jntadr[root_body]]


@wp.func
def qvel_of(state: Any, root_body: FreeBody) -> int:
    """Return the first of six columns of ``qvel`` of a body with a free joint."""
    return state.default_jnt_dofadr[state.default_body_jntadr[root_body]]


@wp.func
def root_quat(state: Any, env: int, root_body: RootBody) -> wp.quat:
    """Return the orientation of a body with a free joint."""
    return quat_at(state.qpos, env, qpos_of(state, root_body) + 3)


@wp.func
def put_root(state: Any, env: int, root_body: RootBody, offset: wp.vec3, angles: wp.vec3) -> None:
    """Put a body with a free joint into the default pose, at rest, moved in the world [m] and turned by angles [rad].

    The angles are roll, pitch and yaw in its own frame.
    """
    first, speed = qpos_of(state, root_body), qvel_of(state, root_body)
    turn = wp.quat(
        state.home[first + 4], state.home[first + 5], state.home[first + 6], state.home[first + 3]
    ) * wp.quat_rpy(angles[0], angles[1], angles[2])
    for column in range(3):
        state.qpos[env, first + column] = state.home[first + column] + offset[column]
        state.qpos[env, first + 4 + column] = turn[column]
    state.qpos[env, first + 3] = turn[3]
    for column in range(6):
        state.qvel[env, speed + column] = 0.0
