"""The eleven tasks: observations, rewards and terminations."""

import math
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import warp as wp

from shoal.tasks.gymnasium_v5 import config as configs
from shoal.tasks.gymnasium_v5 import kernels
from shoal.tasks.gymnasium_v5.base import GymnasiumTask, Part

RunConfigT = TypeVar("RunConfigT", bound=configs.RunConfig)
WalkConfigT = TypeVar("WalkConfigT", bound=configs.WalkConfig)
ReachConfigT = TypeVar("ReachConfigT", bound=configs.ReachConfig)

MAX_OBSERVED_VEL = 10.0
"""Limit of observed velocities in some tasks [m/s, rad/s]."""


# Pendulums on a cart --------------------------------------------------------------------------------------------------


class InvertedPendulum(GymnasiumTask[configs.PendulumConfig]):
    """Keep a pole upright on a cart."""

    config = configs.PendulumConfig()
    file = "inverted_pendulum.xml"
    capacities = (8, 16)
    observations: ClassVar = {"policy": 4}
    num_actions = 1
    reward_terms = ("reward_survive",)

    def healthy_ranges(self) -> dict[int, tuple[float, float]]:
        """Return the range of the pole's angle."""
        return {1: (-self.config.healthy_angle, self.config.healthy_angle)}

    def compute_rewards(self) -> None:
        """Reward a pole that is up."""
        self.reward_health("reward_survive")


class InvertedDoublePendulum(GymnasiumTask[configs.DoublePendulumConfig]):
    """Keep a pole upright on a pole on a cart. The constraint force on the cart is observed."""

    config = configs.DoublePendulumConfig()
    file = "inverted_double_pendulum.xml"
    capacities = (8, 16)
    observations: ClassVar = {"policy": 9}
    num_actions = 1
    reward_terms = ("reward_survive", "distance_penalty", "velocity_penalty")
    reward_fields = ("site_xpos",)
    vel_noise_is_normal = True
    layout = (
        Part("qpos", count=1),
        Part("qpos", first=1, how=kernels.SINE),
        Part("qpos", first=1, how=kernels.COSINE),
        Part("qvel", limit=MAX_OBSERVED_VEL),
        Part("qfrc_constraint", count=1, limit=10.0),
    )

    def compute_rewards(self) -> None:
        """Reward poles that are up and still."""
        self.launch(
            kernels.reward_balance,
            inputs=[self.data("site_xpos"), self.qvel, self.config.healthy_height],
            outputs=[self.terms, self.terminated],
        )


# Arms -----------------------------------------------------------------------------------------------------------------


class Arm(GymnasiumTask[ReachConfigT]):
    """Base class of `Reacher` and `Pusher`: noise on the arm alone, and a random position of an object."""

    target: ClassVar[tuple[tuple[float, float], tuple[float, float], tuple[float, float]]]
    """Ranges of the object's first x and y, and of its distance from the origin [m]."""
    reward_fields = ("xpos",)

    def allocate(self) -> None:
        """Restrict noise to the arm, which has a joint for each action."""
        super().allocate()
        self.noisy_joints = wp.vec2i(self.num_actions, self.num_actions)

    def reset_state(self) -> None:
        """Begin new episodes where done: the object's x and y are the positions after those of the arm."""
        super().reset_state()
        self.launch(
            kernels.place_target,
            inputs=[self.done, *(wp.vec2(ends) for ends in self.target), self.num_actions],
            outputs=[self.rng, self.qpos],
        )


class Reacher(Arm[configs.ReachConfig]):
    """Touch a target with the tip of an arm of two links."""

    config = configs.ReachConfig()
    file = "reacher.xml"
    capacities = (8, 16)
    observations: ClassVar = {"policy": 10}
    num_actions = 2
    reward_terms = ("reward_dist", "reward_ctrl")
    target = ((-0.2, 0.2), (-0.2, 0.2), (-1.0, 0.2))
    layout = (
        Part("qpos", count=2, how=kernels.COSINE),
        Part("qpos", count=2, how=kernels.SINE),
        Part("qpos", first=2),
        Part("qvel", count=2),
    )

    def observe(self) -> None:
        """Write the parts, and the distance between tip and target."""
        super().observe()
        ends = [3 * self.model.body(name).id for name in ("fingertip", "target")]
        self.launch(
            kernels.show_difference,
            inputs=[self.rows("xpos"), *ends, 8],
            outputs=[self.obs["policy"]],
            dim=(self.num_envs, 2),
        )

    def compute_rewards(self) -> None:
        """Penalise distance and effort."""
        self.penalise_distance("reward_dist", "fingertip", "target")
        self.penalise_squares("reward_ctrl", self.ctrl)


class Pusher(Arm[configs.PushConfig]):
    """Push a cylinder to a goal with an arm of seven joints."""

    config = configs.PushConfig()
    file = "pusher_v5.xml"
    capacities = (16, 32)
    observations: ClassVar = {"policy": 23}
    num_actions = 7
    reward_terms = ("reward_dist", "reward_ctrl", "reward_near")
    target = ((-0.3, 0.0), (-0.2, 0.2), (0.17, math.inf))

    def observation_parts(self) -> Sequence[Part]:
        """Return joints and velocities of the arm, and the positions of its tip, of the object and of the goal."""
        places = (Part("xpos", first=3 * self.model.body(name).id, count=3) for name in ("tips_arm", "object", "goal"))
        return (Part("qpos", count=7), Part("qvel", count=7), *places)

    def compute_rewards(self) -> None:
        """Penalise distances and effort."""
        self.penalise_distance("reward_dist", "object", "goal")
        self.penalise_squares("reward_ctrl", self.ctrl)
        self.penalise_distance("reward_near", "object", "tips_arm")


# Runners --------------------------------------------------------------------------------------------------------------


class Runner(GymnasiumTask[RunConfigT]):
    """Move along x at little effort."""

    reward_terms = ("reward_forward", "reward_ctrl")
    runs_with: ClassVar[tuple[str, int]] = ("qpos", 0)
    """Field and column of the x whose velocity is rewarded."""

    def allocate(self) -> None:
        """Add the position before a step."""
        super().allocate()
        field, self.x_column = self.runs_with
        self.x_rows = self.rows(field)
        self.x_before = self.array("x_before")
        """Position before the step [m]. Shape (num_envs,)."""

    def apply_actions(self) -> None:
        """Clip the actions, and store the position."""
        super().apply_actions()
        self.launch(kernels.remember, inputs=[self.x_rows, self.x_column], outputs=[self.x_before])

    def compute_rewards(self) -> None:
        """Reward the mean velocity over the step, and penalise effort."""
        self.launch(
            kernels.reward_velocity,
            inputs=[self.x_rows, self.x_column, self.x_before, self.step_dt, self.column("reward_forward")],
            outputs=[self.terms],
        )
        self.penalise_squares("reward_ctrl", self.ctrl)


class HalfCheetah(Runner[configs.RunConfig]):
    """Run with two legs in a plane."""

    config = configs.HALF_CHEETAH
    file = "half_cheetah.xml"
    capacities = (12, 48)
    observations: ClassVar = {"policy": 17}
    num_actions = 6
    vel_noise_is_normal = True
    layout = (Part("qpos", first=1), Part("qvel"))


class Swimmer(Runner[configs.RunConfig]):
    """Swim with three links in a plane."""

    config = configs.SWIMMER
    file = "swimmer.xml"
    capacities = (8, 16)
    observations: ClassVar = {"policy": 8}
    num_actions = 2
    layout = (Part("qpos", first=2), Part("qvel"))


class Walker(Runner[WalkConfigT]):
    """Move along x at little effort without falling."""

    torso_height: ClassVar[int]
    """Index of the torso's height among the positions."""

    def healthy_ranges(self) -> dict[int, tuple[float, float]]:
        """Return the range of the torso's height."""
        return {self.torso_height: self.config.healthy_z_range}

    def compute_rewards(self) -> None:
        """Reward velocity and health, and penalise effort."""
        super().compute_rewards()
        self.reward_health("reward_survive")


class PlanarWalker(Walker[configs.PlanarConfig]):
    """Base class of `Hopper` and `Walker2d`: positions begin with x, height and angle of the torso."""

    reward_terms = ("reward_forward", "reward_ctrl", "reward_survive")
    torso_height = 1
    layout = (Part("qpos", first=1), Part("qvel", limit=MAX_OBSERVED_VEL))

    def healthy_ranges(self) -> dict[int, tuple[float, float]]:
        """Return the ranges of the torso's height and angle, and of the other positions and velocities."""
        limit = self.config.healthy_state_limit
        state = dict.fromkeys(range(2, self.model.nq + self.model.nv), (-limit, limit))
        low, high = self.config.healthy_angle_range
        return state | super().healthy_ranges() | {2: (max(low, -limit), min(high, limit))}


class Hopper(PlanarWalker):
    """Hop on one leg in a plane."""

    config = configs.HOPPER
    file = "hopper.xml"
    capacities = (8, 16)
    observations: ClassVar = {"policy": 11}
    num_actions = 3


class Walker2d(PlanarWalker):
    """Walk on two legs in a plane."""

    config = configs.WALKER2D
    file = "walker2d_v5.xml"
    capacities = (16, 48)
    observations: ClassVar = {"policy": 17}
    num_actions = 6


class TouchingWalker(Walker[configs.TouchConfig]):
    """Base class of `Ant` and `Humanoid`: the torso is free, and forces on bodies are penalised."""

    reward_terms = ("reward_forward", "reward_ctrl", "reward_survive", "reward_contact")
    torso_height = 2

    def compute_rewards(self) -> None:
        """Reward velocity and health, and penalise effort and forces."""
        super().compute_rewards()
        config = self.config
        most = max_term(config.contact_cost_limit, config.reward_contact_weight)
        self.penalise_squares("reward_contact", self.rows("cfrc_ext"), config.contact_force_limit, most)


class Ant(TouchingWalker):
    """Walk on four legs."""

    config = configs.ANT
    file = "ant.xml"
    capacities = (16, 64)
    observations: ClassVar = {"policy": 105}
    num_actions = 8
    vel_noise_is_normal = True
    runs_with = ("xpos", 3)  # x of the torso, the first body after the world.

    def observation_parts(self) -> Sequence[Part]:
        """Return positions but x and y, velocities, and the forces on bodies but the world."""
        forces = Part("cfrc_ext", first=6, limit=self.config.contact_force_limit, how=kernels.SINCE_A_STEP)
        return (Part("qpos", first=2), Part("qvel"), forces)


HUMANOID_LAYOUT = (
    Part("qpos", first=2),
    Part("qvel"),
    Part("cinert", first=10),
    Part("cvel", first=6),
    Part("qfrc_actuator", first=6),
    Part("cfrc_ext", first=6, how=kernels.SINCE_A_STEP),
)
"""Positions but x and y, velocities, inertias and velocities of bodies but the world, actuator forces, and the forces
on bodies but the world."""


class Humanoid(TouchingWalker):
    """Walk on two legs."""

    config = configs.HUMANOID
    file = "humanoid.xml"
    capacities = (32, 64)
    observations: ClassVar = {"policy": 348}
    num_actions = 17
    runs_with = ("subtree_com", 0)  # x of the centre of all masses, which hang from the world.
    layout = HUMANOID_LAYOUT


class HumanoidStandup(GymnasiumTask[configs.StandupConfig]):
    """Stand up from lying on the back."""

    config = configs.StandupConfig()
    file = "humanoidstandup.xml"
    capacities = (40, 64)
    observations: ClassVar = {"policy": 348}
    num_actions = 17
    reward_terms = ("reward_linup", "reward_quadctrl", "reward_impact", "reward_survive")
    layout = HUMANOID_LAYOUT

    def allocate(self) -> None:
        """Add the height of the ground, from which Gymnasium rewards a way upwards as if it were that of one step."""
        super().allocate()
        self.ground = wp.zeros(self.num_envs, dtype=wp.float32, device=self.device)

    def compute_rewards(self) -> None:
        """Reward height, and penalise effort and forces."""
        config = self.config
        self.launch(
            kernels.reward_velocity,
            inputs=[self.qpos, 2, self.ground, float(self.model.opt.timestep), self.column("reward_linup")],
            outputs=[self.terms],
        )
        self.penalise_squares("reward_quadctrl", self.ctrl)
        most = max_term(config.impact_cost_limit, config.reward_impact_weight)
        self.penalise_squares("reward_impact", self.rows("cfrc_ext"), most=most)
        self.reward_health("reward_survive")  # Always, since no range is given.


def max_term(limit: float, weight: float) -> float:
    """Return the largest value of a term that costs at most `limit`."""
    return limit / weight if weight else math.inf
