"""`Cartpole-Swingup-Mujoco`: `Cartpole-Swingup` with MuJoCo's dynamics, made of terms."""

import mujoco

from shoal.mdp.task import TermsTask
from shoal.tasks.cartpole import model
from shoal.tasks.cartpole.config import SWINGUP_MUJOCO, SwingupMujocoConfig


class SwingupMujoco(TermsTask[SwingupMujocoConfig]):
    """Swing the pole up and keep it upright."""

    config = SWINGUP_MUJOCO
    capacities = (1, 1)  # There is nothing to collide.

    @classmethod
    def build_model(cls, config: SwingupMujocoConfig) -> mujoco.MjModel:
        """Return the cart-pole without shapes: there is nothing to collide."""
        return model.spec_of(config).compile()

    def scene(self) -> mujoco.MjModel:
        """Return the cart-pole with shapes."""
        return model.scene(self.config)
