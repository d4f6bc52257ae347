"""Terms of tasks on rough terrain: levels, which follow how far a robot walks, and the sub-terrains that it begins on.

They read the task's first command as a velocity along x and y [m/s], and need a `TerrainTask`. Isaac Lab and mjlab
promote by the distance from the start, which says little if the command changes every few seconds.
"""

from typing import Any

import warp as wp

from shoal.mdp.annotations import RootBody
from shoal.mdp.base import base_quat, command_at, lin_vel_w, put_root, qpos_of
from shoal.mdp.ground import surface_at
from shoal.mdp.needs import FreeJointState
from shoal.mdp.random import uniform, uniform_int


@wp.struct
class SubTerrains:
    """The sub-terrains of the terrain, and the levels that are used."""

    patches: wp.array3d[wp.vec2]
    """Flat patches of each sub-terrain, or its middle, by level and column of the terrain [m]."""
    centers: wp.array2d[wp.vec2]
    """The middle of each sub-terrain [m]."""
    size: wp.float32
    """Length of the sides of a sub-terrain [m]."""
    edge: wp.vec2
    """Where the ground ends along x and y [m]: beyond it there is ground for the feet, but not for the scan."""
    lowest: wp.int32
    highest: wp.int32
    first_levels: wp.int32
    is_promoting: wp.int32
    """Whether a robot's progress decides. If not, the level of each episode is drawn uniformly."""


@wp.func
def follow_distances(state: Any, env: int) -> None:
    """Add up commanded and walked distances of the episode [m]."""
    command = command_at(state, env, 0)
    speed = wp.sqrt(command[0] * command[0] + command[1] * command[1])
    if speed > 0.0:
        ahead = wp.vec3(command[0] / speed, command[1] / speed, 0.0)
        direction = wp.quat_rotate(base_quat(state, env), ahead)
        # Clamped: a faster step does not make up for a slower one.
        walked = wp.clamp(wp.dot(direction, lin_vel_w(state, env)), 0.0, speed)
        state.commanded_distance[env] = state.commanded_distance[env] + state.step_dt * speed
        state.walked_distance[env] = state.walked_distance[env] + state.step_dt * walked


@wp.func
def walked_share(state: Any, env: int) -> float:
    """Return the share of the commanded distance that was walked in this episode."""
    return state.walked_distance[env] / wp.max(state.commanded_distance[env], 1e-6)


@wp.func
def terrain_level(state: Any, env: int) -> float:
    """Return the level of the terrain, counted from 0."""
    return wp.float32(state.levels[env])


@wp.func
def out_of_terrain_bounds(state: FreeJointState, env: int) -> bool:
    """Whether the robot has come to the edge of the terrain."""
    return (
        wp.abs(state.qpos[env, 0]) > state.sub_terrains.edge[0]
        or wp.abs(state.qpos[env, 1]) > state.sub_terrains.edge[1]
    )


@wp.func
def terrain_edge_reached(state: FreeJointState, env: int, threshold_fraction: float = 0.95) -> bool:
    """Whether the base is this share of half a side away from the middle of its sub-terrain, along x or y.

    Not in the first two steps of an episode, as mjlab's.
    """
    center = state.sub_terrains.centers[state.levels[env], column_of(state, env)]
    away = wp.max(wp.abs(state.qpos[env, 0] - center[0]), wp.abs(state.qpos[env, 1] - center[1]))
    return away > 0.5 * threshold_fraction * state.sub_terrains.size and state.age[env] > 2  # noqa: PLR2004


@wp.func
def column_of(state: Any, env: int) -> int:
    """Return the column of an environment's sub-terrain: environments take turns with the terrains."""
    return (state.first_env[0] + env) % state.sub_terrains.patches.shape[1]


@wp.func
def drawn_patch(state: Any, env: int) -> wp.vec2:
    """Return one of the flat patches of an environment's sub-terrain, or its middle [m]."""
    patch = wp.int32(0)
    if state.sub_terrains.patches.shape[2] > 1:
        patch = uniform_int(state, env, state.sub_terrains.patches.shape[2])
    return state.sub_terrains.patches[state.levels[env], column_of(state, env), patch]


@wp.func
def update_terrain_levels(state: Any, env: int, min_distance: float, promote_at: float, demote_at: float) -> None:
    """Change the level after an episode. Past the highest level, it is drawn uniformly.

    It goes up after at least the share `promote_at` of the commanded distance, and down after a fall or less than
    `demote_at`. Commanded distances below `min_distance` [m] do not count.
    """
    commanded, walked = state.commanded_distance[env], state.walked_distance[env]
    level = state.levels[env]
    counts = commanded >= min_distance
    to_any = state.sub_terrains.is_promoting == 0
    if not state.time_out[env] or (counts and walked < demote_at * commanded):
        level -= 1
    elif counts and walked >= promote_at * commanded:
        level += 1
        to_any = to_any or level > state.sub_terrains.highest
    if to_any:
        level = state.sub_terrains.lowest + uniform_int(
            state, env, state.sub_terrains.highest - state.sub_terrains.lowest + 1
        )
    state.levels[env] = wp.clamp(level, state.sub_terrains.lowest, state.sub_terrains.highest)
    state.commanded_distance[env] = 0.0
    state.walked_distance[env] = 0.0


@wp.func
def draw_first_levels(state: Any, env: int) -> None:
    """Draw the first level from the easiest ones."""
    state.levels[env] = state.sub_terrains.lowest + uniform_int(state, env, state.sub_terrains.first_levels)


@wp.func
def reset_on_sub_terrain(
    state: Any, env: int, spread: float, yaw: wp.vec2, reach: float, root_body: RootBody = 0
) -> None:
    """Put the base, or another free body, near the middle of a sub-terrain of its level, or a flat patch.

    Environments take turns with the sub-terrains. It stands on the highest ground within `reach` along x and y [m], so
    that no foot begins in the ground.
    """
    first = qpos_of(state, root_body)
    put_root(state, env, root_body, wp.vec3(0.0, 0.0, 0.0), wp.vec3(0.0, 0.0, uniform(state, env, yaw[0], yaw[1])))
    center = drawn_patch(state, env)
    x = center[0] + uniform(state, env, -spread, spread)
    y = center[1] + uniform(state, env, -spread, spread)
    height = surface_at(state.ground, x, y)[0]
    for i in range(25):
        right = 0.5 * reach * wp.float32(i % 5 - 2)
        up = 0.5 * reach * wp.float32(i // 5 - 2)
        height = wp.max(height, surface_at(state.ground, x + right, y + up)[0])
    state.qpos[env, first] = x
    state.qpos[env, first + 1] = y
    state.qpos[env, first + 2] = state.qpos[env, first + 2] + height
