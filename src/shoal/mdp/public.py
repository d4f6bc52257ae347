"""What a task of one's own is written with, as names of `shoal.mdp`."""

from shoal.mdp import annotations
from shoal.mdp.annotations import *  # noqa: F403
from shoal.mdp.base import (
    base_ang_vel,
    base_lin_vel,
    base_quat,
    body_ang_vel_w,
    body_lin_vel_w,
    command_at,
    projected_gravity,
    quat_error_magnitude,
    quat_of,
    to_base,
    yaw_quat,
)
from shoal.mdp.cameras import Camera, RayCast
from shoal.mdp.config import RobotConfig, TermsConfig, task_config
from shoal.mdp.marks import shows, twist_arrows
from shoal.mdp.noise import Gaussian, Uniform
from shoal.mdp.random import uniform, uniform_int
from shoal.mdp.robot_task import RobotTask
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import (
    Action,
    Command,
    Contact,
    Curriculum,
    Done,
    Event,
    Metric,
    Object,
    Obs,
    ObsGroup,
    Recorder,
    Reward,
    Sensor,
    SubTerrain,
)
from shoal.mdp.terrain_config import TerrainConfig, on_terrain
from shoal.mdp.terrain_task import TerrainTask
from shoal.sim.render.marks import Arrow, Ghost, Mark, Sphere

__all__ = [
    "Action",
    "Arrow",
    "Camera",
    "Command",
    "Contact",
    "Curriculum",
    "Done",
    "Event",
    "Gaussian",
    "Ghost",
    "Mark",
    "Metric",
    "Object",
    "Obs",
    "ObsGroup",
    "RayCast",
    "Recorder",
    "Reward",
    "RobotConfig",
    "RobotTask",
    "Sensor",
    "Sphere",
    "SubTerrain",
    "TermsConfig",
    "TermsTask",
    "TerrainConfig",
    "TerrainTask",
    "Uniform",
    "base_ang_vel",
    "base_lin_vel",
    "base_quat",
    "body_ang_vel_w",
    "body_lin_vel_w",
    "command_at",
    "on_terrain",
    "projected_gravity",
    "quat_error_magnitude",
    "quat_of",
    "shows",
    "task_config",
    "to_base",
    "twist_arrows",
    "uniform",
    "uniform_int",
    "yaw_quat",
]  # fmt: skip
__all__ += annotations.__all__
