"""Settings of the cart-pole tasks. Units are SI: metres, radians, seconds, kilograms, newtons.

Angles are measured from upright, positive towards positive positions of the cart. The equations that these
numbers go into are in `shoal.tasks.cartpole.kernels`.
"""

from dataclasses import dataclass
from typing import Annotated

from shoal.config.checks import above, at_least
from shoal.config.env import EnvConfig
from shoal.mdp.cameras import Camera
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.terms import Action, Done, Event, Obs, Reward


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantConfig(EnvConfig):
    """The cart, the pole, the rail, and how often the cart is pushed.

    Masses and length are those of Barto, Sutton and Anderson, "Neuronlike adaptive elements that
    can solve difficult learning control problems", IEEE Transactions on Systems, Man, and Cybernetics 13
    (1983), p. 841.
    """

    episode_length_s: float = 10.0
    """Longest time an episode may take [s]; the DeepMind Control Suite's cart-pole runs as long."""
    cart_mass: Annotated[float, above(0)] = 1.0
    """Mass of the cart [kg]; Barto et al."""
    pole_mass: Annotated[float, above(0)] = 0.1
    """Mass of the pole [kg], spread evenly along it; Barto et al."""
    pole_half_length: Annotated[float, above(0)] = 0.5
    """Distance from the hinge to the middle of the pole [m]; Barto et al."""
    gravity: Annotated[float, above(0)] = 9.81
    """Acceleration of free fall [m/s^2]; Barto et al. round it to 9.8."""
    rail_half_length: Annotated[float, above(0)] = 2.4
    """The episode fails where the cart is further than this from the middle [m]; Barto et al."""
    physics_dt: Annotated[float, above(0)] = 0.01
    """Time step of the integrator [s]; the DeepMind Control Suite's."""
    decimation: Annotated[int, at_least(1)] = 2
    """Physics steps for each action. The defaults give 50 actions a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CartpoleConfig(PlantConfig):
    """What the kernels of the tasks need beside it."""

    force_limit: Annotated[float, above(0)] = 10.0
    """Force on the cart at action 1 [N]; actions are clipped to [-1, 1]. Barto et al."""
    cart_speed_scale: Annotated[float, above(0)] = 5.0
    """Speed of the cart that is observed as 1 [m/s]; with full force the default cart reaches it in 1.4 m."""
    pole_speed_scale: Annotated[float, above(0)] = 8.0
    """Angular speed of the pole that is observed as 1 [rad/s]; the default pole, falling from upright, passes
    its lowest point about as fast."""
    reset_position_range: Annotated[float, at_least(0)] = 0.2
    """An episode begins with the cart at most this far from the middle [m]."""
    reset_angle_range: Annotated[float, at_least(0)] = 0.05
    """An episode begins with the pole at most this far from where it starts [rad]; Gymnasium's cart-pole has
    as much."""
    reset_cart_speed_range: Annotated[float, at_least(0)] = 0.05
    """An episode begins with the cart at most this fast [m/s]; Gymnasium's cart-pole."""
    reset_pole_speed_range: Annotated[float, at_least(0)] = 0.05
    """An episode begins with the pole at most this fast [rad/s]; Gymnasium's cart-pole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceConfig(CartpoleConfig):
    """Keep a pole that begins nearly upright from falling. Falling, or leaving the rail, ends the episode."""

    fallen_angle: Annotated[float, above(0)] = 0.20944
    """The episode fails where the pole leans more than this [rad]: the 12 degrees of Barto et al."""
    upright_weight: float = 1.0
    """Weight of the term that is always 1: the longer the pole stays up, the better."""
    off_centre_weight: float = -0.5
    """Weight of the cart's distance from the middle, as a fraction of the rail, squared."""
    effort_weight: float = -0.05
    """Weight of the action squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwingupConfig(CartpoleConfig):
    """Swing a hanging pole up and keep it there, over the middle of the rail.

    Only leaving the rail ends an episode early. The reward is the smooth one of the cart-pole in the DeepMind
    Control Suite (Tassa et al., arXiv:1801.00690): a product of factors for an upright pole, a centred cart,
    little force and a slow pole, each between 0 and 1. The factors that fall off do so as the Suite's
    long-tailed tolerance does, instead of its Gaussian one, which costs more to compute.
    """

    reset_angle_range: float = 0.8
    """An episode begins with the pole at most this far from hanging down [rad]. A pole that always begins at
    rest teaches PPO to keep still: pushing the cart at random leads off the rail long before it leads up."""
    reset_cart_speed_range: float = 0.5
    """An episode begins with the cart at most this fast [m/s]."""
    reset_pole_speed_range: float = 2.0
    """An episode begins with the pole at most this fast [rad/s]."""
    swung_up_weight: float = 5.0
    """Weight of the smooth reward: an episode of 10 s returns 50 at most. With returns ten times smaller, an
    untrained critic's errors drown them, and learning takes longer."""
    centred_margin: Annotated[float, above(0)] = 2.0
    """Distance from the middle at which the factor for a centred cart has lost 90 % of what it can lose [m];
    the Control Suite's."""
    slow_margin: Annotated[float, above(0)] = 5.0
    """Angular speed at which the factor for a slow pole has lost 90 % of what it can lose [rad/s]; the
    Control Suite's."""


@dataclass(frozen=True, kw_only=True)
class SwingupMujocoConfig(PlantConfig, TermsConfig):
    """The same cart-pole, simulated by MuJoCo."""


_USUAL = SwingupConfig()
_CART, _POLE = _USUAL.reset_cart_speed_range, _USUAL.reset_pole_speed_range
_PLACE, _ANGLE = _USUAL.reset_position_range, _USUAL.reset_angle_range
_RESET = "reset_joints_by_offset"

_STATE = {
    "position": Obs("joint_pos", joints="x", scale=1.0 / _USUAL.rail_half_length),
    "sine": Obs("joint_pos_sin", joints="theta"),
    "cosine": Obs("joint_pos_cos", joints="theta"),
    "cart_speed": Obs("joint_vel_rel", joints="x", scale=1.0 / _USUAL.cart_speed_scale),
    "pole_speed": Obs("joint_vel_rel", joints="theta", scale=1.0 / _USUAL.pole_speed_scale),
}
SWINGUP_MUJOCO = task_config(
    SwingupMujocoConfig,
    actions={"force": Action("joint_effort", actuators="push", scale=_USUAL.force_limit, clip=1.0)},
    observations={"policy": _STATE},
    rewards={
        "swung_up": Reward(
            "shoal.tasks.cartpole.terms:swung_up",
            weight=_USUAL.swung_up_weight,
            centred_margin=_USUAL.centred_margin,
            slow_margin=_USUAL.slow_margin,
        )
    },
    terminations={
        "off_the_rail": Done(
            "joint_pos_out_of_manual_limit",
            joints="x",
            bounds=(-_USUAL.rail_half_length, _USUAL.rail_half_length),
        )
    },
    events={
        "cart": Event(_RESET, "reset", joints="x", position=(-_PLACE, _PLACE), velocity=(-_CART, _CART)),
        "pole": Event(_RESET, "reset", joints="theta", position=(-_ANGLE, _ANGLE), velocity=(-_POLE, _POLE)),
    },
)
"""Swing-up with MuJoCo's dynamics, as terms; the numbers are those of `SwingupConfig`."""

_DEPTH = Obs("camera_depth", sensor_name="eye", cutoff_distance=4.0, history_length=3)
SWINGUP_DEPTH = SWINGUP_MUJOCO.change(
    sensors={"eye": Camera(pos=(0.0, -3.2, 0.0), quat=(0.5**0.5, 0.5**0.5, 0.0, 0.0), width=48, height=24)},
    observations={
        "policy": dict.fromkeys(_STATE) | {"depth": _DEPTH},
        "critic": _STATE,
    },
)
"""The same by the last three images of a camera that sees the whole rail; the critic alone observes the state."""
