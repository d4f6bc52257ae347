"""What tasks that track a commanded velocity have in common, as declarations. Importable without Warp."""

import math
from typing import Any

from shoal.config import SymmetryConfig
from shoal.mdp.terms import Command, Event, Metric, Obs

ALL = ".*"
"""Pattern of all names."""
MIRRORED = SymmetryConfig(data_augmentation_func="shoal.mdp.symmetry:mirror")
"""Left and right exchanged, once it is enabled."""


def observed(*, noise: float, lin_vel: float = 0.1) -> dict[str, Any]:
    """Return what is observed, with `noise` times the usual errors; `lin_vel` is that of the velocity [m/s]."""
    return {
        "base_lin_vel": Obs("base_lin_vel", noise=lin_vel * noise),
        "base_ang_vel": Obs("base_ang_vel", noise=0.2 * noise),
        "projected_gravity": Obs("projected_gravity", noise=0.05 * noise),
        "command": Obs("velocity_command", command="twist"),
        "joint_pos": Obs("joint_pos_rel", joints=ALL, noise=0.01 * noise),
        "joint_vel": Obs("joint_vel_rel", joints=ALL, noise=1.5 * noise),
        "actions": Obs("last_action", actuators=ALL),
    }


def twist(x: float, y: float, z: float, **kinds: float) -> dict[str, Any]:
    """Return the command of a velocity, of at most `x` and `y` [m/s] and `z` [rad/s] in both directions.

    With `kinds`, which are parameters of `uniform_velocity_command`, shares of it are of other kinds.
    """
    command = Command(
        "uniform_velocity_command" if kinds else "uniform_velocity",
        columns={"lin_vel_x": "m/s", "lin_vel_y": "m/s", "ang_vel_z": "rad/s"},
        resampling_time=(3.0, 8.0),
        lin_vel_x=(-x, x),
        lin_vel_y=(-y, y),
        ang_vel_z=(-z, z),
        rel_standing_envs=0.1,
        **kinds,
    )
    return {"twist": command}


def starts(*, position: float = 0.0, joints: float = 0.0) -> dict[str, Any]:
    """Return the events of a new episode: up to `position` along x and y [m], and joints `joints` [rad], from home."""
    spot = (-position, position)
    return {
        "base": Event("reset_root_state_uniform", "reset", x=spot, y=spot, yaw=(-math.pi, math.pi)),
        "joints": Event("reset_joints_by_offset", "reset", joints=ALL, position=(-joints, joints), velocity=(0.0, 0.0)),
        "targets": Event("hold_default_pose", "reset", actuators=ALL),
    }


def pushes(first: float, last: float) -> dict[str, Any]:
    """Return pushes of up to 0.5 m/s along x and y, in intervals between two times [s]."""
    return {"push": Event("push_by_setting_velocity", "interval", interval=(first, last), x=(-0.5, 0.5), y=(-0.5, 0.5))}


METRICS = {
    "error_linear_velocity": Metric("error_lin_vel", command="twist"),
    "error_angular_velocity": Metric("error_ang_vel", command="twist"),
}
"""Distances from the command [m/s, rad/s]."""
