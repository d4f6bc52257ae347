"""Rough terrain: tiles of several kinds and levels, from easy to hard, as one height field.

Tiles of a level lie side by side along y, one for each entry of `TerrainConfig.terrains`; levels follow each other
along x. A robot begins in the middle of a tile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType

import mujoco
import numpy as np

from shoal.mdp.functions import named_function
from shoal.mdp.robots import add_floor, build_spec
from shoal.mdp.terms import Function
from shoal.mdp.terrain_config import TerrainConfig
from shoal.mdp.tiles import CELL, POINTS

BORDER = 4.0
"""Width of the flat ground around all tiles [m]."""
_DEPTH = 1.0
"""Thickness of the height field below its lowest point [m]: nothing must fall through."""
_EXTENT = 2.0
"""Extent of the model for MuJoCo's cameras [m]: with that of the whole terrain, they would clip what is near."""


@dataclass(frozen=True, slots=True)
class Terrain:
    """Tiles of rough ground around the origin."""

    heights: np.ndarray
    """Height of each point [m], float32: rows along y, columns along x. Shape (num_rows, num_columns)."""
    centers: np.ndarray
    """The middle of each tile: x and y [m]. Shape (num_levels, num_terrains, 2)."""

    @property
    def corner(self) -> tuple[float, float]:
        """Position of the first point: x and y [m]."""
        rows, columns = self.heights.shape
        return -CELL * (columns - 1) / 2, -CELL * (rows - 1) / 2


def make_terrain(config: TerrainConfig) -> Terrain:
    """Return the terrain of a configuration; the same for the same `terrain_seed`.

    Raises:
        ShoalError: A tile names no function.
    """
    levels, names = config.terrain_levels, config.terrains
    kinds = {name: (_function(term.func, name), term) for name, term in config.terms("tiles").items()}
    points, edge = POINTS - 1, round(BORDER / CELL)
    heights = np.zeros((len(names) * points + 2 * edge + 1, levels * points + 2 * edge + 1))
    centers = np.zeros((levels, len(names), 2))
    rng = np.random.default_rng(config.terrain_seed)
    for level in range(levels):
        difficulty = level / max(levels - 1, 1)
        for column, name in enumerate(names):
            function, term = kinds[name]
            row, start = edge + column * points, edge + level * points
            tile = heights[row : row + POINTS, start : start + POINTS]
            tile[...] = function(difficulty, rng, **{each: getattr(term, each) for each in term.parameters})
            # Neighbours meet at their edges, at height 0.
            tile[[0, -1], :] = 0.0
            tile[:, [0, -1]] = 0.0
            centers[level, column] = start + points / 2, row + points / 2
    terrain = Terrain(heights.astype(np.float32), CELL * centers)
    terrain.centers[...] += terrain.corner
    return terrain


def _function(func: Function, name: str) -> Callable[..., np.ndarray]:
    """Return the function of a tile."""
    return named_function(func, "tiles", f"tiles.{name}", FunctionType) if isinstance(func, str) else func


def robot_on_terrain(config: TerrainConfig) -> mujoco.MjSpec:
    """Return a robot on rough terrain, in place of any ground of its own.

    Raises:
        UsageError: There is no such robot.
    """
    spec = build_spec(config)
    for geom in spec.worldbody.geoms:
        if geom.type == mujoco.mjtGeom.mjGEOM_PLANE:
            spec.delete(geom)
    terrain = make_terrain(config)
    rows, columns = terrain.heights.shape
    lowest, highest = float(terrain.heights.min()), float(terrain.heights.max())
    spec.add_hfield(
        name="terrain",
        size=(CELL * (columns - 1) / 2, CELL * (rows - 1) / 2, max(highest - lowest, CELL), _DEPTH),
        nrow=rows,
        ncol=columns,
        userdata=terrain.heights.ravel(),
    )
    add_floor(spec, type=mujoco.mjtGeom.mjGEOM_HFIELD, hfieldname="terrain", pos=(0.0, 0.0, lowest))
    spec.stat.extent = _EXTENT
    return spec
