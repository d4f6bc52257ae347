"""`Arm-Lift-Cube` and `Arm-Lift-Cube-Depth`: the model."""

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
    def build_spec(cls, config: LiftConfig) -> mujoco.MjSpec:
        """Return the arm on the ground."""
        del config
        return mujoco.MjSpec.from_file(str(MODEL))
