"""Commands: each writes its columns of `state.commands` from `first` on.

A function with a parameter `is_new` is called in every step, before observations: it draws where `is_new`, and else
updates the command. Others are called when a command is to be drawn. None is called while a viewer holds the commands.
"""

import math
from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import Memory
from shoal.mdp.base import base_quat, heading_w, yaw_quat
from shoal.mdp.events import between
from shoal.mdp.ground import surface_at
from shoal.mdp.levels import drawn_patch
from shoal.mdp.marks import shows, twist_arrows
from shoal.mdp.needs import columns
from shoal.mdp.random import happens, uniform
from shoal.mdp.rewards import error_ang_vel, error_lin_vel

_AROUND = wp.vec2(-math.pi, math.pi)


@shows(twist_arrows)
@wp.func
def uniform_velocity(
    state: Any,
    env: int,
    first: Annotated[int, columns(3)],
    lin_vel_x: wp.vec2,
    lin_vel_y: wp.vec2,
    ang_vel_z: wp.vec2,
    rel_standing_envs: float,
) -> None:
    """Draw a velocity of the base along x and y [m/s] and about z [rad/s]; a share of them is to stand still."""
    velocity = between(state, env, lin_vel_x, lin_vel_y, ang_vel_z)
    moves = wp.where(happens(state, env, rel_standing_envs), 0.0, 1.0)
    for column in range(3):
        state.commands[env, first + column] = moves * velocity[column]


@shows(twist_arrows, error_vel_xy=error_lin_vel, error_vel_yaw=error_ang_vel)
@wp.func
def uniform_velocity_command(
    state: Any,
    env: int,
    first: Annotated[int, columns(3)],
    is_new: bool,
    lin_vel_x: wp.vec2,
    lin_vel_y: wp.vec2,
    ang_vel_z: wp.vec2,
    memory: Annotated[wp.array2d[wp.spatial_vector], Memory],
    heading: wp.vec2 = _AROUND,
    heading_command: bool = False,
    heading_control_stiffness: float = 1.0,
    rel_standing_envs: float = 0.0,
    rel_heading_envs: float = 1.0,
    rel_world_envs: float = 0.0,
    rel_forward_envs: float = 0.0,
    init_velocity_prob: float = 0.0,
) -> None:
    """Draw a velocity of the base along x and y [m/s] and about z [rad/s]; shares of them are of other kinds.

    With `heading_command`, the share `rel_heading_envs` turns to a `heading` in the world [rad]: in each step the
    angular velocity is `heading_control_stiffness` [1/s] times what is left, within `ang_vel_z`. `rel_world_envs` keep
    the direction in the world, `rel_forward_envs` walk straight ahead with 0.3 m/s or more, and `rel_standing_envs`
    stand still. With the probability `init_velocity_prob`, an episode begins with the velocity that was drawn.
    """
    if is_new:
        drawn = between(state, env, lin_vel_x, lin_vel_y, ang_vel_z)
        to = uniform(state, env, heading[0], heading[1])
        turns = wp.where(happens(state, env, rel_heading_envs) and heading_command, 1.0, 0.0)
        moves = wp.where(happens(state, env, rel_standing_envs), 0.0, 1.0)
        in_world = wp.where(happens(state, env, rel_world_envs), 1.0, 0.0)
        ahead = wp.vec3(wp.max(wp.abs(drawn[0]), 0.3), 0.0, 0.0)
        velocity = wp.where(happens(state, env, rel_forward_envs), ahead, drawn)
        if happens(state, env, init_velocity_prob) and state.age[env] == 0:
            angular = wp.vec3(0.0, 0.0, velocity[2])
            linear = wp.quat_rotate(base_quat(state, env), velocity - angular)
            for column in range(3):
                state.qvel[env, column] = linear[column]
                state.qvel[env, 3 + column] = angular[column]
        # A heading, 1 if it is followed, a velocity along x and y of the world, 1 if it is followed, and nothing.
        memory[env, 0] = moves * wp.spatial_vector(to, turns, drawn[0], drawn[1], in_world, 0.0)
        for column in range(3):
            state.commands[env, first + column] = moves * velocity[column]
    followed = memory[env, 0]
    if followed[1] > 0.0:
        rate = heading_control_stiffness * wrapped(followed[0] - heading_w(state, env))
        state.commands[env, first + 2] = wp.clamp(rate, ang_vel_z[0], ang_vel_z[1])
    if followed[4] > 0.0:
        turn = heading_w(state, env)
        state.commands[env, first] = wp.cos(turn) * followed[2] + wp.sin(turn) * followed[3]
        state.commands[env, first + 1] = wp.cos(turn) * followed[3] - wp.sin(turn) * followed[2]


@wp.func
def terrain_based_pose_2d(
    state: Any,
    env: int,
    first: Annotated[int, columns(4)],
    is_new: bool,
    memory: Annotated[wp.array2d[wp.vec4], Memory],
    heading: wp.vec2 = _AROUND,
    simple_heading: bool = False,
) -> None:
    """Draw a flat patch as a target of the base: where it is [m], and a heading there [rad]. Isaac Lab's.

    In each step its four columns are these as seen from the base, turned by its yaw alone. The heading in the world is
    drawn, or with `simple_heading` towards the target or away from it, whichever is nearer.
    """
    base = wp.vec3(state.qpos[env, 0], state.qpos[env, 1], state.qpos[env, 2])
    if is_new:
        patch = drawn_patch(state, env)
        to = uniform(state, env, heading[0], heading[1])
        if simple_heading:
            to = wp.atan2(patch[1] - base[1], patch[0] - base[0])
            if wp.abs(wrapped(to - heading_w(state, env))) > 0.5 * math.pi:
                to = to + math.pi
        height = surface_at(state.ground, patch[0], patch[1])[0] + state.home[2]
        memory[env, 0] = wp.vec4(patch[0], patch[1], height, to)
    target = memory[env, 0]
    away = wp.quat_rotate_inv(yaw_quat(base_quat(state, env)), wp.vec3(target[0], target[1], target[2]) - base)
    for column in range(3):
        state.commands[env, first + column] = away[column]
    state.commands[env, first + 3] = wrapped(target[3] - heading_w(state, env))


@wp.func
def wrapped(angle: float) -> float:
    """Return an angle between -pi and pi [rad]."""
    return wp.atan2(wp.sin(angle), wp.cos(angle))
