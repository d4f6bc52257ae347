"""`Arm-Lift-Cube`: the model."""

from pathlib import Path

import mujoco

from shoal.mdp.task import TermsTask
from shoal.tasks.manipulation.config import LIFT_CUBE, LiftConfig

MODEL = Path(__file__).with_name("arm.xml")


class LiftCube(TermsTask[LiftConfig]):
    """Grasp a cube, and bring it to where it is commanded."""

    config = LIFT_CUBE
    capacities = (48, 176)

    @classmethod
    def build_model(cls, config: LiftConfig) -> mujoco.MjModel:
        """Return the arm, and the cube on the ground before it."""
        del config
        return mujoco.MjModel.from_xml_path(str(MODEL))
