"""`Cartpole-Swingup-Mujoco`: the task of `Cartpole-Swingup`, with MuJoCo in the place of the kernels' own dynamics.

Start, reward, end and observation are the same kernels, on the same rows of `state`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import mujoco
import warp as wp

from shoal.sim.mujoco_task import MujocoTask
from shoal.tasks.cartpole import kernels, twin
from shoal.tasks.cartpole.config import SwingupMujocoConfig

if TYPE_CHECKING:
    from shoal.tasks.cartpole.config import CartpoleConfig


class SwingupMujoco(MujocoTask[SwingupMujocoConfig]):
    """Swing the pole up and keep it upright."""

    config = SwingupMujocoConfig()
    observations: ClassVar = {"policy": 5}
    num_actions = 1
    reward_terms = ("swung_up",)

    @classmethod
    def build_model(cls, config: CartpoleConfig) -> mujoco.MjModel:
        """Return the cart-pole without shapes: there is nothing to collide."""
        return mujoco.MjModel.from_xml_string(twin.model_xml(config))

    def scene(self) -> mujoco.MjModel:
        """Return the cart-pole with shapes."""
        return twin.scene(self.config)

    def allocate(self) -> None:
        """Make the array of states, and combine the configuration's numbers as the kernels take them."""
        config = self.config
        self.state = self.array("state", 4)
        """Rows of x [m], theta [rad], x' [m/s] and theta' [rad/s]. Shape (num_envs, 4)."""
        self.reset_ranges = wp.vec4(
            config.reset_position_range,
            config.reset_angle_range,
            config.reset_cart_speed_range,
            config.reset_pole_speed_range,
        )
        self.scales = wp.vec3(
            1.0 / config.rail_half_length, 1.0 / config.cart_speed_scale, 1.0 / config.pole_speed_scale
        )

    def apply_actions(self) -> None:
        """Push the cart."""
        self.launch(kernels.actuate_cartpole, inputs=[self.actions, self.config.force_limit], outputs=[self.ctrl])

    def compute_rewards(self) -> None:
        """Judge where that led."""
        config = self.config
        self.launch(kernels.gather_cartpole, inputs=[self.qpos, self.qvel], outputs=[self.state])
        self.launch(
            kernels.judge_swingup,
            inputs=[self.actions, self.state, config.rail_half_length, config.centred_margin, config.slow_margin],
            outputs=[self.terms, self.terminated],
        )

    def reset_state(self) -> None:
        """Begin new episodes where done."""
        self.launch(
            kernels.reset_cartpole,
            inputs=[self.done, math.pi, self.reset_ranges],
            outputs=[self.rng, self.state],
        )
        self.launch(kernels.scatter_cartpole, inputs=[self.done, self.state], outputs=[self.qpos, self.qvel])

    def observe(self) -> None:
        """Write the observations."""
        self.launch(kernels.observe_cartpole, inputs=[self.state, self.scales], outputs=[self.obs["policy"]])
