"""A robot of your own in one file: an arm with two joints reaches for a goal that is drawn at random.

    train docs/examples/arm.py:Arm
    play docs/examples/arm.py:Arm

The robot, its goal, and what it observes and is rewarded for are below; joint positions and the like come from Shoal.
"""

# ruff: noqa: ANN401, ARG003, PLR0913, PLR0917 - functions of terms take their state as Any, and arguments by position

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
import warp as wp

from shoal import DistributionConfig, ModelConfig, RslRlConfig, mdp

ROBOT = """
<mujoco>
  <compiler angle="radian"/>
  <default>
    <joint axis="0 0 1" damping="0.05" armature="0.01"/>
    <geom type="capsule" size="0.015" density="500" contype="0" conaffinity="0" rgba="0.2 0.4 0.7 1"/>
    <position kp="4" kv="0.3" forcerange="-2 2"/>
  </default>
  <worldbody>
    <light pos="0 0 2"/>
    <geom type="plane" size="0.5 0.5 0.1" pos="0 0 -0.02" rgba="0.8 0.8 0.8 1"/>
    <body name="upper">
      <joint name="shoulder" range="-3.1 3.1"/>
      <geom fromto="0 0 0 0.2 0 0"/>
      <body name="lower" pos="0.2 0 0">
        <joint name="elbow" range="-2.6 2.6"/>
        <geom fromto="0 0 0 0.2 0 0"/>
        <site name="tip" pos="0.2 0 0" size="0.02" rgba="0.8 0.3 0.2 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="shoulder" joint="shoulder"/>
    <position name="elbow" joint="elbow"/>
  </actuator>
</mujoco>
"""


@wp.func
def move_joint(state: Any, env: int, i: int, action: float, actuators: mdp.Actuators, step: float) -> None:
    """Set the target of a position actuator `step` times the action from where its joint is [rad]."""
    state.ctrl[env, actuators[i].index] = state.qpos[env, actuators[i].qpos] + step * action


@wp.func
def draw_goal(state: Any, env: int, first: int, radius: wp.vec2, angle: wp.vec2) -> None:
    """Draw a goal at a distance from the shoulder [m], in a direction [rad]; write its x and y."""
    length, direction = mdp.uniform(state, env, radius[0], radius[1]), mdp.uniform(state, env, angle[0], angle[1])
    state.commands[env, first] = length * wp.cos(direction)
    state.commands[env, first + 1] = length * wp.sin(direction)


@wp.func
def tip_to_goal(state: Any, env: int, site: mdp.SiteId, command: mdp.CommandColumn) -> wp.vec2:
    """Return the way from the tip to the goal along x and y [m]."""
    tip = state.site_xpos[env, site]
    return wp.vec2(state.commands[env, command] - tip[0], state.commands[env, command + 1] - tip[1])


@wp.func
def near_goal(state: Any, env: int, site: mdp.SiteId, command: mdp.CommandColumn, std: float) -> float:
    """Reward a tip at the goal: 1 there, 1/e at a distance of `std` [m]."""
    way = tip_to_goal(state, env, site, command)
    return wp.exp(-wp.dot(way, way) / (std * std))


@wp.func
def at_goal(state: Any, env: int, site: mdp.SiteId, command: mdp.CommandColumn, tolerance: float) -> float:
    """Return 1 where the tip is closer to the goal than `tolerance` [m], else 0."""
    return wp.where(wp.length(tip_to_goal(state, env, site, command)) < tolerance, 1.0, 0.0)


class Arm(mdp.TermsTask[mdp.TermsConfig]):
    """Reach for a goal with an arm of two joints."""

    config = mdp.task_config(
        mdp.TermsConfig,
        physics_dt=0.01,
        decimation=2,
        episode_length_s=4.0,
        actions={"joint_pos": mdp.Action(move_joint, actuators=".*", step=0.3)},
        commands={
            "goal": mdp.Command(
                draw_goal,
                columns={"x": "m", "y": "m"},
                resampling_time=(2.0, 2.0),
                radius=(0.15, 0.38),
                angle=(-math.pi, math.pi),
            )
        },
        observations={
            "policy": {
                "joint_pos": mdp.Obs("joint_pos_rel", joints=".*"),
                "joint_vel": mdp.Obs("joint_vel_rel", joints=".*", scale=0.1),
                "tip_to_goal": mdp.Obs(tip_to_goal, site="tip", command="goal", scale=5.0),
            }
        },
        rewards={
            "near": mdp.Reward(near_goal, weight=1.0, site="tip", command="goal", std=0.2),
            "precise": mdp.Reward(near_goal, weight=1.0, site="tip", command="goal", std=0.04),
            "action_rate": mdp.Reward("action_rate_l2", weight=-0.01),
        },
        events={
            "start": mdp.Event(
                "reset_joints_by_offset", "reset", joints=".*", position=(-1.0, 1.0), velocity=(0.0, 0.0)
            )
        },
        metrics={"success": mdp.Metric(at_goal, site="tip", command="goal", tolerance=0.03)},
    )
    # Small networks: this task needs no more, and on a CPU they learn many times faster than the default ones.
    agent = RslRlConfig(
        num_steps_per_env=32,
        actor=ModelConfig(hidden_dims=(64, 64), distribution=DistributionConfig(class_name="GaussianDistribution")),
        critic=ModelConfig(hidden_dims=(64, 64)),
    )
    num_envs = 256
    max_iterations = 100

    def marks(self, row: Mapping[str, np.ndarray]) -> list[mdp.Mark]:
        """Return what videos and viewers draw of one environment beside the robot: its goal."""
        return [*super().marks(row), mdp.Sphere(np.append(row["commands"], 0.0), radius=0.02)]

    @classmethod
    def build_spec(cls, config: mdp.TermsConfig) -> mujoco.MjSpec:
        """Return the robot."""
        return mujoco.MjSpec.from_string(ROBOT)
