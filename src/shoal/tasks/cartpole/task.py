"""`Cartpole-Balance` and `Cartpole-Swingup` as kernel tasks: which kernels run, on what, with which numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, TypeVar

import warp as wp

from shoal.sim.kernel_task import KernelTask
from shoal.tasks.cartpole import kernels
from shoal.tasks.cartpole.config import BalanceConfig, CartpoleConfig, SwingupConfig

if TYPE_CHECKING:
    import mujoco

CartpoleConfigT = TypeVar("CartpoleConfigT", bound=CartpoleConfig)


class Cartpole(KernelTask[CartpoleConfigT]):
    """What both tasks share: the plant, the reset and the observations."""

    observations: ClassVar = {"policy": 5}
    num_actions = 1
    start_angle: ClassVar[float]
    """Where the pole is when an episode begins [rad]."""

    @property
    def step_dt(self) -> float:
        """Simulated time between two actions [s]."""
        return self.config.step_dt

    def allocate(self) -> None:
        """Make the state array, and combine the configuration's numbers as the kernels take them."""
        config = self.config
        self.state = self.array("state", 4)
        """Rows of x [m], theta [rad], x' [m/s] and theta' [rad/s]. Shape (num_envs, 4)."""
        self.plant = kernels.plant_of(config)
        self.reset_ranges = wp.vec4(
            config.reset_position_range,
            config.reset_angle_range,
            config.reset_cart_speed_range,
            config.reset_pole_speed_range,
        )
        self.scales = wp.vec3(
            1.0 / config.rail_half_length, 1.0 / config.cart_speed_scale, 1.0 / config.pole_speed_scale
        )

    def scene(self) -> mujoco.MjModel:
        """Return the cart-pole with shapes."""
        from shoal.tasks.cartpole import twin  # Only who looks at it needs MuJoCo.

        return twin.scene(self.config)

    def positions(self) -> wp.array:
        """Return x [m] and theta [rad]. Shape (num_envs, 2)."""
        return self.state[:, :2]  # pyright: ignore[reportReturnType]  No index array is used.

    def reset(self) -> None:
        """Begin new episodes where done."""
        self.launch(
            kernels.reset_cartpole,
            inputs=[self.done, self.start_angle, self.reset_ranges],
            outputs=[self.rng, self.state],
        )

    def observe(self) -> None:
        """Write the observations."""
        self.launch(kernels.observe_cartpole, inputs=[self.state, self.scales], outputs=[self.obs["policy"]])


class Balance(Cartpole[BalanceConfig]):
    """Keep the pole upright."""

    config = BalanceConfig()
    reward_terms = ("upright", "off_centre", "effort")
    start_angle = 0.0

    def simulate(self) -> None:
        """Push the cart and judge where that led."""
        self.launch(
            kernels.simulate_balance,
            inputs=[self.actions, self.plant, self.config.rail_half_length, self.config.fallen_angle],
            outputs=[self.state, self.terms, self.terminated],
        )


class Swingup(Cartpole[SwingupConfig]):
    """Swing the pole up and keep it upright."""

    config = SwingupConfig()
    reward_terms = ("swung_up",)
    start_angle = math.pi

    def simulate(self) -> None:
        """Push the cart and judge where that led."""
        config = self.config
        self.launch(
            kernels.simulate_swingup,
            inputs=[
                self.actions,
                self.plant,
                config.rail_half_length,
                config.centred_margin,
                config.slow_margin,
            ],
            outputs=[self.state, self.terms, self.terminated],
        )
