"""Commands: each writes its columns of `state.commands` from `first` on."""

from typing import Any

import warp as wp

from shoal.mdp.needs import needs
from shoal.mdp.random import uniform


@needs(first=3)
@wp.func
def uniform_velocity(
    state: Any,
    env: wp.int32,
    first: wp.int32,
    lin_vel_x: wp.vec2,
    lin_vel_y: wp.vec2,
    ang_vel_z: wp.vec2,
    rel_standing_envs: wp.float32,
) -> None:
    """Draw a velocity of the base along x and y [m/s] and about z [rad/s]; a share of them is to stand still."""
    x = uniform(state, env, lin_vel_x[0], lin_vel_x[1])
    y = uniform(state, env, lin_vel_y[0], lin_vel_y[1])
    z = uniform(state, env, ang_vel_z[0], ang_vel_z[1])
    moves = wp.where(uniform(state, env, 0.0, 1.0) < rel_standing_envs, 0.0, 1.0)
    state.commands[env, first] = moves * x
    state.commands[env, first + 1] = moves * y
    state.commands[env, first + 2] = moves * z
