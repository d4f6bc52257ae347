"""Kinds of sub-terrains of rough terrain, from easy to hard, as functions of `SubTerrain` in a configuration.

Each returns the heights of the points of a `Plot` above its border [m], (points, points), rows along y. A robot begins
in the middle, on a flat platform where `platform_width` is given. Ranges go from the easiest to the hardest level
unless the function says otherwise, widths are in metres.

Names, parameters and layouts are those of mjlab 1.6.0's presets (`mjlab.terrains.config`), some of them Isaac Lab's
before. mjlab builds many of boxes; here a wall is one cell wide, and what is not a whole number of cells is rounded.
What has air below is built of boxes here too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

Range = tuple[float, float]
_EPSILON = 1e-6
"""Against rounding where a boundary lies on a point [m]."""


@dataclass(frozen=True)
class Plot:
    """A square to fill with ground."""

    difficulty: float
    """From 0 to 1."""
    rng: np.random.Generator
    size: float = 8.0
    """Length of its sides [m]."""
    cell: float = 0.1
    """Distance between two points of the height field [m]."""
    boxes: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    """Boxes on the height field: centre, from the middle and above the border, and half of the sides [m]. Each (6,)."""

    @cached_property
    def along(self) -> np.ndarray:
        """Distance of each point from the middle, along one axis [m]. Shape (points,)."""
        points = round(self.size / self.cell) + 1
        return (np.arange(points) - (points - 1) / 2) * self.cell

    @cached_property
    def away(self) -> np.ndarray:
        """Distance of each point from the middle, along the axis where it is largest [m]. Shape (points, points)."""
        return np.maximum(np.abs(self.along)[:, None], np.abs(self.along)[None, :])

    def between(self, ends: Range) -> float:
        """Return the number of a range at this difficulty."""
        return ends[0] + self.difficulty * (ends[1] - ends[0])

    def shrinking(self, ends: Range) -> float:
        """Return the number of a range whose largest is the easiest."""
        return self.between((ends[1], ends[0]))

    def framed(self, heights: np.ndarray, border: float, platform: float = 0.0, height: float = 0.0) -> np.ndarray:
        """Return heights with a flat border of a width, and a platform of a width in the middle, at a height."""
        if platform:
            heights = np.where(platform / 2 + _EPSILON >= self.away, height, heights)
        return np.where(self.size / 2 - border + _EPSILON < self.away, 0.0, heights)

    def steps(self, step_width: float, platform_width: float, border_width: float) -> int:
        """Return how many steps there are between the border and the platform."""
        return max(0, int((self.size - 2 * border_width - platform_width) / (2 * step_width) + _EPSILON))

    def rings(self, step_width: float, platform_width: float, border_width: float) -> np.ndarray:
        """Return the number of steps between the border and each point. Shape (points, points)."""
        inside = np.floor((self.size / 2 - self.away - border_width) / step_width + _EPSILON) + 1
        return inside.clip(0, self.steps(step_width, platform_width, border_width) + 1).astype(int)

    def squares(self, width: float, border_width: float) -> tuple[np.ndarray, int, float]:
        """Return the index of each point's square along one axis, their number, and the border that is left over."""
        border = (self.size - int((self.size - 2 * border_width) / width + _EPSILON) * width) / 2
        cells, points = max(1, round(width / self.cell)), len(self.along)
        count = -(-points // cells)
        return (np.arange(points) - round(border / self.cell)) // cells % count, count, border

    def turned(self, center: Any, yaw: float) -> tuple[np.ndarray, np.ndarray]:
        """Return where points are along both axes of a frame around `center` [m], turned. Each (points, points)."""
        right, up = self.along[None, :] - center[0], self.along[:, None] - center[1]
        return right * np.cos(yaw) + up * np.sin(yaw), up * np.cos(yaw) - right * np.sin(yaw)

    def box_at(self, center: Any, sides: Any, yaw: float = 0.0) -> np.ndarray:
        """Return which points a rectangle contains, around `center` [m]. Shape (points, points)."""
        along, across = self.turned(center, yaw)
        return (np.abs(along) <= sides[0] / 2) & (np.abs(across) <= sides[1] / 2)


def flat(plot: Plot) -> np.ndarray:
    """Return flat ground."""
    return np.zeros(plot.away.shape)


def rough(plot: Plot, height_range: Range, platform_width: float) -> np.ndarray:
    """Return points up to a height, each drawn uniformly."""
    heights = plot.rng.uniform(0.0, plot.between(height_range), plot.away.shape)
    return plot.framed(heights, 0.0, platform_width)


def random_rough(plot: Plot, noise_range: Range, noise_step: float, border_width: float) -> np.ndarray:
    """Return points with heights drawn from multiples of `noise_step` [m], on all levels alike."""
    heights = np.arange(noise_range[0], noise_range[1] + noise_step / 2, noise_step)
    return plot.framed(plot.rng.choice(heights, plot.away.shape), border_width)


def slope(plot: Plot, slope_range: Range, platform_width: float) -> np.ndarray:
    """Return a pyramid with plane sides of a slope."""
    return plot.between(slope_range) * (plot.size / 2 - np.maximum(plot.away, platform_width / 2))


def hf_pyramid_slope(plot: Plot, slope_range: Range, platform_width: float, border_width: float) -> np.ndarray:
    """Return a hill with the slope along its axes, flatter towards its corners: a product of both."""
    half = plot.size / 2 - border_width
    along = (1 - np.abs(plot.along) / half).clip(min=0.0)
    top = (1 - platform_width / 2 / half) ** 2
    return plot.between(slope_range) * half * np.minimum(np.outer(along, along), top)


def pyramid_stairs(
    plot: Plot, step_height_range: Range, step_width: float, platform_width: float, border_width: float
) -> np.ndarray:
    """Return stairs up to the middle. The platform is as wide as its last whole step leaves it."""
    return plot.between(step_height_range) * plot.rings(step_width, platform_width, border_width)


def _downwards(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return the same function with its heights turned upside down."""

    def turned(*args: Any, **parameters: Any) -> np.ndarray:
        return -function(*args, **parameters)

    return turned


slope_inv, hf_pyramid_slope_inv = _downwards(slope), _downwards(hf_pyramid_slope)
pyramid_stairs_inv = _downwards(pyramid_stairs)
"""The same downwards."""


def open_stairs(
    plot: Plot,
    step_height_range: Range,
    step_width_range: Range,
    platform_width: float,
    border_width: float,
    step_thickness: float,
) -> np.ndarray:
    """Return flat ground under stairs up to the middle: boxes with air below, narrower with the difficulty."""
    height, width, thick = plot.between(step_height_range), plot.shrinking(step_width_range), step_thickness / 2
    count = plot.steps(width, platform_width, border_width)
    for step in range(count):
        outer, top = plot.size / 2 - border_width - step * width, (step + 1) * height
        for center in (outer - width / 2, width / 2 - outer):
            plot.boxes.append((0.0, center, top - thick, outer, width / 2, thick))
            plot.boxes.append((center, 0.0, top - thick, width / 2, outer - width, thick))
    platform = plot.size / 2 - border_width - count * width
    plot.boxes.append((0.0, 0.0, (count + 1) * height - thick, platform, platform, thick))
    return np.zeros(plot.away.shape)


def random_stairs(
    plot: Plot, step_height_range: Range, step_width: float, platform_width: float, border_width: float
) -> np.ndarray:
    """Return stairs up to the middle with steps drawn from a range, times 0.5 to 1 by difficulty."""
    steps = plot.rng.uniform(*step_height_range, plot.steps(step_width, platform_width, border_width)) * (
        0.5 + 0.5 * plot.difficulty
    )
    return np.cumsum([0.0, *steps, 0.0])[plot.rings(step_width, platform_width, border_width)]


def wave_terrain(plot: Plot, amplitude_range: Range, num_waves: int, border_width: float) -> np.ndarray:
    """Return waves along both axes: `num_waves` of them, each with half of the amplitude [m]."""
    phase = 2 * np.pi * num_waves * (plot.along / (plot.size - 2 * border_width) + 0.5)
    waves = np.sin(phase)[:, None] + np.cos(phase)[None, :]
    return plot.framed(0.5 * plot.between(amplitude_range) * waves, border_width)


def discrete_obstacles(
    plot: Plot,
    obstacle_width_range: Range,
    obstacle_height_range: Range,
    num_obstacles: int,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return blocks and pits: the height, or half of it, up or down. Widths are drawn from their range."""
    heights = np.zeros(plot.away.shape)
    height = plot.between(obstacle_height_range)
    for _ in range(num_obstacles):
        sides = np.maximum(1, np.rint(plot.rng.uniform(*obstacle_width_range, 2) / plot.cell)).astype(int)
        row, column = plot.rng.integers(0, len(plot.along), 2)
        heights[row : row + sides[0], column : column + sides[1]] = height * plot.rng.choice((-1.0, -0.5, 0.5, 1.0))
    return plot.framed(heights, border_width, platform_width)


def perlin_noise(
    plot: Plot,
    height_range: Range,
    octaves: int,
    persistence: float,
    lacunarity: float,
    scale: float,
    border_width: float,
) -> np.ndarray:
    """Return fractal Perlin noise from 0 to a height: `scale` waves along a side in the first octave.

    Each octave has `lacunarity` times the waves of the one before, and `persistence` times the height.
    """
    shares = (plot.along / (plot.size - 2 * border_width) + 0.5).clip(0.0, 1.0)
    noise = sum(
        persistence**octave * _perlin(shares * scale * lacunarity**octave, plot.rng) for octave in range(octaves)
    )
    noise = (noise - np.min(noise)) / np.ptp(noise)
    return plot.framed(plot.between(height_range) * noise, border_width)


def _perlin(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return Perlin's improved noise (2002) at a grid of points, with gradients drawn for a lattice of distance 1."""
    whole = np.floor(points).astype(int)
    part = points - whole
    gradients = rng.choice((-1.0, 1.0), (2, whole[-1] + 2, whole[-1] + 2))
    fade = part**3 * (part * (part * 6 - 15) + 10)
    total = np.zeros((len(points), len(points)))
    for up in (0, 1):
        for right in (0, 1):
            along_y, along_x = gradients[:, whole + up][:, :, whole + right]
            value = along_y * (part - up)[:, None] + along_x * (part - right)[None, :]
            total += value * np.outer(fade if up else 1 - fade, fade if right else 1 - fade)
    return total


def box_random_grid(
    plot: Plot,
    grid_width: float,
    grid_height_range: Range,
    platform_width: float,
    border_width: float,
    platform_height: float,
) -> np.ndarray:
    """Return squares up to a height above or below the border; the platform is at `platform_height` times it."""
    index, count, border = plot.squares(grid_width, border_width)
    height = plot.between(grid_height_range)
    heights = plot.rng.uniform(-height, height, (count, count))[np.ix_(index, index)]
    return plot.framed(heights, border, platform_width, platform_height * height)


def tilted_grid(
    plot: Plot,
    grid_width: float,
    tilt_range_deg: float,
    height_range: float,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return squares that are tilted up to an angle [deg], at heights drawn from a range of `height_range` in all [m].

    Both grow from 0 with the difficulty.
    """
    index, count, border = plot.squares(grid_width, border_width)
    square = np.ix_(index, index)
    tilt, spread = np.deg2rad(tilt_range_deg * plot.difficulty), height_range * plot.difficulty / 2
    heights, along_y, along_x = (
        plot.rng.uniform(-1.0, 1.0, (3, count, count)) * np.array([spread, tilt, tilt])[:, None, None]
    )
    # Where a point is in its square.
    part = np.mod(plot.along + plot.size / 2 - border + _EPSILON, grid_width) - grid_width / 2
    tilted = heights[square] + along_y[square] * part[:, None] + along_x[square] * part[None, :]
    return plot.framed(tilted, border, platform_width)


def random_spread_boxes(
    plot: Plot,
    num_boxes: int,
    box_width_range: Range,
    box_length_range: Range,
    box_height_range: Range,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return boxes with sizes drawn from ranges, turned at random: half of them at first, 0.2 times as high."""
    heights = np.zeros(plot.away.shape)
    for _ in range(int(num_boxes * (0.5 + 0.5 * plot.difficulty))):
        sides = np.array([plot.rng.uniform(*box_width_range), plot.rng.uniform(*box_length_range)])
        height = plot.rng.uniform(*box_height_range) * (0.2 + 0.8 * plot.difficulty)
        reach = np.maximum(0.0, plot.size / 2 - border_width - sides / 2)
        center, yaw = plot.rng.uniform(-reach, reach), plot.rng.uniform(0.0, 2 * np.pi)
        if (np.abs(center) > (platform_width + sides) / 2).any():
            heights = np.where(plot.box_at(center, sides, yaw), np.maximum(heights, height), heights)
    return plot.framed(heights, border_width, platform_width)


def stepping_stones(
    plot: Plot,
    stone_size_range: Range,
    stone_distance: float,
    stone_height_variation: float,
    stone_size_variation: float,
    displacement_range: float,
    floor_depth: float,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return columns above a deep floor. They shrink to the smallest size with the difficulty, and vary more.

    Their distances follow from the largest size and `stone_distance`. The platform reaches up to a gap before a stone.
    """
    size = plot.shrinking(stone_size_range)
    inner = plot.size - 2 * border_width
    count = max(2, int(inner / (stone_size_range[1] + stone_distance)) + 1)
    pitch = inner / (count - 1)
    gap = max(0.0, pitch - size)
    first_stone = np.ceil((plot.size / 2 + platform_width / 2 + size / 2 + gap - border_width) / pitch)
    nearest = min(count - 1, int(first_stone)) * pitch + border_width - plot.size / 2
    platform = max(platform_width / 2, nearest - size / 2 - gap)
    heights = np.full(plot.away.shape, -floor_depth)
    for regular in np.stack(np.meshgrid(*2 * [np.arange(count) * pitch - inner / 2]), -1).reshape(-1, 2):
        center = regular + plot.rng.uniform(-1, 1, 2) * displacement_range * plot.difficulty
        sides = size + plot.rng.uniform(-1, 1, 2) * stone_size_variation * plot.difficulty
        top = plot.rng.uniform(-1, 1) * stone_height_variation * plot.difficulty
        if (np.abs(center) > platform).any():
            heights = np.where(plot.box_at(center, sides), np.maximum(heights, top), heights)
    return plot.framed(heights, border_width, 2 * platform)


def narrow_beams(
    plot: Plot, num_beams: int, beam_width_range: Range, floor_depth: float, platform_width: float, border_width: float
) -> np.ndarray:
    """Return beams from the platform to the border above a deep floor, narrower with the difficulty.

    The platform is so small that its corners lie on beams.
    """
    width = plot.shrinking(beam_width_range)
    heights = np.full(plot.away.shape, -floor_depth)
    for angle in np.arange(num_beams) * 2 * np.pi / num_beams:
        along, across = plot.turned((0.0, 0.0), angle)
        heights[(along >= 0) & (np.abs(across) <= width / 2 + _EPSILON)] = 0.0
    corner = width / np.sqrt(2) / max(np.sin(np.pi / num_beams), _EPSILON)
    return plot.framed(heights, border_width, min(platform_width, corner))


def nested_rings(
    plot: Plot,
    num_rings: int,
    ring_width_range: Range,
    gap_range: Range,
    floor_depth: float,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return square rings above a deep floor: they become narrower, and the gaps between them wider."""
    width, gap = plot.shrinking(ring_width_range), plot.between(gap_range)
    pitch, inner = width + gap, plot.size - 2 * border_width
    count = min(num_rings, max(0, int(np.ceil((inner - platform_width) / (2 * pitch) - _EPSILON))))
    inside = plot.size / 2 - plot.away - border_width + _EPSILON
    is_gap = (inside >= 0) & (np.mod(inside, pitch) >= width) & (inside < count * pitch - gap)
    return np.where(is_gap, -floor_depth, 0.0)
