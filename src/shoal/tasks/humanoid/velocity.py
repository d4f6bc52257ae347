"""`G1-Velocity-Flat` and `G1-Velocity-Rough`, after mjlab 1.6.0's tasks of these names.

`G1_MJLAB` has their names, weights and ranges. The model is plain MJCF in mjlab's package; its motors
are described there in Python, so their numbers stand here. With so much alone a small batch learns to stand
(docs/learning.md). The legs of `G1_FLAT` step by a clock, and it is held upright at first, so that it walks from the
first minute on; this help is taken away as far as it walks without. Then it is paid for following the velocity closely,
and pushes grow; on rough ground, once it has come to the fourth level.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.mdp.config import RobotConfig, task_config
from shoal.mdp.terms import Action, Contact, Curriculum, Done, Event, Metric, Obs, Reward
from shoal.mdp.terrain_config import ROUGH_TERRAINS, on_terrain
from shoal.mdp.velocity import ALL, METRICS, observed, starts, twist

_SMALL, _HIP, _KNEE = ".*(shoulder|elbow|wrist_roll).*", ".*(hip_pitch|hip_yaw|waist_yaw).*", ".*(hip_roll|knee).*"
_WRIST, _LINKED = ".*wrist_(pitch|yaw).*", ".*(ankle|waist_pitch|waist_roll).*"
"""Joints by their motors; ankles and the waist are moved by two."""
_KP = {_SMALL: 14.25, _HIP: 40.18, _KNEE: 99.1, _WRIST: 16.78, _LINKED: 28.5}
_TORQUE = {_SMALL: 25.0, _HIP: 88.0, _KNEE: 139.0, _WRIST: 5.0, _LINKED: 50.0}
G1: dict[str, Any] = {
    "robot": "g1",
    "feet": "(left|right)_foot[1-7]_collision",
    "pose": {".*_hip_pitch_joint": -0.312, ".*_knee_joint": 0.669, ".*_ankle_pitch_joint": -0.363}
    | {".*_elbow_joint": 0.6, ".*_shoulder_pitch_joint": 0.2}
    | {"left_shoulder_roll_joint": 0.2, "right_shoulder_roll_joint": -0.2},
    "stiffness": _KP,
    "damping": {_SMALL: 0.907, _HIP: 2.558, _KNEE: 6.309, _WRIST: 1.068, _LINKED: 1.814},
    "effort_limit": _TORQUE,
    "armature": {_SMALL: 0.00361, _HIP: 0.010178, _KNEE: 0.025102, _WRIST: 0.00425, _LINKED: 0.00722},
    "physics_dt": 0.005,
}
"""The robot with bent knees, its motors and rates. Motors: 10 Hz and a damping ratio of 2, by reflected inertia."""
SCALE = {joints: 0.25 * _TORQUE[joints] / kp for joints, kp in _KP.items()}
"""Action scale: a quarter of the angle at which a position actuator has its largest torque [rad]."""

_LEGS = {".*hip_pitch.*": 0.3, ".*hip_(roll|yaw).*": 0.15, ".*knee.*": 0.35, ".*ankle_pitch.*": 0.25}
_WALKING = _LEGS | {".*ankle_roll.*": 0.1, "waist_yaw.*": 0.2, "waist_roll.*": 0.08, "waist_pitch.*": 0.1}
_ARMS = {".*shoulder_(pitch|roll).*": 0.15, ".*shoulder_yaw.*": 0.1, ".*elbow.*": 0.15, ".*wrist.*": 0.3}
_FAST_LEGS = {".*hip_pitch.*": 0.5, ".*hip_(roll|yaw).*": 0.2, ".*knee.*": 0.6, ".*ankle_pitch.*": 0.35}
_RUNNING = _FAST_LEGS | {".*ankle_roll.*": 0.15, "waist_yaw.*": 0.3, "waist_roll.*": 0.08, "waist_pitch.*": 0.2}
_SWINGING = {".*shoulder_pitch.*": 0.5, ".*shoulder_roll.*": 0.2, ".*shoulder_yaw.*": 0.15, ".*elbow.*": 0.35}
_STDS = {"std_standing": {ALL: 0.05}, "std_walking": _WALKING | _ARMS}
_STDS["std_running"] = _RUNNING | _SWINGING | {".*wrist.*": 0.3}
_MEASURED = {"joint_pos": Obs("joint_pos_rel", joints=ALL, biased=True, noise=0.01)}
_SOLES = "(left|right)_ankle_roll_link"
_COM = {"x": (-0.025, 0.025), "y": (-0.025, 0.025), "z": (-0.03, 0.03)}
_PUSH = (
    dict.fromkeys("xy", (-0.5, 0.5))
    | {"z": (-0.4, 0.4)}
    | dict.fromkeys(("roll", "pitch"), (-0.52, 0.52))
    | {"yaw": (-0.78, 0.78)}
)
_KINDS = {"heading_command": True, "heading_control_stiffness": 0.5, "rel_heading_envs": 0.3, "rel_forward_envs": 0.2}
_STAGES: dict[str, Any] = {
    "steps": (120_000, 240_000),
    "lin_vel_x": ((-1.5, 2.0), (-2.0, 3.0)),
    "ang_vel_z": ((-0.7, 0.7), (-0.7, 0.7)),
}
_FELT = {
    name: Obs(name, contact="feet") for name in ("foot_height", "foot_air_time", "foot_contact", "foot_contact_forces")
}
_FEET = {"contact": "feet", "command": "twist", "command_threshold": 0.05}

G1_MJLAB = task_config(
    RobotConfig,
    **G1,
    actions={"joint_pos": Action("joint_position", actuators=ALL, scale=SCALE)},
    commands=twist(1.0, 1.0, 0.5, **_KINDS),
    contacts={
        "feet": Contact(bodies=_SOLES, secondary_body="world", sites="(left|right)_foot"),
        "itself": Contact(subtrees="pelvis", secondary_subtree="pelvis", reduce="maxforce", force_threshold=10.0),
    },
    observations={"policy": observed(noise=1.0, lin_vel=0.5) | _MEASURED, "critic": observed(noise=0.0) | _FELT},
    rewards={
        "track_linear_velocity": Reward("track_linear_velocity", weight=2.0, command="twist", std=0.5),
        "track_angular_velocity": Reward("track_angular_velocity", weight=2.0, command="twist", std=math.sqrt(0.5)),
        "upright": Reward("upright", weight=1.0, body="torso_link", std=math.sqrt(0.2)),
        "pose": Reward("variable_posture", weight=1.0, joints=ALL, command="twist", walking_threshold=0.05, **_STDS),
        "body_ang_vel": Reward("body_angular_velocity_penalty", weight=-0.05, body="torso_link"),
        "joint_limits": Reward("joint_pos_limits", weight=-1.0, joints=ALL),
        "action_rate": Reward("action_rate_l2", weight=-0.1),
        "air_time": Reward("feet_air_time", weight=0.0, contact="feet", command="twist"),
        "foot_clearance": Reward("feet_clearance", weight=-2.0, target_height=0.1, **_FEET),
        "foot_swing_height": Reward("feet_swing_height", weight=-0.25, target_height=0.1, **_FEET),
        "foot_slip": Reward("feet_slip", weight=-0.1, **_FEET),
        "soft_landing": Reward("soft_landing", weight=-1e-5, **_FEET),
        "angular_momentum": Reward("angular_momentum_penalty", weight=-0.02, sensor="root_angmom"),
        "self_collisions": Reward("self_collision_cost", weight=-4.0, contact="itself"),  # The last of 4 physics steps.
    },
    terminations={"fell_over": Done("bad_orientation", limit_angle=math.radians(70.0))},
    events={
        **starts(position=0.5),
        "push": Event("push_by_setting_velocity", "interval", interval=(1.0, 3.0), **_PUSH),
        "foot_friction": Event("geom_friction", "startup", geoms="{feet}", ranges=(0.3, 1.2), shared_random=True),
        "encoder_bias": Event("encoder_bias", "startup", joints=ALL, ranges=(-0.015, 0.015)),
        "base_com": Event("body_com_offset", "startup", bodies="torso_link", **_COM),
    },
    curricula={"command_vel": Curriculum("commands_vel", command_name="twist", **_STAGES)},
    metrics=METRICS,
)

_PERIOD, _SWING = 0.52, 0.5
"""Of the steps [s], and how far hips and ankles swing [rad]; knees swing twice as far. With longer steps a robot
answers later to a push or a new command."""
_BENDING = "hip_pitch|knee|ankle_pitch"
"""Joints that step. The reward for the pose leaves them out, or else it pays for not stepping."""
_OTHERS = f"(?i)(?!.*({_BENDING})).*"
_SCALES = {".*hip_(pitch|yaw)_joint": 0.548, ".*(hip_roll|knee)_joint": 0.35, ".*ankle.*": 0.44}
_SCALES |= {".*(shoulder|elbow|wrist_roll).*": 0.1, ".*wrist_(pitch|yaw).*": 0.05, "waist.*": 0.15}
_STRENGTHS = tuple(1 - 0.75 * i / 16 for i in range(16)) + tuple(0.25 - 0.0125 * i for i in range(21))
"""Of the assistance; the last is 0."""
_AT_ONCE = -1.0
"""Threshold of what is 1 where the robot does what it is to do."""
GROWING = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Stages of pushes, as shares of the usual ones."""
_HARDER = (1.2, 1.4, 1.7, 2.0, 2.4, 2.8)
"""More of them. A robot that trains with harder pushes falls less often under the usual ones."""
_STEPS: dict[str, Any] = {"command": "twist", "period": _PERIOD}
_AVERAGE: dict[str, Any] = {"command": "twist", "time": 0.5}
_CLOCK = {"phase": Obs("gait_phase", period=_PERIOD)}


def help_and_pushes(
    does: Callable[[Mapping[str, float]], float],
    alone: Callable[[Mapping[str, float]], float],
    usual: Mapping[str, tuple[float, float]],
    stages: Sequence[float],
    first: float = 1.0,
) -> dict[str, Any]:
    """Return the curricula of the event `assistance`, which goes away, and then of `push`, which grow from nothing.

    Args:
        does: Function of the metrics that is 1 or more where the robot does what it is to do, perhaps with assistance.
        alone: The same without assistance.
        usual: Ranges of the velocities of the usual pushes [m/s, rad/s].
        stages: What is multiplied with these in each stage.
        first: Strength of the assistance at first.
    """
    # Harder pushes about the vertical axis would hide where a robot turns.
    parts = {name: [min(part, 1.0) if name == "yaw" else part for part in stages] for name in usual}
    pushes = {name: tuple((part * least, part * most) for part in parts[name]) for name, (least, most) in usual.items()}
    strengths = tuple(each for each in _STRENGTHS if each <= first)
    return {
        "assistance": Curriculum(
            "event_curriculum",
            event_name="assistance",
            when=does,
            above=(_AT_ONCE, *(1.0 for _ in strengths[1:])),
            min_iterations=12,
            strength=strengths,
        ),
        "pushes": Curriculum(
            "event_curriculum",
            event_name="push",
            when=alone,
            above=(_AT_ONCE, *(1.0 for _ in stages[1:])),
            min_iterations=30,
            **pushes,
        ),
    }


def walks(metrics: Mapping[str, float]) -> float:
    """Return 1 or more where episodes are long enough and the command is followed well enough."""
    error, length = metrics.get("Metrics/error_linear_velocity", 9.0), metrics.get("Train/mean_episode_length", 0.0)
    return min(length / 880, 0.43 / max(error, 0.01))


def walks_alone(metrics: Mapping[str, float]) -> float:
    """Return 1 or more where the command is followed better than that, and without assistance."""
    if metrics.get("Curriculum/assistance/strength", 1.0) > 0:
        return 0.0
    return 0.36 / max(metrics.get("Metrics/error_linear_velocity", 9.0), 0.01)


def withstands(metrics: Mapping[str, float]) -> float:
    """Return 1 or more where episodes are long enough under pushes, and without assistance."""
    return min(walks_alone(metrics) / 0.8, metrics.get("Train/mean_episode_length", 0.0) / 900)


def walks_on_rough_ground(metrics: Mapping[str, float]) -> float:
    """Return 1 or more where episodes and the following are as `walks` has them, with less of both."""
    error, length = metrics.get("Metrics/error_linear_velocity", 9.0), metrics.get("Train/mean_episode_length", 0.0)
    return min(length / 800, 0.5 / max(error, 0.01))


def climbs_alone(metrics: Mapping[str, float]) -> float:
    """Return 1 or more where the robot walks without assistance, and on level 3 on average."""
    return min(walks_alone(metrics) / 0.8, metrics.get("Metrics/terrain_level", 0.0) / 3.0)


G1_FLAT = G1_MJLAB.change(
    actions={
        "joint_pos": Action(
            "gait_joint_position",
            actuators=ALL,
            scale=_SCALES,
            swing={
                "(?i).*(hip|ankle)_pitch.*": -_SWING,
                "(?i).*knee.*": 2 * _SWING,
                _OTHERS: 0.0,
            },
            shift={"(?i)left.*": 0.0, "(?i)(?!left).*": 0.5},
            **_STEPS,
        )
    },
    observations={"policy": _CLOCK | {"base_lin_vel": {"noise": 0.1}}, "critic": _CLOCK},
    rewards={
        "gait": Reward("feet_gait", weight=2.0, contact="feet", offset={"left.*": 0.0, "right.*": 0.5}, **_STEPS),
        "pose": {"weight": 0.5, "joints": _OTHERS}
        | {
            name: {joint: std for joint, std in stds.items() if not re.search(_BENDING, joint)}
            for name, stds in _STDS.items()
        },
        "track_linear_velocity": {"weight": 4.0},
        # mjlab's reward counts rates of roll and pitch as errors, and steps sway: it hardly tells where a robot turns.
        "track_average_angular_velocity": Reward("track_average_ang_vel_z_exp", weight=3.0, std=0.3, **_AVERAGE),
        "track_linear_velocity_precise": Reward("track_linear_velocity", weight=0.0, command="twist", std=0.25),
        "action_rate": {"weight": -0.02},
    },
    events={
        "assistance": Event(
            "apply_assistance",
            "step",
            interval=(1.0, 1.0),
            body="{base}",
            command="twist",
            strength=0.0,
            upright=300.0,
            damping=5.0,
            drive=200.0,
            turn=3.0,
            lift=200.0,
        )
    },
    curricula={
        **help_and_pushes(walks, withstands, _PUSH, GROWING + _HARDER),
        "precision": Curriculum(
            "reward_curriculum",
            reward_name="track_linear_velocity_precise",
            when=walks_alone,
            above=(1.0,),
            weight=(2.0,),
        ),
        "command_vel": None,
    },
    metrics={"average_error_angular_velocity": Metric("average_error_ang_vel", **_AVERAGE)},
)

_SCAN: dict[str, Any] = {"grid": (1.6, 1.0, 0.1), "clip": 1.0}
_SCANS = {"policy": Obs("height_scan", noise=0.1, **_SCAN), "critic": Obs("height_scan", **_SCAN)}
G1_ROUGH = on_terrain(G1_FLAT, _SCANS, spread=0.5, first_levels=1, **ROUGH_TERRAINS).change(
    # Of the distance that is commanded: turns take away from it, and 0.8 was reached only under the full help.
    events={"terrain_levels": {"promote_at": 0.65, "demote_at": 0.4}},
    curricula=help_and_pushes(walks_on_rough_ground, climbs_alone, _PUSH, GROWING),
)
