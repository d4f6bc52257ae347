"""Rough terrain: tiles of several types and levels, from easy to hard, as one height field.

Tiles of a level lie side by side along y, one of each type; levels follow each other along x. A robot begins on the
small flat platform in the middle of a tile. Types and sizes are those of Isaac Lab's rough terrain for small
robots (`isaaclab.terrains.config.rough.ROUGH_TERRAINS_CFG` and its velocity task for the Go1), but for the stairs,
which are lower here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np

from shoal.mdp.robots import add_floor, build_spec, compile_spec
from shoal.tasks.quadruped.config import RoughConfig, TerrainName

CELL = 0.1
"""Distance between two points of the height field [m]."""
TILE = 8.0
"""Length of a tile's sides [m]."""
BORDER = 4.0
"""Width of the flat ground around all tiles [m]."""
_PLATFORM = 1.0
"""Length of the sides of the flat platform in the middle of a tile [m]."""
_DEPTH = 1.0
"""Thickness of the height field below its lowest point [m]: nothing must fall through."""

_EXTENT = 2.0
"""Extent of the model for MuJoCo's cameras [m]: with that of the whole terrain, they would clip what is near."""

_ROUGHNESS = (0.01, 0.06)
"""Rough: largest height of a point, from the easiest level to the hardest [m]."""
_SLOPE = (0.0, 0.4)
"""Hills and pits: rise of a slope."""
_STEP_HEIGHT = (0.02, 0.15)
"""Stairs: height of a step [m]."""
_STEP_WIDTH = 0.3
"""Stairs: depth of a step [m]."""
_BOX_HEIGHT = (0.025, 0.1)
"""Boxes: largest height above or below the middle's [m]."""
_BOX_WIDTH = 0.4
"""Boxes: length of their sides [m]."""


@dataclass(frozen=True, slots=True)
class Terrain:
    """Tiles of rough ground around the origin."""

    heights: np.ndarray
    """Height of each point [m], float32: rows along y, columns along x. Shape (num_rows, num_columns)."""
    centers: np.ndarray
    """The middle of each tile: x and y [m]. Shape (num_levels, num_kinds, 2)."""

    @property
    def corner(self) -> tuple[float, float]:
        """Position of the first point: x and y [m]."""
        rows, columns = self.heights.shape
        return -CELL * (columns - 1) / 2, -CELL * (rows - 1) / 2


def make_terrain(config: RoughConfig) -> Terrain:
    """Return the terrain of a configuration; the same for the same `terrain_seed`."""
    levels, kinds = config.terrain_levels, config.terrains
    points = round(TILE / CELL)
    edge = round(BORDER / CELL)
    heights = np.zeros((len(kinds) * points + 2 * edge + 1, levels * points + 2 * edge + 1))
    centers = np.zeros((levels, len(kinds), 2))
    rng = np.random.default_rng(config.terrain_seed)
    for level in range(levels):
        difficulty = level / max(levels - 1, 1)
        for column, kind in enumerate(kinds):
            row, start = edge + column * points, edge + level * points
            tile = heights[row : row + points + 1, start : start + points + 1]
            tile[...] = _KINDS[kind](difficulty, rng)
            # Neighbours meet at their edges, at height 0.
            tile[[0, -1], :] = 0.0
            tile[:, [0, -1]] = 0.0
            centers[level, column] = start + points / 2, row + points / 2
    terrain = Terrain(heights.astype(np.float32), CELL * centers)
    terrain.centers[...] += terrain.corner
    return terrain


def _between(ends: tuple[float, float], difficulty: float) -> float:
    return ends[0] + difficulty * (ends[1] - ends[0])


def _axis() -> np.ndarray:
    """Return the distance of each of a tile's points from its middle, along one axis [m]. Shape (points + 1,)."""
    points = round(TILE / CELL)
    return np.abs(np.arange(points + 1) - points / 2) * CELL


def _from_edge() -> np.ndarray:
    """Return each point's distance from the nearest edge of its tile, at most that of the platform [m]."""
    axis = _axis()
    away = np.maximum(axis[:, None], axis[None, :])
    return TILE / 2 - np.maximum(away, _PLATFORM / 2)


def _flattened(heights: np.ndarray) -> np.ndarray:
    """Flatten the platform in the middle of a tile."""
    inside = _axis() <= _PLATFORM / 2
    heights[np.ix_(inside, inside)] = 0.0
    return heights


def _rough(difficulty: float, rng: np.random.Generator) -> np.ndarray:
    size = len(_axis())
    return _flattened(rng.uniform(0.0, _between(_ROUGHNESS, difficulty), (size, size)))


def _boxes(difficulty: float, rng: np.random.Generator) -> np.ndarray:
    size, width = len(_axis()), round(_BOX_WIDTH / CELL)
    height = _between(_BOX_HEIGHT, difficulty)
    count = -(-size // width)
    boxes = rng.uniform(-height, height, (count, count))
    return _flattened(np.kron(boxes, np.ones((width, width)))[:size, :size])


def _hill(difficulty: float, rng: np.random.Generator) -> np.ndarray:
    del rng
    return _between(_SLOPE, difficulty) * _from_edge()


def _stairs_down(difficulty: float, rng: np.random.Generator) -> np.ndarray:
    del rng
    steps = np.floor(_from_edge() / _STEP_WIDTH + 1e-6)
    return _between(_STEP_HEIGHT, difficulty) * steps


_KINDS: dict[TerrainName, Callable[[float, np.random.Generator], np.ndarray]] = {
    "rough": _rough,
    "boxes": _boxes,
    "hill": _hill,
    "pit": lambda difficulty, rng: -_hill(difficulty, rng),
    "stairs_down": _stairs_down,
    "stairs_up": lambda difficulty, rng: -_stairs_down(difficulty, rng),
}
"""Heights [m] of a tile's points, from a difficulty of 0 to 1. Shape (points + 1, points + 1)."""


def build_on_terrain(config: RoughConfig) -> mujoco.MjModel:
    """Return the model of a robot on rough terrain, in place of any ground of its own."""
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
    return compile_spec(spec, config)
