"""Rough terrain: sub-terrains of several kinds and levels, from easy to hard, as one height field.

Sub-terrains of a level lie side by side along y, one for each entry of `TerrainConfig.terrains`; levels follow each
other along x. A robot begins in the middle of a sub-terrain.
"""

from dataclasses import dataclass
from types import FunctionType

import mujoco
import numpy as np

from shoal.mdp.functions import named_function
from shoal.mdp.robots import add_floor, build_spec
from shoal.mdp.sub_terrains import Plot
from shoal.mdp.terrain_config import TerrainConfig

BORDER = 4.0
"""Width of the flat ground around all sub-terrains [m]."""
_DEPTH = 1.0
"""Thickness of the height field below its lowest point [m]: nothing must fall through."""
_EXTENT = 2.0
"""Extent of the model for MuJoCo's cameras [m]: with that of the whole terrain, they would clip what is near.

Its center is that of the robot.
"""


@dataclass(frozen=True, slots=True)
class Terrain:
    """Sub-terrains of rough ground around the origin."""

    heights: np.ndarray
    """Height of each point with boxes [m], float32: rows along y, columns along x. Shape (num_rows, num_columns)."""
    floor: np.ndarray
    """The same without boxes: the height field."""
    boxes: np.ndarray
    """Centres and half of the sides of boxes [m]. Shape (num_boxes, 6)."""
    centers: np.ndarray
    """The middle of each sub-terrain: x and y [m]. Shape (num_levels, num_terrains, 2)."""
    patches: np.ndarray
    """Where robots begin: flat patches of each, or its middle [m]. Shape (num_levels, num_terrains, n, 2)."""
    cell: float
    """Distance between two points [m]."""

    @property
    def corner(self) -> tuple[float, float]:
        """Position of the first point: x and y [m]."""
        rows, columns = self.heights.shape
        return -self.cell * (columns - 1) / 2, -self.cell * (rows - 1) / 2


def make_terrain(config: TerrainConfig) -> Terrain:
    """Return the terrain of a configuration; the same for the same `terrain_seed`.

    Raises:
        ShoalError: A sub-terrain names no function.
    """
    levels, names, cell = config.terrain_levels, config.terrains, config.horizontal_scale
    terms = config.terms("sub_terrains")
    functions = {
        name: named_function(term.func, "sub_terrains", f"sub_terrains.{name}", FunctionType)
        for name, term in terms.items()
    }
    points, edge = round(config.sub_terrain_size / cell), round(BORDER / cell)
    floor = np.zeros((len(names) * points + 2 * edge + 1, levels * points + 2 * edge + 1))
    heights = floor.copy()
    centers, patches = np.zeros((levels, len(names), 2)), np.zeros((levels, len(names), max(1, config.num_patches), 2))
    boxes: list[np.ndarray] = []
    rng = np.random.default_rng(config.terrain_seed)
    for level, column in np.ndindex(centers.shape[:2]):
        term = terms[names[column]]
        plot = Plot(level / max(levels - 1, 1), rng, config.sub_terrain_size, cell)
        sub_terrain = functions[names[column]](plot, **{each: getattr(term, each) for each in term.parameters})
        sub_terrain[[0, -1], :] = sub_terrain[:, [0, -1]] = 0.0  # Neighbours meet at their edges, at height 0.
        rows, columns = edge + column * points, edge + level * points
        centers[level, column] = cell * (np.array([columns, rows]) + points / 2 - (np.array(floor.shape[::-1]) - 1) / 2)
        around = np.s_[rows : rows + points + 1, columns : columns + points + 1]
        floor[around] = sub_terrain
        for x, y, z, *half in plot.boxes:
            sub_terrain = np.where(
                plot.box_at((x, y), 2.0 * np.array(half)), np.maximum(sub_terrain, z + half[2]), sub_terrain
            )
            boxes.append(np.array([x + centers[level, column, 0], y + centers[level, column, 1], z, *half]))
        heights[around] = sub_terrain
        patches[level, column] = centers[level, column] + (
            _flat_patches(sub_terrain, plot, config) if config.num_patches else 0.0
        )
    return Terrain(heights.astype(np.float32), floor.astype(np.float32), np.array(boxes), centers, patches, cell)


def _flat_patches(heights: np.ndarray, plot: Plot, config: TerrainConfig) -> np.ndarray:
    """Return flat patches of a sub-terrain from its middle, x and y [m]; its middle if there are none. Shape (n, 2)."""
    middle = len(heights) // 2
    radius = min(middle, round(config.patch_radius / plot.cell))
    around = np.lib.stride_tricks.sliding_window_view(heights, (2 * radius + 1, 2 * radius + 1))
    flat = np.argwhere(np.ptp(around, axis=(2, 3)) <= config.max_height_diff) + radius
    rng = np.random.default_rng(config.terrain_seed)
    return plot.along[rng.choice(flat if len(flat) else [[middle, middle]], config.num_patches)][:, ::-1]


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
    rows, columns = terrain.floor.shape
    lowest, highest = float(terrain.floor.min()), float(terrain.floor.max())
    corner = terrain.corner
    spec.add_hfield(
        name="terrain",
        size=(-corner[0], -corner[1], max(highest - lowest, terrain.cell), _DEPTH),
        nrow=rows,
        ncol=columns,
        userdata=terrain.floor.ravel(),
    )
    add_floor(spec, type=mujoco.mjtGeom.mjGEOM_HFIELD, hfieldname="terrain", pos=(0.0, 0.0, lowest))
    for index, box in enumerate(terrain.boxes):
        add_floor(spec, f"floor_{index}", type=mujoco.mjtGeom.mjGEOM_BOX, pos=box[:3], size=box[3:])
    spec.stat.extent = _EXTENT
    return spec
