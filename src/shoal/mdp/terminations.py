"""Terminations. Names are mjlab's where it has the term."""

from typing import Any

import warp as wp

from shoal.mdp.annotations import Contacts, Joints
from shoal.mdp.base import projected_gravity
from shoal.mdp.contact_rewards import undesired_contacts
from shoal.mdp.ground import base_height
from shoal.mdp.levels import out_of_terrain_bounds, terrain_edge_reached  # noqa: F401  Named here.
from shoal.mdp.needs import FreeJointState


@wp.func
def bad_orientation(state: Any, env: int, limit_angle: float) -> bool:
    """Whether the base tilts more than `limit_angle` [rad]."""
    return projected_gravity(state, env)[2] > -wp.cos(limit_angle)


@wp.func
def root_height_below_minimum(state: FreeJointState, env: int, minimum_height: float) -> bool:
    """Whether the base is lower than `minimum_height` above the ground [m]."""
    return base_height(state, env) < minimum_height


@wp.func
def joint_pos_out_of_manual_limit(state: Any, env: int, joints: Joints, bounds: wp.vec2) -> bool:
    """Whether a joint is below the first or above the second of `bounds` [rad or m]. Isaac Lab's."""
    is_out = wp.bool(False)
    for i in range(joints.shape[0]):
        position = state.qpos[env, joints[i].qpos]
        is_out = is_out or position < bounds[0] or position > bounds[1]
    return is_out


@wp.func
def joint_vel_out_of_manual_limit(state: Any, env: int, joints: Joints, max_velocity: float) -> bool:
    """Whether a joint is faster than `max_velocity` [rad/s or m/s]. Isaac Lab's."""
    is_out = wp.bool(False)
    for i in range(joints.shape[0]):
        is_out = is_out or wp.abs(state.qvel[env, joints[i].dof]) > max_velocity
    return is_out


@wp.func
def illegal_contact(state: Any, env: int, contact: Contacts, force_threshold: float = 10.0) -> bool:
    """Whether one of the geoms or bodies is touched with more than a force [N]."""
    return undesired_contacts(state, env, contact, force_threshold) > 0.0
