"""`Cartpole-Balance` and `Cartpole-Swingup`, whose dynamics are kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import warp as wp

from shoal.sim.kernel_task import KernelTask
from shoal.tasks.cartpole import kernels
from shoal.tasks.cartpole.config import BalanceConfig, CartpoleConfig, SwingupConfig

if TYPE_CHECKING:
    import mujoco

ConfigT = TypeVar("ConfigT", bound=CartpoleConfig)


class Cartpole(KernelTask[ConfigT]):
    """First states, observations and rewards of the cart-pole."""

    observations: ClassVar = {"policy": 5}
    num_actions = 1
    start_angle: ClassVar[float] = math.pi
    """Angle of the pole when an episode begins [rad]."""

    @property
    def step_dt(self) -> float:
        """Simulated time between two actions [s]."""
        return self.config.physics_dt * self.config.decimation

    def allocate(self) -> None:
        """Make the state array and the constants of the kernels."""
        config = self.config
        self.plant = kernels.plant_of(config)
        ranges = (config.reset_position_range, config.reset_angle_range)
        self.reset_ranges = wp.vec4(*ranges, config.reset_cart_speed_range, config.reset_pole_speed_range)
        scales = (config.rail_half_length, config.cart_speed_scale, config.pole_speed_scale)
        self.scales = wp.vec3(*(1.0 / scale for scale in scales))
        self.state: Any = self.array("state", 4)
        """Rows of x [m], theta [rad], x' [m/s] and theta' [rad/s]. Shape (num_envs, 4)."""
        self.qpos, self.qvel = self.state[:, :2], self.state[:, 2:]

    def scene(self) -> mujoco.MjModel:
        """Return the cart-pole with shapes."""
        from shoal.tasks.cartpole import model  # Training needs no MuJoCo.

        return model.scene(self.config)

    def positions(self) -> wp.array:
        """Return x [m] and theta [rad]. Shape (num_envs, 2)."""
        return self.qpos

    def reset(self) -> None:
        """Begin new episodes where done."""
        inputs = [self.done, self.start_angle, self.reset_ranges]
        self.launch(kernels.reset_cartpole, inputs, [self.rng, self.qpos, self.qvel])

    def observe(self) -> None:
        """Write the observations."""
        self.launch(kernels.observe_cartpole, inputs=[self.qpos, self.qvel, self.scales], outputs=[self.obs["policy"]])


class Balance(Cartpole[BalanceConfig]):
    """Keep the pole upright."""

    config = BalanceConfig()
    reward_terms = ("upright", "off_centre", "effort")
    start_angle = 0.0

    def simulate(self) -> None:
        """Push the cart, and compute rewards and terminations."""
        self.launch(
            kernels.simulate_balance,
            inputs=[self.actions, self.plant, self.config.rail_half_length, self.config.fallen_angle],
            outputs=[self.qpos, self.qvel, self.terms, self.terminated],
        )


class Swingup(Cartpole[SwingupConfig]):
    """Swing the pole up and keep it upright."""

    config = SwingupConfig()
    reward_terms = ("swung_up",)

    def simulate(self) -> None:
        """Push the cart, and compute rewards and terminations."""
        margins = (self.config.centred_margin, self.config.slow_margin)
        self.launch(
            kernels.simulate_swingup,
            inputs=[self.actions, self.plant, self.config.rail_half_length, *margins],
            outputs=[self.qpos, self.qvel, self.terms, self.terminated],
        )
