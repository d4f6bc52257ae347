"""`Cartpole-Swingup-Mujoco`: `Cartpole-Swingup` with MuJoCo's dynamics. All else is the same kernels."""

import mujoco

from shoal.sim.mujoco_task import MujocoTask
from shoal.tasks.cartpole import kernels, model
from shoal.tasks.cartpole.config import CartpoleConfig, SwingupMujocoConfig
from shoal.tasks.cartpole.task import CartpoleState


class SwingupMujoco(CartpoleState[SwingupMujocoConfig], MujocoTask[SwingupMujocoConfig]):
    """Swing the pole up and keep it upright."""

    config = SwingupMujocoConfig()
    capacities = (1, 1)  # There is nothing to collide.
    reward_terms = ("swung_up",)

    @classmethod
    def build_model(cls, config: CartpoleConfig) -> mujoco.MjModel:
        """Return the cart-pole without shapes: there is nothing to collide."""
        return model.spec_of(config).compile()

    def allocate(self) -> None:
        """Make the constants of the kernels."""
        super().allocate()
        self.plant.decimation = 0  # The steps are MuJoCo's.

    def apply_actions(self) -> None:
        """Push the cart."""
        self.launch(kernels.apply_cartpole_actions, inputs=[self.actions, self.config.force_limit], outputs=[self.ctrl])

    def compute_rewards(self) -> None:
        """Compute rewards and terminations."""
        self.simulate_swingup()
