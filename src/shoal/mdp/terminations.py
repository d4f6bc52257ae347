"""Terminations. Names are mjlab's where it has the term."""

from typing import Any

import warp as wp

from shoal.mdp.annotations import Contacts
from shoal.mdp.base import projected_gravity
from shoal.mdp.contact_rewards import undesired_contacts
from shoal.mdp.ground import base_height
from shoal.mdp.levels import out_of_terrain_bounds  # noqa: F401  Named here.
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
def illegal_contact(state: Any, env: int, contact: Contacts, force_threshold: float = 10.0) -> bool:
    """Whether one of the geoms or bodies is touched with more than a force [N]."""
    return undesired_contacts(state, env, contact, force_threshold) > 0.0
