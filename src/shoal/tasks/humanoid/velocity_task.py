"""`G1-Velocity-Flat` and `G1-Velocity-Rough`."""

from shoal.mdp.config import RobotConfig
from shoal.mdp.robot_task import RobotTask
from shoal.mdp.terrain_config import TerrainConfig
from shoal.mdp.terrain_task import TerrainTask
from shoal.tasks.humanoid.velocity import G1_FLAT, G1_ROUGH


class FlatVelocity(RobotTask[RobotConfig]):
    """Walk with a G1 on flat ground."""

    config = G1_FLAT
    capacities = (96, 272)


class RoughVelocity(TerrainTask[TerrainConfig]):
    """Walk with a G1 on rough ground."""

    config = G1_ROUGH
    capacities = (144, 320)
