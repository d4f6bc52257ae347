"""The eleven tasks: what each of them observes, what it is rewarded for, and when it fails."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, TypeVar

import warp as wp

from shoal.tasks.gymnasium_v5 import config as configs
from shoal.tasks.gymnasium_v5 import kernels
from shoal.tasks.gymnasium_v5.base import GymnasiumTask, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

RunConfigT = TypeVar("RunConfigT", bound=configs.RunConfig)
WalkConfigT = TypeVar("WalkConfigT", bound=configs.WalkConfig)
ReachConfigT = TypeVar("ReachConfigT", bound=configs.ReachConfig)

FASTEST_SHOWN = 10.0
"""What some tasks clip the speeds to that they observe [m/s, rad/s]."""


# Pendulums on a cart --------------------------------------------------------------------------------------------------


class InvertedPendulum(GymnasiumTask[configs.PendulumConfig]):
    """Keep a pole upright on a cart."""

    config = configs.PendulumConfig()
    file = "inverted_pendulum.xml"
    observations: ClassVar = {"policy": 4}
    num_actions = 1
    reward_terms = ("reward_survive",)

    def healthy_ranges(self) -> dict[int, tuple[float, float]]:
        """Return how far the pole may lean."""
        return {1: (-self.config.healthy_angle, self.config.healthy_angle)}

    def compute_rewards(self) -> None:
        """Reward a pole that is up."""
        self.reward_health("reward_survive")


class InvertedDoublePendulum(GymnasiumTask[configs.DoublePendulumConfig]):
    """Keep a pole upright on a pole on a cart."""

    config = configs.DoublePendulumConfig()
    file = "inverted_double_pendulum.xml"
    observations: ClassVar = {"policy": 9}
    num_actions = 1
    reward_terms = ("reward_survive", "distance_penalty", "velocity_penalty")
    speed_noise_is_normal = True

    def layout(self) -> Sequence[Part]:
        """Return the cart's position, the poles' angles, the speeds, and the force that holds the cart on its rail."""
        return (
            Part("qpos", count=1),
            Part("qpos", first=1, how=kernels.SINE),
            Part("qpos", first=1, how=kernels.COSINE),
            Part("qvel", limit=FASTEST_SHOWN),
            Part("qfrc_constraint", count=1, limit=10.0),
        )

    def allocate(self) -> None:
        """Ask for where the tip is."""
        super().allocate()
        self.site_xpos = self.data("site_xpos")

    def compute_rewards(self) -> None:
        """Reward poles that are up and still."""
        self.launch(
            kernels.reward_balance,
            inputs=[self.site_xpos, self.qvel, self.config.healthy_height],
            outputs=[self.terms, self.terminated],
        )


# Arms -----------------------------------------------------------------------------------------------------------------


class Arm(GymnasiumTask[ReachConfigT]):
    """What `Reacher` and `Pusher` share: noise on the arm alone, and a place for what it is about."""

    target: ClassVar[tuple[tuple[float, float], tuple[float, float], tuple[float, float]]]
    """Ranges of x and y, and of the distance from the origin, in which the arm's object begins [m]."""
    arm_joints: ClassVar[int]
    """Joints of the arm; the object's x and y are the positions that follow."""

    def allocate(self) -> None:
        """Spare what is no part of the arm from noise, and ask for where bodies are."""
        super().allocate()
        self.noisy_joints = wp.vec2i(self.arm_joints, self.arm_joints)
        self.xpos = self.data("xpos")

    def reset_state(self) -> None:
        """Begin new episodes where done."""
        super().reset_state()
        self.launch(
            kernels.place_target,
            inputs=[self.done, *(wp.vec2(ends) for ends in self.target), self.arm_joints],
            outputs=[self.rng, self.qpos],
        )


class Reacher(Arm[configs.ReachConfig]):
    """Touch a target with the tip of an arm of two links."""

    config = configs.ReachConfig()
    file = "reacher.xml"
    observations: ClassVar = {"policy": 10}
    num_actions = 2
    reward_terms = ("reward_dist", "reward_ctrl")
    target = ((-0.2, 0.2), (-0.2, 0.2), (-1.0, 0.2))
    arm_joints = 2

    def layout(self) -> Sequence[Part]:
        """Return the joints' angles, the target's position and the joints' speeds; `observe` adds a distance."""
        return (
            Part("qpos", count=2, how=kernels.COSINE),
            Part("qpos", count=2, how=kernels.SINE),
            Part("qpos", first=2),
            Part("qvel", count=2),
        )

    def observe(self) -> None:
        """Write the observations."""
        super().observe()
        ends = [3 * self.model.body(name).id for name in ("fingertip", "target")]
        self.launch(
            kernels.show_difference,
            inputs=[self.rows("xpos"), *ends, 8],
            outputs=[self.obs["policy"]],
            dim=(self.num_envs, 2),
        )

    def compute_rewards(self) -> None:
        """Charge for distance and effort."""
        self.charge_distance("reward_dist", "fingertip", "target")
        self.charge_squares("reward_ctrl", self.ctrl)


class Pusher(Arm[configs.PushConfig]):
    """Push a cylinder to a goal with an arm of seven joints."""

    config = configs.PushConfig()
    file = "pusher_v5.xml"
    observations: ClassVar = {"policy": 23}
    num_actions = 7
    reward_terms = ("reward_dist", "reward_ctrl", "reward_near")
    target = ((-0.3, 0.0), (-0.2, 0.2), (0.17, math.inf))
    arm_joints = 7

    def layout(self) -> Sequence[Part]:
        """Return the arm's joints and speeds, and the positions of its tip, of the object and of the goal."""
        places = (Part("xpos", first=3 * self.model.body(name).id, count=3) for name in ("tips_arm", "object", "goal"))
        return (Part("qpos", count=7), Part("qvel", count=7), *places)

    def compute_rewards(self) -> None:
        """Charge for distances and effort."""
        self.charge_distance("reward_dist", "object", "goal")
        self.charge_squares("reward_ctrl", self.ctrl)
        self.charge_distance("reward_near", "object", "tips_arm")


# Runners --------------------------------------------------------------------------------------------------------------


class Runner(GymnasiumTask[RunConfigT]):
    """Move along x at little effort."""

    runs_with: ClassVar[tuple[str, int]] = ("qpos", 0)
    """Field and column of the x whose speed is rewarded."""

    def allocate(self) -> None:
        """Make room for where it was before a step."""
        super().allocate()
        field, self.x_column = self.runs_with
        self.x_rows = self.rows(field)
        self.x_before = self.array("x_before")
        """Where it was before the step [m]. Shape (num_envs,)."""

    def apply_actions(self) -> None:
        """Clip the actions, and remember where it is."""
        super().apply_actions()
        self.launch(kernels.remember, inputs=[self.x_rows, self.x_column], outputs=[self.x_before])

    def compute_rewards(self) -> None:
        """Reward the mean speed over the step, and charge for effort."""
        self.launch(
            kernels.reward_speed,
            inputs=[self.x_rows, self.x_column, self.x_before, self.step_dt, self.column("reward_forward")],
            outputs=[self.terms],
        )
        self.charge_squares("reward_ctrl", self.ctrl)


class HalfCheetah(Runner[configs.RunConfig]):
    """Run with two legs in a plane."""

    config = configs.HALF_CHEETAH
    file = "half_cheetah.xml"
    observations: ClassVar = {"policy": 17}
    num_actions = 6
    reward_terms = ("reward_forward", "reward_ctrl")
    speed_noise_is_normal = True

    def layout(self) -> Sequence[Part]:
        """Return positions but x, and speeds."""
        return (Part("qpos", first=1), Part("qvel"))


class Swimmer(Runner[configs.RunConfig]):
    """Swim with three links in a plane."""

    config = configs.SWIMMER
    file = "swimmer.xml"
    observations: ClassVar = {"policy": 8}
    num_actions = 2
    reward_terms = ("reward_forward", "reward_ctrl")

    def layout(self) -> Sequence[Part]:
        """Return positions but x and y, and speeds."""
        return (Part("qpos", first=2), Part("qvel"))


class Walker(Runner[WalkConfigT]):
    """Move along x at little effort without falling."""

    torso_height: ClassVar[int]
    """Which position is the torso's height."""

    def healthy_ranges(self) -> dict[int, tuple[float, float]]:
        """Return how high the torso must be."""
        return {self.torso_height: self.config.healthy_z_range}

    def compute_rewards(self) -> None:
        """Reward speed and health, and charge for effort."""
        super().compute_rewards()
        self.reward_health("reward_survive")


class PlanarWalker(Walker[configs.PlanarConfig]):
    """What `Hopper` and `Walker2d` share: positions begin with x, height and angle of the torso."""

    reward_terms = ("reward_forward", "reward_ctrl", "reward_survive")
    torso_height = 1

    def layout(self) -> Sequence[Part]:
        """Return positions but x, and speeds."""
        return (Part("qpos", first=1), Part("qvel", limit=FASTEST_SHOWN))

    def healthy_ranges(self) -> dict[int, tuple[float, float]]:
        """Return where the torso must be, and how large a state may be."""
        limit = self.config.healthy_state_limit
        state = dict.fromkeys(range(2, self.model.nq + self.model.nv), (-limit, limit))
        low, high = self.config.healthy_angle_range
        return state | super().healthy_ranges() | {2: (max(low, -limit), min(high, limit))}


class Hopper(PlanarWalker):
    """Hop on one leg in a plane."""

    config = configs.HOPPER
    file = "hopper.xml"
    observations: ClassVar = {"policy": 11}
    num_actions = 3


class Walker2d(PlanarWalker):
    """Walk on two legs in a plane."""

    config = configs.WALKER2D
    file = "walker2d_v5.xml"
    observations: ClassVar = {"policy": 17}
    num_actions = 6


class TouchingWalker(Walker[configs.TouchConfig]):
    """What `Ant` and `Humanoid` share: the torso is free, and forces on bodies cost."""

    reward_terms = ("reward_forward", "reward_ctrl", "reward_survive", "reward_contact")
    torso_height = 2

    def allocate(self) -> None:
        """Ask for the forces."""
        super().allocate()
        self.forces = self.rows("cfrc_ext")

    def compute_rewards(self) -> None:
        """Reward speed and health, and charge for effort and forces."""
        super().compute_rewards()
        config = self.config
        most = most_of(config.contact_cost_limit, config.reward_contact_weight)
        self.charge_squares("reward_contact", self.forces, config.contact_force_limit, most)


class Ant(TouchingWalker):
    """Walk on four legs."""

    config = configs.ANT
    file = "ant.xml"
    observations: ClassVar = {"policy": 105}
    num_actions = 8
    speed_noise_is_normal = True
    runs_with = ("xpos", 3)  # x of the torso, the first body after the world.

    def layout(self) -> Sequence[Part]:
        """Return positions but x and y, speeds, and the forces on bodies but the world."""
        limit = self.config.contact_force_limit
        return (
            Part("qpos", first=2),
            Part("qvel"),
            Part("cfrc_ext", first=6, limit=limit, how=kernels.SINCE_A_STEP),
        )


HUMANOID_PARTS = (
    Part("qpos", first=2),
    Part("qvel"),
    Part("cinert", first=10),
    Part("cvel", first=6),
    Part("qfrc_actuator", first=6),
    Part("cfrc_ext", first=6, how=kernels.SINCE_A_STEP),
)
"""What both humanoids observe: positions but x and y, speeds, inertias and speeds of bodies but the world, forces of
the motors, and the forces on bodies but the world."""


class Humanoid(TouchingWalker):
    """Walk on two legs."""

    config = configs.HUMANOID
    file = "humanoid.xml"
    observations: ClassVar = {"policy": 348}
    num_actions = 17
    runs_with = ("subtree_com", 0)  # x of the centre of all masses, which hang from the world.

    def layout(self) -> Sequence[Part]:
        """Return what humanoids observe."""
        return HUMANOID_PARTS


class HumanoidStandup(GymnasiumTask[configs.StandupConfig]):
    """Stand up from lying on the back."""

    config = configs.StandupConfig()
    file = "humanoidstandup.xml"
    observations: ClassVar = {"policy": 348}
    num_actions = 17
    reward_terms = ("reward_linup", "reward_quadctrl", "reward_impact", "reward_survive")

    def layout(self) -> Sequence[Part]:
        """Return what humanoids observe."""
        return HUMANOID_PARTS

    def allocate(self) -> None:
        """Ask for the forces."""
        super().allocate()
        self.forces = self.rows("cfrc_ext")

    def compute_rewards(self) -> None:
        """Reward height, and charge for effort and forces."""
        config = self.config
        timestep = float(self.model.opt.timestep)
        self.launch(
            kernels.reward_height,
            inputs=[self.qpos, 2, timestep, self.column("reward_linup")],
            outputs=[self.terms],
        )
        self.charge_squares("reward_quadctrl", self.ctrl)
        most = most_of(config.impact_cost_limit, config.reward_impact_weight)
        self.charge_squares("reward_impact", self.forces, most=most)
        self.reward_health("reward_survive")  # Always, since no range is given.


def most_of(limit: float, weight: float) -> float:
    """Return how large a term may become that costs `limit` at most with `weight`."""
    return limit / weight if weight else math.inf
