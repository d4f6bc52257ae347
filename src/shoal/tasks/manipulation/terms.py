"""Terms of manipulation. Names, definitions and parameters are those of mjlab's manipulation tasks.

`object_body` is what is manipulated, `site` the point between the fingers, `command` the object's goal in the world.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import warp as wp

from shoal.mdp.annotations import BodyId, BodyIds, CommandColumn, Joints, RootBody, SiteId
from shoal.mdp.base import body_ang_vel_w, body_lin_vel_w, command_at, qpos_of
from shoal.mdp.events import reset_root_state_uniform
from shoal.mdp.marks import shows
from shoal.mdp.needs import columns
from shoal.mdp.observations import ee_to_object_distance, object_to_goal_distance
from shoal.mdp.random import uniform, uniform_int
from shoal.sim.render.marks import Mark, Sphere

ObjectCommand = Annotated[CommandColumn, columns(4)]
"""The first column of a command of `multi_cube_lifting`."""


def goal_sphere(task: Any, first: int, row: Mapping[str, np.ndarray]) -> list[Mark]:
    """Return the goal as a sphere."""
    del task
    return [Sphere(row["commands"][first : first + 3], radius=0.02)]


@shows(goal_sphere)
@wp.func
def uniform_position(
    state: Any, env: int, first: Annotated[int, columns(3)], x: wp.vec2, y: wp.vec2, z: wp.vec2
) -> None:
    """Draw a position in the world [m]."""
    state.commands[env, first] = uniform(state, env, x[0], x[1])
    state.commands[env, first + 1] = uniform(state, env, y[0], y[1])
    state.commands[env, first + 2] = uniform(state, env, z[0], z[1])


@shows(goal_sphere)
@wp.func
def multi_cube_lifting(
    state: Any,
    env: int,
    first: Annotated[int, columns(4)],
    object_bodies: BodyIds,
    x: wp.vec2,
    y: wp.vec2,
    z: wp.vec2,
) -> None:
    """Draw a position in the world [m], and as fourth column which of the objects is to go there, counted from 0."""
    uniform_position(state, env, first, x, y, z)
    state.commands[env, first + 3] = float(uniform_int(state, env, object_bodies.shape[0]))


# Observations.


@wp.func
def ee_velocity(state: Any, env: int, site: SiteId) -> wp.vec3:
    """Return the velocity of a site in its own frame [m/s]."""
    body = state.default_site_bodyid[site]
    arm = state.site_xpos[env, site] - state.xpos[env, body]
    velocity = body_lin_vel_w(state, env, body) + wp.cross(body_ang_vel_w(state, env, body), arm)
    return wp.transpose(state.site_xmat[env, site]) * velocity


@wp.func
def target_position(state: Any, env: int, site: SiteId, command: CommandColumn) -> wp.vec3:
    """Return the vector from a site to the object's goal, in the site's frame [m]."""
    return wp.transpose(state.site_xmat[env, site]) * (command_at(state, env, command) - state.site_xpos[env, site])


# Rewards.


@wp.func
def staged_position_reward(
    state: Any,
    env: int,
    site: SiteId,
    object_body: BodyId,
    command: CommandColumn,
    reaching_std: float,
    bringing_std: float,
) -> float:
    """Reward a site near the object, and with it an object near its goal: reaching (1 + bringing).

    Each is exp(-distance² / std²).
    """
    reach = ee_to_object_distance(state, env, site, object_body)
    reaching = wp.exp(-wp.dot(reach, reach) / (reaching_std * reaching_std))
    return reaching * (1.0 + bring_object_reward(state, env, object_body, command, bringing_std))


@wp.func
def bring_object_reward(state: Any, env: int, object_body: BodyId, command: CommandColumn, std: float) -> float:
    """Reward an object near its goal: exp(-distance² / std²)."""
    left = object_to_goal_distance(state, env, object_body, command)
    return wp.exp(-wp.dot(left, left) / (std * std))


@wp.func
def multi_cube_staged_position_reward(
    state: Any,
    env: int,
    site: SiteId,
    object_bodies: BodyIds,
    command: ObjectCommand,
    reaching_std: float,
    bringing_std: float,
) -> float:
    """Return `staged_position_reward` of the object that the command `multi_cube_lifting` names."""
    chosen = object_bodies[int(state.commands[env, command + 3])]
    return staged_position_reward(state, env, site, chosen, command, reaching_std, bringing_std)


@wp.func
def multi_cube_bring_object_reward(
    state: Any, env: int, object_bodies: BodyIds, command: ObjectCommand, std: float
) -> float:
    """Return `bring_object_reward` of the object that the command `multi_cube_lifting` names."""
    chosen = object_bodies[int(state.commands[env, command + 3])]
    return bring_object_reward(state, env, chosen, command, std)


@wp.func
def joint_velocity_hinge_penalty(state: Any, env: int, joints: Joints, max_vel: float) -> float:
    """Penalise speeds of joints beyond `max_vel` [rad/s or m/s], squared."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        excess = wp.max(wp.abs(state.qvel[env, joints[i].dof]) - max_vel, 0.0)
        total += excess * excess
    return total


# Events.


@wp.func
def reset_object(
    state: Any,
    env: int,
    root_body: RootBody,
    finger_joints: Joints,
    x: wp.vec2,
    y: wp.vec2,
    yaw: wp.vec2,
    in_hand: float,
    hand: wp.vec3,
    grip: float,
) -> None:
    """Put the object on the ground, moved [m] and turned about z [rad] from the default pose; or between the fingers.

    With the probability `in_hand` it is at `hand` [m], where the fingers
    of an arm in the default pose are, at `grip` [m]: holding it is learned before it is ever lifted.
    """
    reset_root_state_uniform(state, env, x, y, yaw=yaw, root_body=root_body)
    if uniform(state, env, 0.0, 1.0) < in_hand:
        first = qpos_of(state, root_body)
        for column in range(3):
            state.qpos[env, first + column] = hand[column]
        for column in range(3, 7):
            state.qpos[env, first + column] = state.home[first + column]
        for i in range(finger_joints.shape[0]):
            state.qpos[env, finger_joints[i].qpos] = grip


# Terminations.


@wp.func
def object_out_of_reach(state: Any, env: int, object_body: BodyId, radius: float) -> bool:
    """Whether the object is further than `radius` from the world's origin [m]."""
    return wp.length(state.xpos[env, object_body]) > radius


# Metrics.


@wp.func
def position_error(state: Any, env: int, object_body: BodyId, command: CommandColumn) -> float:
    """Return the distance of the object from its goal [m]."""
    return wp.length(object_to_goal_distance(state, env, object_body, command))


@wp.func
def object_height(state: Any, env: int, object_body: BodyId) -> float:
    """Return the height of the object [m]."""
    return state.xpos[env, object_body][2]


@wp.func
def at_goal(state: Any, env: int, object_body: BodyId, command: CommandColumn, success_threshold: float) -> float:
    """Return 1 where the object is less than `success_threshold` from its goal [m], else 0."""
    return wp.where(position_error(state, env, object_body, command) < success_threshold, 1.0, 0.0)
