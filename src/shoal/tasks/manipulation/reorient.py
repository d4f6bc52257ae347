"""The reorientation task as terms. Units are SI: metres, radians, seconds.

Rewards, ranges and limits are those of Isaac Lab's `Isaac-Repose-Cube-Shadow-OpenAI-FF-Direct-v0`, and names of terms
those of its `Isaac-Repose-Cube-Allegro-v0`, unless docs/tasks/manipulation.md says otherwise.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from shoal.config.checks import above
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.terms import Action, Command, Done, Event, Metric, Object, Obs, Reward

_ALL = ".*"
_OWN = "shoal.tasks.manipulation.reorient_terms:"
_CUBE: dict[str, Any] = {"root_body": "cube/body"}
_GOAL: dict[str, Any] = {**_CUBE, "command": "goal"}
_TURN = (-math.pi, math.pi)
_NONE = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class ReorientConfig(TermsConfig):
    """Reorient a cube in the hand."""

    size_fields: ClassVar[tuple[str, ...]] = (*TermsConfig.size_fields, "robot")
    model_fields: ClassVar[tuple[str, ...]] = (*TermsConfig.model_fields, "robot")

    robot: str = "manipulate_block"
    """The hand: an MJCF file beside `robot.xml`, `shared.xml` and `shared_asset.xml` of gymnasium-robotics, by its path
    or by its name in the installed package."""
    success_tolerance: Annotated[float, above(0)] = 0.4
    """Angle between the cube and the goal below which the goal is reached, and the next one drawn [rad]."""


REORIENT_CUBE = task_config(
    ReorientConfig,
    decimation=4,  # 30 actions a second.
    episode_length_s=10.0,
    objects={"cube": Object("shoal.tasks.manipulation.reorient_task:cube", pos=(1.0, 0.87, 0.175))},
    actions={"joint_pos": Action("ema_joint_position_to_limits", actuators=_ALL, alpha=0.3, clip=1.0)},
    commands={
        "goal": Command(
            f"{_OWN}reorientation",
            columns=dict.fromkeys("wxyz", "1"),
            **_CUBE,
            resampling_time=_NONE,  # Looked at in every step, and drawn again when it is reached.
            roll=_NONE,
            pitch=_NONE,
            yaw=_TURN,
        )
    },
    observations={
        "policy": {
            "joint_pos": Obs("joint_pos_rel", joints=_ALL),
            "joint_vel": Obs("joint_vel_rel", joints=_ALL, scale=0.2),
            "cube_pos": Obs(f"{_OWN}object_pos", **_CUBE),
            "cube_quat": Obs("root_quat_w", **_CUBE),
            "cube_lin_vel": Obs("root_lin_vel_w", **_CUBE),
            "cube_ang_vel": Obs("root_ang_vel_w", **_CUBE, scale=0.2),
            "goal": Obs(f"{_OWN}goal_quat", command="goal"),
            "goal_quat_diff": Obs(f"{_OWN}goal_quat_diff", **_GOAL),
            "fingertips": Obs("site_pos_w", sites="robot0:S_.*tip"),
            "actions": Obs("last_action", actuators=_ALL),
        }
    },
    rewards={
        "position": Reward(f"{_OWN}track_pos_l2", weight=-10.0, **_CUBE),
        "orientation": Reward(f"{_OWN}track_orientation_inv_l2", weight=1.0, **_GOAL, rot_eps=0.1),
        "turned": Reward(f"{_OWN}turned_to_goal", weight=8.0, **_GOAL),
        "success": Reward(f"{_OWN}success_bonus", weight=250.0, **_GOAL),
        "action": Reward("action_l2", weight=-0.0002),
        "fall": Reward("is_terminated", weight=-50.0),
    },
    terminations={"fell": Done(f"{_OWN}object_away_from_goal", **_CUBE, threshold=0.12)},
    events={
        "joints": Event("reset_joints_by_offset", "reset", joints=_ALL, position=(-0.2, 0.2), velocity=_NONE),
        "targets": Event("hold_default_pose", "reset", actuators=_ALL),
        "cube": Event(
            "reset_root_state_uniform",
            "reset",
            **_CUBE,
            **dict.fromkeys("xyz", (-0.01, 0.01)),
            roll=_NONE,
            pitch=_NONE,
            yaw=_TURN,
        ),
    },
    metrics={
        "success": Metric(f"{_OWN}success", **_GOAL),
        "consecutive_successes": Metric(f"{_OWN}consecutive_successes", **_GOAL),
        "orientation_error": Metric(f"{_OWN}orientation_error", **_GOAL),
    },
)
