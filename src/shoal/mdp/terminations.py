"""Terminations. Names are mjlab's where it has the term."""

from typing import Any

import warp as wp

from shoal.mdp.base import projected_gravity
from shoal.mdp.contact_rewards import undesired_contacts
from shoal.mdp.contacts import Contact
from shoal.mdp.ground import base_height
from shoal.mdp.levels import out_of_terrain_bounds  # noqa: F401  Named here.
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
def illegal_contact(state: Any, env: wp.int32, contact: Contact, force_threshold: wp.float32 = 10.0) -> wp.bool:
    """Whether one of the geoms or bodies is touched with more than a force [N]."""
    return undesired_contacts(state, env, contact, force_threshold) > 0.0
