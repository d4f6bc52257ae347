"""The lifting task as terms, and by a camera. Units are SI: metres, radians, seconds.

Names, weights and ranges are those of mjlab 1.6.0's `lift_cube_env_cfg.py`, unless docs/tasks/manipulation.md says
otherwise.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from shoal.mdp.cameras import Camera
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.terms import Action, Command, Done, Event, Metric, Object, Obs, Reward

_ALL = ".*"
_OWN = "shoal.tasks.manipulation.terms:"
_CUBE: dict[str, Any] = {"object_body": "cube/body"}
_GOAL: dict[str, Any] = {**_CUBE, "command": "goal"}


def _observed(noise: float) -> dict[str, Any]:
    """Return what is observed, with `noise` times the usual errors."""
    return {
        "joint_pos": Obs("joint_pos_rel", joints=_ALL, noise=0.01 * noise),
        "joint_vel": Obs("joint_vel_rel", joints=_ALL, noise=0.5 * noise),
        "ee_to_cube": Obs("ee_to_object_distance", site="grasp", **_CUBE, noise=0.01 * noise),
        "cube_to_goal": Obs("object_to_goal_distance", **_GOAL, noise=0.01 * noise),
        "actions": Obs("last_action", actuators=_ALL),
    }


@dataclass(frozen=True, kw_only=True)
class LiftConfig(TermsConfig):
    """Lift an object."""

    def in_play(self) -> Self:
        """Return the same with the object always on the ground."""
        events: Any = self.events
        return replace(self, events=replace(events, cube=replace(events.cube, in_hand=0.0)))


LIFT_CUBE = task_config(
    LiftConfig,
    decimation=4,  # 50 actions a second.
    episode_length_s=6.0,
    objects={
        "cube": Object(
            "geom",
            type="box",
            size=(0.02, 0.02, 0.02),
            mass=0.05,
            contype=1,
            conaffinity=3,
            condim=4,
            friction=(1.5, 0.05, 0.001),
            rgba=(0.85, 0.3, 0.2, 1.0),
            pos=(0.35, 0.0, 0.02),
        )
    },
    actions={"joint_pos": Action("joint_position", actuators=_ALL, scale={"gripper": 0.02, "(?!gripper).*": 0.5})},
    commands={
        "goal": Command(
            f"{_OWN}uniform_position",
            columns={"x": "m", "y": "m", "z": "m"},
            resampling_time=(3.0, 3.0),
            x=(0.25, 0.45),
            y=(-0.2, 0.2),
            z=(0.1, 0.35),
        )
    },
    observations={"policy": _observed(noise=1.0), "critic": _observed(noise=0.0)},
    rewards={
        "lift": Reward(
            f"{_OWN}staged_position_reward", weight=1.0, site="grasp", **_GOAL, reaching_std=0.1, bringing_std=0.3
        ),
        "lift_precise": Reward(f"{_OWN}bring_object_reward", weight=1.0, **_GOAL, std=0.05),
        "action_rate": Reward("action_rate_l2", weight=-0.005),
        "joint_pos_limits": Reward("joint_pos_limits", weight=-10.0, joints="(?!gripper|right_finger).*"),
        "joint_vel_hinge": Reward(f"{_OWN}joint_velocity_hinge_penalty", weight=-0.002, joints=_ALL, max_vel=0.5),
    },
    terminations={"out_of_reach": Done(f"{_OWN}object_out_of_reach", **_CUBE, radius=0.8)},
    events={
        "joints": Event("reset_joints_by_offset", "reset", joints=_ALL, position=(0.0, 0.0), velocity=(0.0, 0.0)),
        "cube": Event(
            f"{_OWN}reset_object",
            "reset",
            root_body="cube/body",
            finger_joints="gripper|right_finger",
            x=(-0.1, 0.1),
            y=(-0.15, 0.15),
            yaw=(-math.pi / 4, math.pi / 4),
            in_hand=0.5,
            hand=(0.35, 0.0, 0.16),
            grip=0.02,
        ),
        "targets": Event("hold_default_pose", "reset", actuators=_ALL),
        "friction": Event("geom_friction", "startup", geoms=".*_finger", ranges=(1.0, 2.0)),
    },
    metrics={
        "success": Metric(f"{_OWN}at_goal", **_GOAL, success_threshold=0.05),
        "position_error": Metric(f"{_OWN}position_error", **_GOAL),
        "object_height": Metric(f"{_OWN}object_height", **_CUBE),
    },
)

LIFT_CUBE_DEPTH = LIFT_CUBE.change(
    # Before the hand, looking along the fingers and 20 degrees back at what is between them.
    sensors={
        "wrist": Camera(
            parent_body="hand",
            pos=(-0.07, 0.0, 0.0),
            quat=(0.1228, 0.6964, -0.6964, -0.1228),
            fovy=80.0,
            width=32,
            height=32,
        )
    },
    observations={
        "policy": {
            "ee_to_cube": None,
            "cube_to_goal": None,
            "goal_position": Obs(f"{_OWN}target_position", site="grasp", command="goal"),
        },
        "camera": {"depth": Obs("camera_depth", sensor_name="wrist", cutoff_distance=0.5, noise=0.01)},
    },
    # A student has nothing to find out, and only learns to grasp where there is something to grasp.
    events={"cube": {"in_hand": 0.2}},
)
"""The same for a policy that sees the cube and does not know where it is; the critic's observations serve a teacher."""
