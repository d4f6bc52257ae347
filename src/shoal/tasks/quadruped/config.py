"""Settings of the velocity tasks. Units are SI: metres, radians, seconds, kilograms, newtons.

Names of reward terms are those of Isaac Lab and mjlab, and so are most weights: the sources of each are in
docs/tasks.md.
"""

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, Self

from shoal.config.checks import above, at_least, check, each, one_of, within
from shoal.config.env import MujocoConfig

TerrainName = Literal["rough", "boxes", "hill", "pit", "stairs_down", "stairs_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VelocityConfig(MujocoConfig):
    """Track a commanded velocity with a legged robot."""

    size_fields: ClassVar[tuple[str, ...]] = (*MujocoConfig.size_fields, "robot", "feet")
    model_fields: ClassVar[tuple[str, ...]] = ("robot",)

    robot: str = ""
    """The robot: an MJCF file, or the name of a model of the package `mujoco-menagerie`, such as `unitree_go1`. It
    needs a free joint, a position actuator for each of its other joints, and a keyframe to stand in. Empty for the
    robot that ships."""
    keyframe: str = "home"
    """Keyframe of the first state, and of the joint positions at action 0."""
    feet: str = "(FR|FL|RR|RL)(_foot)?"
    """Pattern of the names of the geoms that are feet."""
    physics_dt: float | None = 0.005
    decimation: int = 4
    """Physics steps for each action. The defaults give 50 actions a second."""
    action_scale: float = 0.3
    """Offset of a joint position target at action 1 [rad]."""

    command_interval_min: float = 3.0
    """Shortest time between two commands [s]."""
    command_interval_max: float = 8.0
    """Longest time between two commands [s]."""
    forward_speed: float = 1.0
    """Largest commanded linear velocity along x [m/s]."""
    sideways_speed: float = 0.5
    """Largest commanded linear velocity along y [m/s]."""
    turning_speed: float = 1.0
    """Largest commanded angular velocity about z [rad/s]."""
    standing_share: float = 0.1
    """Share of the commands that are to stand still."""

    reset_joint_range: float = 0.1
    """Largest distance of first joint positions from the keyframe [rad]."""
    push_interval: float = 8.0
    """Mean time between two pushes [s]; 0 for none."""
    push_speed: float = 0.5
    """Largest change of the base's velocity by a push, along x and y [m/s]."""

    friction_min: float = 0.4
    """Smallest friction of the feet; each environment has its own."""
    friction_max: float = 1.2
    """Largest friction of the feet."""
    added_mass_min: float = -1.0
    """Smallest mass added to the base of an environment [kg]."""
    added_mass_max: float = 2.0
    """Largest mass added to the base of an environment [kg]."""
    gain_range: float = 0.1
    """Largest relative change of the actuators' PD gains in an environment."""

    noise_linear_velocity: float = 0.1
    """Largest error of the observed linear velocity [m/s]."""
    noise_angular_velocity: float = 0.2
    """Largest error of the observed angular velocity [rad/s]."""
    noise_gravity: float = 0.05
    """Largest error of the observed direction of gravity, along each axis."""
    noise_joint_position: float = 0.01
    """Largest error of an observed joint position [rad]."""
    noise_joint_velocity: float = 1.5
    """Largest error of an observed joint velocity [rad/s]."""

    tilt_limit: float = 1.2217
    """The episode terminates where the base tilts more than this [rad]: 70 degrees, as in mjlab."""
    height_limit: float = 0.12
    """The episode terminates where the base is lower than this above the ground [m]."""
    tracking_sigma: float = 0.25
    """Squared error of the velocity at which a tracking term has fallen to 1/e [m^2/s^2 or rad^2/s^2]."""
    swing_time: float = 0.25
    """Air time of a foot with a `feet_air_time` of 0 [s]: longer is rewarded, shorter penalised."""

    track_linear_velocity_weight: float = 2.0
    """Weight of tracking the commanded horizontal velocity."""
    track_angular_velocity_weight: float = 1.0
    """Weight of tracking the commanded angular velocity about z."""
    lin_vel_z_weight: float = -2.0
    """Weight of the base's vertical velocity squared."""
    ang_vel_xy_weight: float = -0.05
    """Weight of the base's roll and pitch velocities squared."""
    flat_orientation_weight: float = -2.5
    """Weight of the horizontal part of gravity in the base's frame, squared."""
    joint_torques_weight: float = -2e-4
    """Weight of the sum of squared torques."""
    joint_acc_weight: float = -2.5e-7
    """Weight of the sum of squared joint accelerations."""
    action_rate_weight: float = -0.01
    """Weight of the sum of squared changes of the actions."""
    feet_air_time_weight: float = 0.1
    """Weight of a foot's air time beyond `swing_time`, at touch-down."""
    joint_deviation_weight: float = -0.1
    """Weight of the sum of squared joint distances from the keyframe; ten times as much where the command is to
    stand."""
    feet_slip_weight: float = -0.1
    """Weight of the sum of squared velocities of the feet in contact."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        MujocoConfig.__post_init__(self)
        positive = ("action_scale", "command_interval_min", "command_interval_max", "tracking_sigma", "friction_min")
        ranges = (
            *("forward_speed", "sideways_speed", "turning_speed", "reset_joint_range", "push_interval", "push_speed"),
            *("noise_linear_velocity", "noise_angular_velocity", "noise_gravity"),
            *("noise_joint_position", "noise_joint_velocity", "height_limit", "swing_time"),
        )
        check(self, "env.", dict.fromkeys(positive, above(0)))
        check(self, "env.", dict.fromkeys(ranges, at_least(0)))
        check(self, "env.", {"standing_share": within(0, 1), "gain_range": within(0, 0.9), "tilt_limit": above(0)})
        check(self, "env.", {"command_interval_max": at_least(self.command_interval_min)})
        check(self, "env.", {"friction_max": at_least(self.friction_min)})
        check(self, "env.", {"added_mass_max": at_least(self.added_mass_min)})

    def undisturbed(self) -> Self:
        """Return the same without pushes and noise of the observations."""
        noises = (field.name for field in fields(self) if field.name.startswith("noise_"))
        return replace(self, push_interval=0.0, **dict.fromkeys(noises, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoughConfig(VelocityConfig):
    """The same on rough terrain, with a terrain curriculum."""

    size_fields: ClassVar[tuple[str, ...]] = (
        *VelocityConfig.size_fields,
        *("scan_length", "scan_width", "scan_spacing"),
    )

    terrains: tuple[TerrainName, ...] = ("rough", "boxes", "hill", "pit", "stairs_down", "stairs_up")
    """Terrain types, each for as many environments."""
    terrain_levels: int = 10
    """Number of levels of each terrain type, from easy to hard."""
    terrain_seed: int = 0
    """Seed of the terrain, which is the same on all workers."""
    curriculum: bool = True
    """Whether terrain levels follow the walked distance. If not, the level of each episode is drawn uniformly, as in
    `play` and `evaluate`."""
    first_levels: int = 3
    """Number of the easiest levels that a curriculum begins on."""
    only_level: int | None = None
    """The only level, counted from 0, instead of a curriculum."""
    promote_at: float = 0.8
    """The level goes up after an episode without a fall and with at least this share of the commanded distance."""
    demote_at: float = 0.5
    """The level goes down after a fall, or with less than this share of the commanded distance."""

    scan_length: float = 1.2
    """Length of the height scan along x [m]."""
    scan_width: float = 0.8
    """Width of the height scan along y [m]."""
    scan_spacing: float = 0.1
    """Distance between two points of the height scan [m]."""
    noise_scan: float = 0.05
    """Largest error of an observed height [m]."""

    flat_orientation_weight: float = -0.5
    """Weight of the horizontal part of gravity in the base's frame, squared."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        VelocityConfig.__post_init__(self)
        check(self, "env.", {"terrain_levels": at_least(1), "terrain_seed": at_least(0), "first_levels": at_least(1)})
        check(self, "env.", {"promote_at": at_least(self.demote_at), "demote_at": at_least(0)})
        check(self, "env.", {"scan_length": at_least(0), "scan_width": at_least(0), "noise_scan": at_least(0)})
        check(self, "env.", {"scan_spacing": above(0), "only_level": within(0, self.terrain_levels - 1)})
        check(self, "env.", {"terrains": each(one_of(TerrainName))})

    def in_play(self) -> Self:
        """Return the same without a curriculum, for an evaluation on all levels alike."""
        return replace(self, curriculum=False)
