"""Actuators: DC motors, whose torque falls with the speed, delayed actions, and velocities and torques as actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.errors import UsageError
from shoal.mdp.config import RobotConfig, TermsConfig, task_config
from shoal.mdp.robot_task import RobotTask
from shoal.mdp.robots import build_spec
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Event, Obs, Reward

WHEEL = """
<mujoco>
  <option timestep="0.002" gravity="0 0 0"/>
  <worldbody>
    <body name="base" pos="0 0 1">
      <freejoint/>
      <geom type="box" size="0.1 0.1 0.05" mass="1e4"/>
      <body name="wheel" pos="0 0 0.2">
        <joint name="wheel" axis="0 0 1"/>
        <geom type="cylinder" size="0.1 0.01" mass="200"/>
      </body>
    </body>
  </worldbody>
  <actuator><position name="wheel" joint="wheel" kp="100" kv="2" forcerange="-20 20"/></actuator>
</mujoco>
"""
STALL, NO_LOAD, LIMIT, KP, KD = 30.0, 10.0, 20.0, 100.0, 2.0
INERTIA = 1.0
"""Of the wheel about its axis [kg m²]: 200 * 0.1² / 2."""


@wp.func
def acting_torque(state: Any, env: wp.int32) -> wp.float32:
    """Return the torque of the last physics step."""
    return state.actuator_force[env, 0]


def curve(target: float, angle: float, speed: float) -> float:
    """The torque of a DC motor as mjlab's `dc_motor_clip` has it, in numbers [N m]."""
    top = min(STALL * (1.0 - speed / NO_LOAD), LIMIT)
    bottom = max(STALL * (-1.0 - speed / NO_LOAD), -LIMIT)
    return min(max(KP * (target - angle) - KD * speed, bottom, -LIMIT), max(top, -LIMIT))


@pytest.fixture
def wheel(tmp_path: Path) -> str:
    """A wheel with a servo on a heavy base."""
    path = tmp_path / "wheel.xml"
    path.write_text(WHEEL, encoding="utf-8")
    return str(path)


def config_of(wheel: str, engine: str, **fields: Any) -> RobotConfig:
    """Spin the wheel from rest, with a target far ahead for each unit of the action."""
    events = {
        "joints": Event("reset_joints_by_offset", "reset", joints="wheel", position=(0.0, 0.0), velocity=(0.0, 0.0)),
    }
    observed = {"angle": Obs("joint_pos_rel", joints="wheel"), "speed": Obs("joint_vel_rel", joints="wheel")}
    defaults: dict[str, Any] = {
        "actions": {"target": Action("joint_position", actuators="wheel", scale=1.0)},
        "observations": {"policy": observed},
        "rewards": {"torques": Reward("joint_torques_l2", weight=1.0, actuators="wheel")},
        "events": events,
    }
    return task_config(
        RobotConfig, robot=wheel, engine=engine, pose={".*": 0.0}, decimation=1, **{**defaults, **fields}
    )
