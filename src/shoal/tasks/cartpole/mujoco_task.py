"""`Cartpole-Swingup` with MuJoCo's dynamics, made of terms, and from depth images."""

import mujoco

from shoal.mdp.task import TermsTask
from shoal.tasks.cartpole import model
from shoal.tasks.cartpole.config import SWINGUP_DEPTH, SWINGUP_MUJOCO, SwingupMujocoConfig


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


class SwingupDepth(TermsTask[SwingupMujocoConfig]):
    """The same by depth images."""

    config = SWINGUP_DEPTH
    capacities = (1, 1)

    @classmethod
    def build_spec(cls, config: SwingupMujocoConfig) -> mujoco.MjSpec:
        """Return the cart-pole with shapes, of which the pole is as wide as a pixel, so that none misses it."""
        return model.shapes_of(config, pole_radius=0.06)
