"""A task with a robot on rough terrain, whose levels follow the walked distance."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import mujoco
import numpy as np
import warp as wp

from shoal.mdp.ground import Ground
from shoal.mdp.levels import SubTerrains, follow_distances
from shoal.mdp.robot_task import RobotTask
from shoal.mdp.scans import scanned_points
from shoal.mdp.terrain import BORDER, Terrain, make_terrain, robot_on_terrain
from shoal.mdp.terrain_config import TerrainConfig
from shoal.sim.render.marks import Mark
from shoal.sim.render.surroundings import extent

_GOLDEN_RATIO = (1 + 5**0.5) / 2

ConfigT = TypeVar("ConfigT", bound=TerrainConfig)


class TerrainTask(RobotTask[ConfigT], Generic[ConfigT]):
    """A robot on rough terrain, whose levels follow the walked distance, see `shoal.mdp.levels`."""

    followed: ClassVar[Mapping[str, Any]] = {"walked_distance": follow_distances}

    @classmethod
    def build_spec(cls, config: ConfigT) -> mujoco.MjSpec:
        """Return the robot on its terrain."""
        return robot_on_terrain(config)

    @classmethod
    def build_model(cls, config: ConfigT) -> mujoco.MjModel:
        """Return the scene, whose cameras look at the robot."""
        model = super().build_model(config)
        model.stat.center = np.mean(extent(model, model.qpos0), axis=0)
        return model

    def build_ground(self) -> Ground:
        """Return the height field."""
        ground = Ground()
        ground.heights = wp.array(self.terrain.heights, dtype=wp.float32, device=self.device)
        ground.corner = wp.vec2(*self.terrain.corner)
        ground.cell = self.terrain.cell
        return ground

    def scan(self, row: Mapping[str, np.ndarray]) -> list[Mark]:
        """Return the points of the height scans."""
        return scanned_points(self, row)

    @cached_property
    def terrain(self) -> Terrain:
        """The terrain, the same on all workers."""
        return make_terrain(self.config)

    def own_state(self) -> dict[str, Any]:
        """Return the levels and sub-terrains of the terrain."""
        config = self.config
        self.is_promoting = config.curriculum and config.only_level is None
        self.best_metric = "terrain_level" if self.is_promoting and "terrain_level" in self.metrics else None
        self.levels = self.array("levels", dtype=wp.int32)
        """Terrain level of each environment, counted from 0."""
        self.sub_terrains = SubTerrains()
        self.sub_terrains.patches = wp.array(self.terrain.patches, dtype=wp.vec2, device=self.device)
        self.sub_terrains.centers = wp.array(self.terrain.centers, dtype=wp.vec2, device=self.device)
        self.sub_terrains.size = self.terrain.cell * round(config.sub_terrain_size / self.terrain.cell)
        self.sub_terrains.edge = wp.vec2(*(-side - BORDER / 2 for side in self.terrain.corner))
        self.sub_terrains.lowest = config.only_level or 0
        self.sub_terrains.highest = config.terrain_levels - 1 if config.only_level is None else config.only_level
        self.sub_terrains.first_levels = min(
            config.first_levels, self.sub_terrains.highest - self.sub_terrains.lowest + 1
        )
        self.sub_terrains.is_promoting = int(config.curriculum)
        return {
            "levels": self.levels,
            "sub_terrains": self.sub_terrains,
            "commanded_distance": self.array("commanded_distance"),
            "walked_distance": self.array("walked_distance"),
        }

    def curriculum(self) -> dict[str, np.ndarray]:
        """Return the number of environments on each level. Shape of `levels`: (terrain_levels,)."""
        if not self.is_promoting:
            return super().curriculum()
        levels = np.bincount(self.levels.numpy(), minlength=self.config.terrain_levels)
        return {**super().curriculum(), "levels": levels}

    def set_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Distribute the environments over the levels in the given proportions."""
        super().set_curriculum(counts)
        levels = counts.get("levels", ())
        if not self.config.curriculum or len(levels) != self.config.terrain_levels:
            return
        shares = np.cumsum(levels) / np.sum(levels)
        kinds = len(self.config.terrains)
        # Each terrain type gets its share of each level: environments take turns with the types. The golden ratio
        # spreads levels evenly over any stretch of environments: the first may continue with levels of their own.
        turns = np.argsort(np.argsort(np.arange(-(-self.num_envs // kinds)) * _GOLDEN_RATIO % 1.0))
        turn, kind = np.divmod(np.arange(self.num_envs), kinds)
        quantiles = (turns[(turn + kind * len(turns) // kinds) % len(turns)] + 0.5) / len(turns)
        self.levels.assign(np.searchsorted(shares, quantiles).clip(self.sub_terrains.lowest, self.sub_terrains.highest))
