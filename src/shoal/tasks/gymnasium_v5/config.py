"""Settings of Gymnasium's MuJoCo tasks. The defaults are those of Gymnasium 1.4; units are SI.

An instance for each task stands below the classes, and `shoal.tasks.gymnasium_v5.specs` names them. Time steps
are the models': `episode_length_s` is the number of steps that Gymnasium registers, in seconds.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated

from shoal.config.checks import Rule, above, at_least
from shoal.config.env import MujocoConfig

_INTERVAL = Rule("have its lower end first", lambda ends: ends[0] < ends[1])


@dataclass(frozen=True, kw_only=True)
class GymnasiumConfig(MujocoConfig):
    """Settings of all eleven tasks."""

    physics_dt: float | None = 0.01
    decimation: int = 5
    episode_length_s: float = 50.0  # 1,000 steps of 0.05 s.
    reset_position_noise: Annotated[float, at_least(0)] = 0.1
    """First positions [m, rad] are at most this far from the model's own, each number of a quaternion too. Of an arm,
    the joints alone."""
    reset_speed_noise: Annotated[float, at_least(0)] = 0.1
    """First speeds are at most this far from zero [m/s, rad/s]; in Ant, HalfCheetah and InvertedDoublePendulum, it is
    their standard deviation."""


@dataclass(frozen=True, kw_only=True)
class PendulumConfig(GymnasiumConfig):
    """`InvertedPendulum-v5`."""

    physics_dt: float | None = 0.02
    decimation: int = 2
    episode_length_s: float = 40.0  # 1,000 steps of 0.04 s.
    reward_survive_weight: float = 1.0
    """Reward of a step in which the pole did not fall."""
    healthy_angle: Annotated[float, above(0)] = 0.2
    """The episode ends where the pole leans further [rad]."""
    reset_position_noise: float = 0.01
    reset_speed_noise: float = 0.01


@dataclass(frozen=True, kw_only=True)
class DoublePendulumConfig(GymnasiumConfig):
    """`InvertedDoublePendulum-v5`."""

    reward_survive_weight: float = 10.0
    """Reward of a step in which the poles did not fall."""
    distance_penalty_weight: float = 1.0
    """Weight of -(0.01 x² + (z - 2 m)²), with x and z of the tip of the upper pole."""
    velocity_penalty_weight: float = 1.0
    """Weight of -(0.001 v² + 0.005 w²), with the angular speeds of the lower and of the upper pole."""
    healthy_height: float = 1.0
    """The episode ends where the tip is not above this height [m]."""


@dataclass(frozen=True, kw_only=True)
class ReachConfig(GymnasiumConfig):
    """`Reacher-v5`, and shared settings of `Pusher-v5`."""

    decimation: int = 2
    episode_length_s: float = 1.0  # 50 steps of 0.02 s.
    reward_dist_weight: float = 1.0
    """Weight of the distance to the goal [1/m], taken negative."""
    reward_ctrl_weight: float = 1.0
    """Weight of the sum of the actions' squares, taken negative."""
    reset_speed_noise: float = 0.005


@dataclass(frozen=True, kw_only=True)
class PushConfig(ReachConfig):
    """`Pusher-v5`."""

    decimation: int = 5
    episode_length_s: float = 5.0  # 100 steps of 0.05 s.
    reward_near_weight: float = 0.5
    """Weight of the distance from the fingertip to the object [1/m], taken negative."""
    reward_ctrl_weight: float = 0.1
    """Weight of the sum of the actions' squares, taken negative."""
    reset_position_noise: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RunConfig(GymnasiumConfig):
    """`HalfCheetah-v5` and `Swimmer-v5`, and shared settings of the tasks that walk."""

    reward_forward_weight: float = 1.0
    """Weight of the speed along x [s/m]."""
    reward_ctrl_weight: float
    """Weight of the sum of the actions' squares, taken negative."""


@dataclass(frozen=True, kw_only=True)
class WalkConfig(RunConfig):
    """Shared settings of the tasks that may fall."""

    reward_survive_weight: float = 1.0
    """Reward of a step that ends healthy."""
    healthy_z_range: Annotated[tuple[float, float], _INTERVAL]
    """The episode ends where the torso's height is outside [m]."""


@dataclass(frozen=True, kw_only=True)
class PlanarConfig(WalkConfig):
    """`Hopper-v5` and `Walker2d-v5`."""

    healthy_angle_range: Annotated[tuple[float, float], _INTERVAL]
    """The episode ends where the torso leans further [rad]."""
    healthy_state_limit: float = math.inf
    """The episode ends where a position [m, rad] or speed [m/s, rad/s] is not below this; x and z are left out."""


@dataclass(frozen=True, kw_only=True)
class TouchConfig(WalkConfig):
    """`Ant-v5` and `Humanoid-v5`, which also observe and penalise the forces on their bodies."""

    reward_contact_weight: Annotated[float, at_least(0)]
    """Weight of the sum of the squares of the forces [1/N²] and torques on all bodies, taken negative."""
    contact_force_limit: float = math.inf
    """Forces [N] and torques [N m] on bodies are clipped to this, in the reward and in the observation."""
    contact_cost_limit: float = math.inf
    """Most that the forces can cost in one step."""


@dataclass(frozen=True, kw_only=True)
class StandupConfig(GymnasiumConfig):
    """`HumanoidStandup-v5`."""

    physics_dt: float | None = 0.003
    episode_length_s: float = 15.0  # 1,000 steps of 0.015 s.
    reward_linup_weight: float = 1.0
    """Weight of the torso's height, divided by a physics step [s/m]: 333 for each metre, in each step."""
    reward_quadctrl_weight: float = 0.1
    """Weight of the sum of the actions' squares, taken negative."""
    reward_impact_weight: Annotated[float, at_least(0)] = 5e-7
    """Weight of the sum of the squares of the forces [1/N²] and torques on all bodies, taken negative."""
    reward_survive_weight: float = 1.0
    """Reward of each step. Gymnasium adds it without a name."""
    impact_cost_limit: float = 10.0
    """Most that the forces can cost in one step."""
    reset_position_noise: float = 0.01
    reset_speed_noise: float = 0.01


ANT = TouchConfig(
    reward_ctrl_weight=0.5,
    reward_contact_weight=5e-4,
    contact_force_limit=1.0,
    healthy_z_range=(0.2, 1.0),
)
HALF_CHEETAH = RunConfig(reward_ctrl_weight=0.1)
HOPPER = PlanarConfig(
    physics_dt=0.002,
    decimation=4,
    episode_length_s=8.0,
    reward_ctrl_weight=1e-3,
    healthy_z_range=(0.7, math.inf),
    healthy_angle_range=(-0.2, 0.2),
    healthy_state_limit=100.0,
    reset_position_noise=5e-3,
    reset_speed_noise=5e-3,
)
HUMANOID = TouchConfig(
    physics_dt=0.003,
    episode_length_s=15.0,
    reward_forward_weight=1.25,
    reward_ctrl_weight=0.1,
    reward_survive_weight=5.0,
    reward_contact_weight=5e-7,
    contact_cost_limit=10.0,
    healthy_z_range=(1.0, 2.0),
    reset_position_noise=0.01,
    reset_speed_noise=0.01,
)
SWIMMER = RunConfig(decimation=4, episode_length_s=40.0, reward_ctrl_weight=1e-4)
WALKER2D = replace(HOPPER, healthy_z_range=(0.8, 2.0), healthy_angle_range=(-1.0, 1.0), healthy_state_limit=math.inf)
