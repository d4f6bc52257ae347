"""The velocity tasks as terms. Units are SI: metres, radians, seconds, kilograms, newtons.

Names are those of mjlab and Isaac Lab, and so are most weights: the sources of each are in docs/tasks/quadruped.md.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from shoal.config.checks import at_least, check, each, one_of, within
from shoal.mdp.config import RobotConfig, task_config
from shoal.mdp.terms import Action, Contact, Done, Event, Metric, Obs, Reward
from shoal.mdp.velocity import ALL, METRICS, observed, pushes, starts, twist

TerrainName = Literal["rough", "boxes", "hill", "pit", "stairs_down", "stairs_up"]


@dataclass(frozen=True, kw_only=True)
class RoughConfig(RobotConfig):
    """Track a commanded velocity on rough terrain, with a terrain curriculum."""

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
        return replace(super().in_play(), curriculum=False)


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
        "feet_air_time": Reward(
            "feet_air_time", weight=0.1, contact="feet", command="twist", threshold=0.1, swing_time=0.25
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

# 50 actions a second.
_ROBOT = {"feet": "(FR|FL|RR|RL)(_foot)?", "physics_dt": 0.005, "decimation": 4}
FLAT = task_config(RobotConfig, **_ROBOT, **_TERMS)

_OWN = "shoal.tasks.quadruped.terms:"
_SCAN = {"grid": (1.2, 0.8, 0.1), "clip": 1.0}
_EVENTS: dict[str, Any] = _TERMS["events"] | {
    "base": Event(f"{_OWN}reset_on_tile", "reset", spread=0.3, yaw=(-math.pi, math.pi)),
    "first_levels": Event(f"{_OWN}draw_first_levels", "startup"),
}
_LEVELS = Event(f"{_OWN}update_terrain_levels", "reset", min_distance=2.0, promote_at=0.8, demote_at=0.5)
ROUGH = task_config(
    RoughConfig,
    **_ROBOT,
    **_TERMS
    | {
        "observations": {
            "policy": observed(noise=1.0) | {"height_scan": Obs("height_scan", noise=0.05, **_SCAN)},
            "critic": observed(noise=0.0) | {"height_scan": Obs("height_scan", **_SCAN)},
        },
        "rewards": _TERMS["rewards"] | {"flat_orientation": Reward("flat_orientation_l2", weight=-0.5)},
        "terminations": _TERMS["terminations"] | {"out_of_terrain": Done(f"{_OWN}out_of_terrain", time_out=True)},
        "events": {"terrain_levels": _LEVELS} | _EVENTS,  # The level first, then the tile that the base is put on.
        "metrics": _TERMS["metrics"]
        | {"terrain_level": Metric(f"{_OWN}terrain_level"), "walked_share": Metric(f"{_OWN}walked_share")},
    },
)
BLIND = ROUGH.change(observations={"policy": {"height_scan": None}})
"""Rough terrain, of which the policy observes nothing; the critic's observations serve a teacher."""
