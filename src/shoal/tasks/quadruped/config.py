"""The velocity tasks as terms. Units are SI: metres, radians, seconds, kilograms, newtons.

Names are those of mjlab and Isaac Lab, and so are most weights: the sources of each are in docs/tasks/quadruped.md.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from shoal.config.checks import above, at_least, check, each, one_of, within
from shoal.config.env import MujocoConfig
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.terms import Action, Command, Contact, Done, Event, Metric, Obs, Reward

TerrainName = Literal["rough", "boxes", "hill", "pit", "stairs_down", "stairs_up"]


@dataclass(frozen=True, kw_only=True)
class VelocityConfig(TermsConfig):
    """Track a commanded velocity with a legged robot."""

    size_fields: ClassVar[tuple[str, ...]] = (*MujocoConfig.size_fields, "robot", "feet", "observations")
    model_fields: ClassVar[tuple[str, ...]] = ("robot",)

    robot: str = ""
    """The robot: an MJCF file, or the name of a model of the package `mujoco-menagerie`, such as `unitree_go1`. It
    needs a free joint, a position actuator for each of its other joints, and a keyframe to stand in. Empty for the
    robot that ships."""
    keyframe: str = "home"
    """Keyframe of the first state, and of the joint positions at action 0."""
    feet: str = "(FR|FL|RR|RL)(_foot)?"
    """Pattern of the names of the geoms that are feet: `{feet}` in the patterns of terms."""
    physics_dt: Annotated[float | None, above(0)] = 0.005
    """Time step of the physics [s], instead of the model file's. With the default of `decimation` there are 50 actions
    a second. None: the file's."""


@dataclass(frozen=True, kw_only=True)
class RoughConfig(VelocityConfig):
    """The same on rough terrain, with a terrain curriculum."""

    terrains: Annotated[tuple[TerrainName, ...], each(one_of(TerrainName))] = (
        *("rough", "boxes", "hill", "pit", "stairs_down", "stairs_up"),
    )
    """Terrain types, each for as many environments."""
    terrain_levels: Annotated[int, at_least(1)] = 10
    """Number of levels of each terrain type, from easy to hard."""
    terrain_seed: Annotated[int, at_least(0)] = 0
    """Seed of the terrain, which is the same on all workers."""
    curriculum: bool = True
    """Whether terrain levels follow the walked distance. If not, the level of each episode is drawn uniformly, as in
    `play` and `evaluate`."""
    first_levels: Annotated[int, at_least(1)] = 3
    """Number of the easiest levels that a curriculum begins on."""
    only_level: int | None = None
    """The only level, counted from 0, instead of a curriculum."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check(self, "env.", {"only_level": within(0, self.terrain_levels - 1)})

    def in_play(self) -> Self:
        """Return the same without a curriculum, for an evaluation on all levels alike."""
        return replace(self, curriculum=False)


_ALL = ".*"
_TWIST = {"lin_vel_x": "m/s", "lin_vel_y": "m/s", "ang_vel_z": "rad/s"}


def _observed(*, noise: float) -> dict[str, Any]:
    """Return what is observed, with `noise` times the usual errors."""
    return {
        "base_lin_vel": Obs("base_lin_vel", noise=0.1 * noise),
        "base_ang_vel": Obs("base_ang_vel", noise=0.2 * noise),
        "projected_gravity": Obs("projected_gravity", noise=0.05 * noise),
        "command": Obs("velocity_command", command="twist"),
        "joint_pos": Obs("joint_pos_rel", joints=_ALL, noise=0.01 * noise),
        "joint_vel": Obs("joint_vel_rel", joints=_ALL, noise=1.5 * noise),
        "actions": Obs("last_action", actuators=_ALL),
    }


_TERMS: dict[str, Any] = {
    "actions": {"joint_pos": Action("joint_position", actuators=_ALL, scale=0.3)},
    "commands": {
        "twist": Command(
            "uniform_velocity",
            columns=_TWIST,
            resampling_time=(3.0, 8.0),
            lin_vel_x=(-1.0, 1.0),
            lin_vel_y=(-0.5, 0.5),
            ang_vel_z=(-1.0, 1.0),
            rel_standing_envs=0.1,
        )
    },
    # As much as a foot moves in a physics step at touch-down.
    "contacts": {"feet": Contact("near_ground", geoms="{feet}", tolerance=0.005)},
    "observations": {"policy": _observed(noise=1.0), "critic": _observed(noise=0.0)},
    "rewards": {
        "track_linear_velocity": Reward("track_linear_velocity", weight=2.0, command="twist", std=0.5),
        "track_angular_velocity": Reward("track_angular_velocity", weight=1.0, command="twist", std=0.5),
        "lin_vel_z": Reward("lin_vel_z_l2", weight=-2.0),
        "ang_vel_xy": Reward("ang_vel_xy_l2", weight=-0.05),
        "flat_orientation": Reward("flat_orientation_l2", weight=-2.5),
        "joint_torques": Reward("joint_torques_l2", weight=-2e-4, actuators=_ALL),
        "joint_acc": Reward("joint_acc_l2", weight=-2.5e-7, joints=_ALL),
        "action_rate": Reward("action_rate_l2", weight=-0.01),
        "feet_air_time": Reward(
            "feet_air_time", weight=0.1, contact="feet", command="twist", threshold=0.1, swing_time=0.25
        ),
        "joint_deviation": Reward(
            "joint_deviation_l2", weight=-0.1, joints=_ALL, command="twist", threshold=0.1, standing=10.0
        ),
        "feet_slip": Reward("feet_slip", weight=-0.1, contact="feet"),
    },
    "terminations": {
        "fell_over": Done("bad_orientation", limit_angle=math.radians(70.0)),
        "too_low": Done("root_height_below_minimum", minimum_height=0.12),
    },
    "events": {
        "base": Event("reset_root_state_uniform", "reset", x=(0.0, 0.0), y=(0.0, 0.0), yaw=(-math.pi, math.pi)),
        "joints": Event("reset_joints_by_offset", "reset", joints=_ALL, position=(-0.1, 0.1), velocity=(0.0, 0.0)),
        "targets": Event("hold_default_pose", "reset", actuators=_ALL),
        "push": Event("push_by_setting_velocity", "interval", interval=(4.0, 12.0), x=(-0.5, 0.5), y=(-0.5, 0.5)),
        "foot_friction": Event("geom_friction", "startup", geoms="{feet}", ranges=(0.4, 1.2)),
        "added_mass": Event("add_body_mass", "startup", body="{base}", ranges=(-1.0, 2.0)),
        "gains": Event("scale_servo_gains", "startup", actuators=_ALL, kp=(0.9, 1.1), kd=(0.9, 1.1)),
    },
    "metrics": {
        "error_linear_velocity": Metric("error_lin_vel", command="twist"),
        "error_angular_velocity": Metric("error_ang_vel", command="twist"),
    },
}

FLAT = task_config(VelocityConfig, **_TERMS)

_OWN = "shoal.tasks.quadruped.terms:"
_SCAN = {"grid": (1.2, 0.8, 0.1), "clip": 1.0}
_EVENTS: dict[str, Any] = _TERMS["events"] | {
    "base": Event(f"{_OWN}reset_on_tile", "reset", spread=0.3, yaw=(-math.pi, math.pi)),
    "first_levels": Event(f"{_OWN}draw_first_levels", "startup"),
}
_LEVELS = Event(f"{_OWN}update_terrain_levels", "reset", min_distance=2.0, promote_at=0.8, demote_at=0.5)
ROUGH = task_config(
    RoughConfig,
    **_TERMS
    | {
        "observations": {
            "policy": _observed(noise=1.0) | {"height_scan": Obs("height_scan", noise=0.05, **_SCAN)},
            "critic": _observed(noise=0.0) | {"height_scan": Obs("height_scan", **_SCAN)},
        },
        "rewards": _TERMS["rewards"] | {"flat_orientation": Reward("flat_orientation_l2", weight=-0.5)},
        "terminations": _TERMS["terminations"] | {"out_of_terrain": Done(f"{_OWN}out_of_terrain", time_out=True)},
        "events": {"terrain_levels": _LEVELS} | _EVENTS,  # The level first, then the tile that the base is put on.
        "metrics": _TERMS["metrics"]
        | {"terrain_level": Metric(f"{_OWN}terrain_level"), "walked_share": Metric(f"{_OWN}walked_share")},
    },
)
