"""Terms of reorientation. Names and definitions are Isaac Lab's.

`root_body` is the object, `command` the goal's orientation in the world, a quaternion with the real part first. A goal
is reached below the angle `state.success_tolerance`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import warp as wp

from shoal.mdp.annotations import CommandColumn, RootBody
from shoal.mdp.base import qpos_of, quat_error_magnitude, quat_of, root_quat
from shoal.mdp.events import between
from shoal.mdp.marks import shows
from shoal.mdp.observations import root_pos_w
from shoal.sim.render.marks import Ghost, Mark

_GHOST_ABOVE = (0.0, 0.0, 0.12)
"""From the cube's first position to the ghost that shows the goal [m]."""


@wp.func
def goal_quat(state: Any, env: int, command: CommandColumn) -> wp.vec4:
    """Return the goal's orientation."""
    goal = state.commands[env]
    return wp.vec4(goal[command], goal[command + 1], goal[command + 2], goal[command + 3])


@wp.func
def orientation_error(state: Any, env: int, root_body: RootBody, command: CommandColumn) -> float:
    """Return the angle from the object to the goal, 0 to pi [rad]."""
    return quat_error_magnitude(root_quat(state, env, root_body), quat_of(goal_quat(state, env, command)))


@wp.func
def success_bonus(state: Any, env: int, root_body: RootBody, command: CommandColumn) -> float:
    """Return 1 where the goal is reached, else 0."""
    return wp.where(orientation_error(state, env, root_body, command) <= state.success_tolerance, 1.0, 0.0)


def goal_ghost(task: Any, first: int, row: Mapping[str, np.ndarray]) -> list[Mark]:
    """Return the object with the goal's orientation, above the hand."""
    position = task.home()[-7:-4] + _GHOST_ABOVE
    pose = np.concatenate([row["qpos"][:-7], position, row["commands"][first : first + 4]])
    return [Ghost(pose, None, body="cube/body")]


@shows(goal_ghost)
@wp.func
def reorientation(
    state: Any, env: int, first: int, root_body: RootBody, roll: wp.vec2, pitch: wp.vec2, yaw: wp.vec2
) -> None:
    """Draw an orientation when an episode begins, and when the last one is reached: turns about x, y and z [rad].

    They are about the axes of a frame that turns with them, as Isaac Lab's are about x and then y.
    """
    reached = success_bonus(state, env, root_body, first)
    state.successes[env] = wp.where(state.age[env] == 0, 0.0, state.successes[env] + reached)
    if state.age[env] == 0 or reached > 0.0:
        angles = between(state, env, roll, pitch, yaw)
        goal = (
            wp.quat_from_axis_angle(wp.vec3(1.0, 0.0, 0.0), angles[0])
            * wp.quat_from_axis_angle(wp.vec3(0.0, 1.0, 0.0), angles[1])
            * wp.quat_from_axis_angle(wp.vec3(0.0, 0.0, 1.0), angles[2])
        )
        state.commands[env, first] = goal[3]
        for column in range(3):
            state.commands[env, first + 1 + column] = goal[column]
    state.last_error[env] = orientation_error(state, env, root_body, first)


# Observations.


@wp.func
def object_pos(state: Any, env: int, root_body: RootBody) -> wp.vec3:
    """Return the vector from the object's first position to the object [m]."""
    first = qpos_of(state, root_body)
    home = wp.vec3(state.home[first], state.home[first + 1], state.home[first + 2])
    return root_pos_w(state, env, root_body) - home


@wp.func
def goal_quat_diff(state: Any, env: int, root_body: RootBody, command: CommandColumn) -> wp.vec4:
    """Return the rotation in the world from the goal to the object, with a real part that is not negative."""
    turn = root_quat(state, env, root_body) * wp.quat_inverse(quat_of(goal_quat(state, env, command)))
    sign = wp.where(turn[3] < 0.0, -1.0, 1.0)
    return sign * wp.vec4(turn[3], turn[0], turn[1], turn[2])


# Rewards, terminations and metrics.


@wp.func
def track_pos_l2(state: Any, env: int, root_body: RootBody) -> float:
    """Return the distance of the object from its first position [m]."""
    return wp.length(object_pos(state, env, root_body))


@wp.func
def track_orientation_inv_l2(
    state: Any, env: int, root_body: RootBody, command: CommandColumn, rot_eps: float
) -> float:
    """Reward an orientation near the goal's: 1 / (angle + rot_eps), both in rad."""
    return 1.0 / (orientation_error(state, env, root_body, command) + rot_eps)


@wp.func
def turned_to_goal(state: Any, env: int, root_body: RootBody, command: CommandColumn) -> float:
    """Reward the rate at which the angle to the goal falls [rad/s]."""
    return (state.last_error[env] - orientation_error(state, env, root_body, command)) / state.step_dt


@wp.func
def object_away_from_goal(state: Any, env: int, root_body: RootBody, threshold: float) -> bool:
    """Whether the object is further than `threshold` from its first position [m]."""
    return track_pos_l2(state, env, root_body) > threshold


@wp.func
def consecutive_successes(state: Any, env: int, root_body: RootBody, command: CommandColumn) -> float:
    """Return the number of goals that were reached in the episode."""
    return state.successes[env] + success_bonus(state, env, root_body, command)


@wp.func
def success(state: Any, env: int, root_body: RootBody, command: CommandColumn) -> float:
    """Return 1 where a goal was reached in the episode, else 0."""
    return wp.where(consecutive_successes(state, env, root_body, command) > 0.0, 1.0, 0.0)
