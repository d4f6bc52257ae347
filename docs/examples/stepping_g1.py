r"""The velocity task of the G1 with legs that step by a clock, held upright at first.

    train docs/examples/stepping_g1.py:SteppingG1

A force and a torque hold the base up and drive it as commanded, so that the robot walks from the
first minute on. They become weaker as far as it does without them, and when they are gone pushes
grow in the same way. Without them a small batch learns to stand (docs/tasks/humanoid.md).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal import mdp, registered

PERIOD, SWING = 0.8, 0.5
"""Of the steps [s], and how far hips and ankles swing [rad]; knees swing twice as far."""
SCALE = {".*hip_(pitch|yaw)_joint": 0.548, ".*(hip_roll|knee)_joint": 0.35, ".*ankle.*": 0.44}
SCALE |= {".*(shoulder|elbow|wrist_roll).*": 0.1, ".*wrist_(pitch|yaw).*": 0.05, "waist.*": 0.15}
BENDING = re.compile("hip_pitch|knee|ankle_pitch")
"""Joints that the reward for the pose leaves out."""
STEP = {".*(hip|ankle)_pitch.*": -SWING, ".*knee.*": 2 * SWING, f"(?!.*({BENDING.pattern})).*": 0.0}
PUSHES = {"x": 0.5, "y": 0.5, "z": 0.4, "roll": 0.52, "pitch": 0.52, "yaw": 0.78}
"""The largest pushes, of the task [m/s, rad/s]."""
STRENGTHS = tuple(1 - 0.75 * i / 16 for i in range(16)) + tuple(0.25 - 0.0125 * i for i in range(21))
"""Of the assistance; the last is 0."""


def walks(metrics: Mapping[str, float]) -> float:
    """Return 1 or more where episodes are long enough and the command is followed well enough."""
    error, length = metrics.get("Metrics/error_linear_velocity", 9.0), metrics.get("Train/mean_episode_length", 0.0)
    return min(length / 880, 0.43 / max(error, 0.01))


def walks_alone(metrics: Mapping[str, float]) -> float:
    """Return 1 or more where the command is followed better than that, and without assistance."""
    if metrics.get("Curriculum/assistance/strength", 1.0) > 0:
        return 0.0
    return 0.36 / max(metrics.get("Metrics/error_linear_velocity", 9.0), 0.01)


G1: Any = registered()["G1-Velocity-Flat"]
POSE = G1.env.terms("rewards")["pose"]
STDS = {
    name: {joint: std for joint, std in getattr(POSE, name).items() if not BENDING.search(joint)}
    for name in ("std_walking", "std_running")
}
CLOCK = {"phase": mdp.Obs("gait_phase", period=PERIOD)}


class SteppingG1(mdp.RobotTask[mdp.RobotConfig]):
    """Walk with a G1 on flat ground."""

    config = G1.env.change(
        actions={
            "joint_pos": mdp.Action(
                "gait_joint_position",
                actuators=".*",
                command="twist",
                scale=SCALE,
                swing=STEP,
                shift={"left.*": 0.0, "(?!left).*": 0.5},
                period=PERIOD,
            )
        },
        observations={"policy": CLOCK, "critic": CLOCK},
        rewards={
            "gait": mdp.Reward(
                "feet_gait",
                weight=2.0,
                contact="feet",
                command="twist",
                period=PERIOD,
                offset={"left.*": 0.0, "right.*": 0.5},
            ),
            "pose": mdp.Reward(
                "variable_posture",
                weight=0.5,
                joints=f"(?!.*({BENDING.pattern})).*",
                command="twist",
                walking_threshold=0.05,
                std_standing={".*": 0.05},
                **STDS,
            ),
            "track_linear_velocity": {"weight": 4.0},
            "action_rate": {"weight": -0.02},
        },
        events={
            "assistance": mdp.Event(
                "apply_assistance",
                "step",
                interval=(1.0, 1.0),
                body="pelvis",
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
            "assistance": mdp.Curriculum(
                "event_curriculum",
                event_name="assistance",
                when=walks,
                above=(-1.0, *(1.0 for _ in STRENGTHS[1:])),
                min_iterations=12,
                strength=STRENGTHS,
            ),
            "pushes": mdp.Curriculum(
                "event_curriculum",
                event_name="push",
                when=walks_alone,
                above=(-1.0, 1.0, 1.0, 1.0, 1.0),
                min_iterations=30,
                **{
                    name: tuple((-part * most, part * most) for part in (0.0, 0.25, 0.5, 0.75, 1.0))
                    for name, most in PUSHES.items()
                },
            ),
            "command_vel": None,
        },
    )
    agent = replace(
        G1.agent,
        actor=replace(G1.agent.actor, hidden_dims=(128, 128, 128)),
        critic=replace(G1.agent.critic, hidden_dims=(128, 128, 128)),
        algorithm=replace(
            G1.agent.algorithm,
            desired_kl=0.03,
            entropy_coef=0.0,
            symmetry=replace(G1.agent.algorithm.symmetry, enabled=True, use_data_augmentation=True),
        ),
    )
    num_envs, max_iterations = 256, 3000
