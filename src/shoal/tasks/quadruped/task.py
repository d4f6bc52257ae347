"""`Quadruped-Velocity-Flat` and `Quadruped-Velocity-Rough`."""

from shoal.mdp.config import RobotConfig
from shoal.mdp.robot_task import RobotTask
from shoal.mdp.terrain_config import TerrainConfig
from shoal.mdp.terrain_task import TerrainTask
from shoal.tasks.quadruped.config import FLAT, ROUGH


class FlatVelocity(RobotTask[RobotConfig]):
    """Track a commanded velocity on flat ground."""

    config = FLAT
    capacities = (24, 80)


class RoughVelocity(TerrainTask[TerrainConfig]):
    """Track a commanded velocity on rough terrain, whose levels follow the walked distance."""

    config = ROUGH
    capacities = (32, 128)
