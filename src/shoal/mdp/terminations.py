"""Terminations. Names are mjlab's where it has the term."""

from typing import Any

import warp as wp

from shoal.mdp.base import projected_gravity
from shoal.mdp.contact_rewards import undesired_contacts
from shoal.mdp.ground import base_height
from shoal.mdp.levels import out_of_terrain_bounds  # noqa: F401  Named here.
from shoal.mdp.names import Joint
from shoal.mdp.needs import needs


@wp.func
def bad_orientation(state: Any, env: wp.int32, limit_angle: wp.float32) -> wp.bool:
    """Whether the base tilts more than `limit_angle` [rad]."""
    return projected_gravity(state, env)[2] > -wp.cos(limit_angle)


@needs(free_joint=1)
@wp.func
def root_height_below_minimum(state: Any, env: wp.int32, minimum_height: wp.float32) -> wp.bool:
    """Whether the base is lower than `minimum_height` above the ground [m]."""
    return base_height(state, env) < minimum_height


@wp.func
def joint_pos_out_of_manual_limit(state: Any, env: wp.int32, joints: wp.array[Joint], bounds: wp.vec2) -> wp.bool:
    """Whether a joint is below the first or above the second of `bounds` [rad or m]. Isaac Lab's."""
    is_out = wp.bool(False)
    for i in range(joints.shape[0]):
        position = state.qpos[env, joints[i].qpos]
        is_out = is_out or position < bounds[0] or position > bounds[1]
    return is_out


@wp.func
def joint_vel_out_of_manual_limit(
    state: Any, env: wp.int32, joints: wp.array[Joint], max_velocity: wp.float32
) -> wp.bool:
    """Whether a joint is faster than `max_velocity` [rad/s or m/s]. Isaac Lab's."""
    is_out = wp.bool(False)
    for i in range(joints.shape[0]):
        is_out = is_out or wp.abs(state.qvel[env, joints[i].dof]) > max_velocity
    return is_out


@wp.func
def illegal_contact(
    state: Any,
    env: wp.int32,
    bodies: wp.array[wp.int32],
    contact_sensors: wp.array[wp.int32],
    force_threshold: wp.float32 = 10.0,
) -> wp.bool:
    """Whether one of the bodies is touched with more than a force [N]."""
    return undesired_contacts(state, env, bodies, contact_sensors, force_threshold) > 0.0
