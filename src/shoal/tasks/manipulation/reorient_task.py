"""`Hand-Reorient-Cube`: the model, the goals reached, and the goal as a ghost of the cube."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco

from shoal.mdp.task import TermsTask
from shoal.sim.engines.model_files import find_robot
from shoal.tasks.manipulation.reorient import REORIENT_CUBE, ReorientConfig

SCENE, CUBE = (Path(__file__).with_name(name) for name in ("hand.xml", "cube.xml"))
_INCLUDED = ("shared.xml", "shared_asset.xml", "robot.xml")


def check_hand(config: ReorientConfig, usual: ReorientConfig) -> None:
    """Look for the hand's files before a launch.

    Raises:
        UsageError: There are none.
    """
    del usual
    find_robot(config.robot)


def cube() -> mujoco.MjSpec:
    """Return the cube."""
    return mujoco.MjSpec.from_file(str(CUBE))


class ReorientCube(TermsTask[ReorientConfig]):
    """Turn a cube in the hand until it has the goal's orientation, again and again."""

    config = REORIENT_CUBE
    capacities = (32, 192)

    @classmethod
    def build_spec(cls, config: ReorientConfig) -> mujoco.MjSpec:
        """Return the hand, whose files are beside that of `config.robot`.

        Raises:
            UsageError: There are no such files.
        """
        hand = find_robot(config.robot).parent
        included = {name: (hand / name).read_bytes() for name in _INCLUDED}
        spec = mujoco.MjSpec.from_file(str(SCENE), include=included)
        folder = hand / "../stls/hand"
        for mesh in spec.meshes:  # A run's copy has all files side by side.
            mesh.file = str(((folder if folder.is_dir() else hand) / Path(mesh.file).name).resolve())
        # Nothing reads the sensors, and the sky is green.
        skies = [each for each in spec.textures if each.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX]
        for each in (*spec.sensors, *skies):
            spec.delete(each)
        return spec

    def own_state(self) -> Mapping[str, Any]:
        """Return the goals reached in the episode, the angle to the goal before a step, and when one is reached."""
        arrays = {name: self.array(name) for name in ("successes", "last_error")}
        return arrays | {"success_tolerance": self.config.success_tolerance}
