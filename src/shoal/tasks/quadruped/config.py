"""The velocity tasks as terms. Units are SI: metres, radians, seconds, kilograms, newtons.

Names are those of mjlab and Isaac Lab, and so are most weights: the sources of each are in docs/tasks/quadruped.md.
"""

import math
from typing import Any

from shoal.mdp.cameras import Camera
from shoal.mdp.config import RobotConfig, task_config
from shoal.mdp.terms import Action, Contact, Done, Event, Obs, Reward
from shoal.mdp.terrain_config import on_terrain
from shoal.mdp.velocity import ALL, METRICS, observed, pushes, starts, twist

_TERMS: dict[str, Any] = {
    "actions": {"joint_pos": Action("joint_position", actuators=ALL, scale=0.3)},
    "commands": twist(1.0, 0.5, 1.0),
    # As much as a foot moves in a physics step at touch-down.
    "contacts": {"feet": Contact("near_ground", geoms="{feet}", tolerance=0.005)},
    "observations": {"policy": observed(noise=1.0), "critic": observed(noise=0.0)},
    "rewards": {
        "track_linear_velocity": Reward("track_lin_vel_xy_exp", weight=2.0, command="twist", std=0.5),
        "track_angular_velocity": Reward("track_ang_vel_z_exp", weight=1.0, command="twist", std=0.5),
        "lin_vel_z": Reward("lin_vel_z_l2", weight=-2.0),
        "ang_vel_xy": Reward("ang_vel_xy_l2", weight=-0.05),
        "flat_orientation": Reward("flat_orientation_l2", weight=-2.5),
        "joint_torques": Reward("joint_torques_l2", weight=-2e-4, actuators=ALL),
        "joint_acc": Reward("joint_acc_l2", weight=-2.5e-7, joints=ALL),
        "action_rate": Reward("action_rate_l2", weight=-0.01),
        "feet_swing_time": Reward(
            "feet_swing_time", weight=0.1, contact="feet", command="twist", threshold=0.1, swing_time=0.25
        ),
        "joint_deviation": Reward(
            "joint_deviation_l2", weight=-0.1, joints=ALL, command="twist", threshold=0.1, standing=10.0
        ),
        "feet_slip": Reward("feet_slip", weight=-0.1, contact="feet", command="twist", command_threshold=-1.0),
    },
    "terminations": {
        "fell_over": Done("bad_orientation", limit_angle=math.radians(70.0)),
        "too_low": Done("root_height_below_minimum", minimum_height=0.12),
    },
    "events": starts(joints=0.1)
    | pushes(4.0, 12.0)
    | {
        "foot_friction": Event("geom_friction", "startup", geoms="{feet}", ranges=(0.4, 1.2), shared_random=True),
        "added_mass": Event("body_mass", "startup", bodies="{base}", ranges=(-1.0, 2.0), operation="add"),
        "gains": Event("pd_gains", "startup", actuators=ALL, kp=(0.9, 1.1), kd=(0.9, 1.1)),
    },
    "metrics": METRICS,
}

_TERMS |= {"feet": "(FR|FL|RR|RL)(_foot)?", "physics_dt": 0.005, "decimation": 4}  # 50 actions a second.
FLAT = task_config(RobotConfig, **_TERMS)

_SCAN: dict[str, Any] = {"grid": (1.2, 0.8, 0.1), "clip": 1.0}
_SCANS = {"policy": Obs("height_scan", noise=0.05, **_SCAN), "critic": Obs("height_scan", **_SCAN)}
ROUGH = on_terrain(FLAT, _SCANS, spread=0.3).change(
    rewards={"flat_orientation": Reward("flat_orientation_l2", weight=-0.5)}
)
BLIND = ROUGH.change(observations={"policy": {"height_scan": None}})
"""Rough terrain, of which the policy observes nothing; the critic's observations serve a teacher."""

DEPTH = BLIND.change(
    # Before the head, 45 degrees down: the ground from 0.1 to 1.2 m ahead, ten times a second.
    sensors={
        "front": Camera(
            parent_body="{base}",
            pos=(0.27, 0.0, 0.03),
            quat=(0.6533, 0.2706, -0.2706, -0.6533),
            fovy=60.0,
            width=32,
            height=24,
            update_period=0.1,
        )
    },
    observations={"camera": {"depth": Obs("camera_depth", sensor_name="front", cutoff_distance=2.0, noise=0.01)}},
)
"""The same with a camera for the policy."""
