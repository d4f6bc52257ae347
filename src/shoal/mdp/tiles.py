"""Kinds of tiles of rough terrain, from easy to hard, as functions of `Tile` in a configuration.

Each returns the heights of a tile's points above its border [m], (POINTS, POINTS), rows along y, from a difficulty of 0
to 1 and a random generator. A robot begins in the middle, on a flat platform where `platform_width` is given. Ranges go
from the easiest to the hardest tile unless the function says otherwise, widths are in metres.

Names, parameters and layouts are those of mjlab 1.6.0's presets (`mjlab.terrains.config`), some of them Isaac Lab's
before. mjlab builds many of boxes; here a wall is one cell wide, and what is not a whole number of cells is rounded.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

CELL = 0.1
"""Distance between two points of the height field [m]."""
TILE = 8.0
"""Length of a tile's sides [m]."""
POINTS = round(TILE / CELL) + 1
"""Number of points along a side of a tile."""

Range = tuple[float, float]
_MIDDLE = TILE / 2
_EPSILON = 1e-6
"""Against rounding where a boundary lies on a point [m]."""

_ALONG = (np.arange(POINTS) - (POINTS - 1) / 2) * CELL
"""Distance of each point from the middle, along one axis [m]. Shape (POINTS,)."""
_AWAY = np.maximum(np.abs(_ALONG)[:, None], np.abs(_ALONG)[None, :])
"""Distance of each point from the middle, along the axis where it is largest [m]. Shape (POINTS, POINTS)."""
_Y, _X = np.meshgrid(_ALONG, _ALONG, indexing="ij")


def _between(ends: Range, difficulty: float) -> float:
    return ends[0] + difficulty * (ends[1] - ends[0])


def _flattened(heights: np.ndarray, width: float, height: float = 0.0) -> np.ndarray:
    """Return heights with a platform of some width in the middle."""
    return np.where(width / 2 + _EPSILON >= _AWAY, height, heights) if width else heights


def _framed(heights: np.ndarray, width: float) -> np.ndarray:
    """Return heights with a flat border of some width."""
    return np.where(_MIDDLE - width + _EPSILON < _AWAY, 0.0, heights)


def _rings(step_width: float, platform_width: float, border_width: float) -> tuple[np.ndarray, int]:
    """Return the number of steps between the border and each point, and the largest one outside of the platform."""
    count = max(0, int((TILE - 2 * border_width - platform_width) / (2 * step_width) + _EPSILON))
    inside = np.floor((_MIDDLE - _AWAY - border_width) / step_width + _EPSILON) + 1
    return inside.clip(0, count + 1).astype(int), count


def _squares(width: float, border_width: float) -> tuple[np.ndarray, int, float]:
    """Return the index of the square of each point along one axis, their number, and the border that is left over."""
    border = (TILE - int((TILE - 2 * border_width) / width + _EPSILON) * width) / 2
    cells = max(1, round(width / CELL))
    count = -(-POINTS // cells)
    return (np.arange(POINTS) - round(border / CELL)) // cells % count, count, border


def flat(difficulty: float, rng: np.random.Generator) -> np.ndarray:
    """Return flat ground."""
    del difficulty, rng
    return np.zeros((POINTS, POINTS))


def rough(difficulty: float, rng: np.random.Generator, height_range: Range, platform_width: float) -> np.ndarray:
    """Return points up to a height, each drawn uniformly."""
    heights = rng.uniform(0.0, _between(height_range, difficulty), (POINTS, POINTS))
    return _flattened(heights, platform_width)


def random_rough(
    difficulty: float, rng: np.random.Generator, noise_range: Range, noise_step: float, border_width: float
) -> np.ndarray:
    """Return points with heights drawn from multiples of `noise_step` [m], on all levels alike."""
    del difficulty
    heights = np.arange(noise_range[0], noise_range[1] + noise_step / 2, noise_step)
    return _framed(rng.choice(heights, (POINTS, POINTS)), border_width)


def slope(difficulty: float, rng: np.random.Generator, slope_range: Range, platform_width: float) -> np.ndarray:
    """Return a pyramid with plane sides of a slope."""
    del rng
    return _between(slope_range, difficulty) * (_MIDDLE - np.maximum(_AWAY, platform_width / 2))


def hf_pyramid_slope(
    difficulty: float, rng: np.random.Generator, slope_range: Range, platform_width: float, border_width: float
) -> np.ndarray:
    """Return a hill with the slope along its axes, flatter towards its corners: a product of both."""
    del rng
    half = _MIDDLE - border_width
    along = (1 - np.abs(_ALONG) / half).clip(min=0.0)
    top = (1 - platform_width / 2 / half) ** 2
    return _between(slope_range, difficulty) * half * np.minimum(np.outer(along, along), top)


def pyramid_stairs(
    difficulty: float,
    rng: np.random.Generator,
    step_height_range: Range,
    step_width: float,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return stairs up to the middle. The platform is as wide as its last whole step leaves it."""
    del rng
    return _between(step_height_range, difficulty) * _rings(step_width, platform_width, border_width)[0]


def _downwards(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return the same function with its heights turned upside down."""

    def turned(*args: Any, **parameters: Any) -> np.ndarray:
        return -function(*args, **parameters)

    return turned


slope_inv, hf_pyramid_slope_inv = _downwards(slope), _downwards(hf_pyramid_slope)
pyramid_stairs_inv = _downwards(pyramid_stairs)
"""The same downwards."""


def random_stairs(
    difficulty: float,
    rng: np.random.Generator,
    step_height_range: Range,
    step_width: float,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return stairs up to the middle with steps drawn from a range, times 0.5 to 1 by difficulty."""
    rings, count = _rings(step_width, platform_width, border_width)
    steps = rng.uniform(*step_height_range, count) * (0.5 + 0.5 * difficulty)
    return np.cumsum([0.0, *steps, 0.0])[rings]


def wave_terrain(
    difficulty: float, rng: np.random.Generator, amplitude_range: Range, num_waves: int, border_width: float
) -> np.ndarray:
    """Return waves along both axes: `num_waves` of them, each with half of the amplitude [m]."""
    del rng
    phase = 2 * np.pi * num_waves * (_ALONG / (TILE - 2 * border_width) + 0.5)
    waves = np.sin(phase)[:, None] + np.cos(phase)[None, :]
    return _framed(0.5 * _between(amplitude_range, difficulty) * waves, border_width)


def discrete_obstacles(
    difficulty: float,
    rng: np.random.Generator,
    obstacle_width_range: Range,
    obstacle_height_range: Range,
    num_obstacles: int,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return blocks and pits: the height, or half of it, up or down. Widths are drawn from their range."""
    heights = np.zeros((POINTS, POINTS))
    height = _between(obstacle_height_range, difficulty)
    for _ in range(num_obstacles):
        sides = np.maximum(1, np.rint(rng.uniform(*obstacle_width_range, 2) / CELL)).astype(int)
        row, column = rng.integers(0, POINTS, 2)
        heights[row : row + sides[0], column : column + sides[1]] = height * rng.choice((-1.0, -0.5, 0.5, 1.0))
    return _framed(_flattened(heights, platform_width), border_width)


def perlin_noise(
    difficulty: float,
    rng: np.random.Generator,
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
    shares = (_ALONG / (TILE - 2 * border_width) + 0.5).clip(0.0, 1.0)
    noise = sum(persistence**octave * _perlin(shares * scale * lacunarity**octave, rng) for octave in range(octaves))
    noise = (noise - np.min(noise)) / np.ptp(noise)
    return _framed(_between(height_range, difficulty) * noise, border_width)


def _perlin(places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return Perlin's improved noise (2002) at a grid of points, with gradients drawn for a lattice of distance 1."""
    whole = np.floor(places).astype(int)
    part = places - whole
    gradients = rng.choice((-1.0, 1.0), (2, whole[-1] + 2, whole[-1] + 2))
    fade = part**3 * (part * (part * 6 - 15) + 10)
    total = np.zeros((len(places), len(places)))
    for up in (0, 1):
        for right in (0, 1):
            along_y, along_x = gradients[:, whole + up][:, :, whole + right]
            value = along_y * (part - up)[:, None] + along_x * (part - right)[None, :]
            total += value * np.outer(fade if up else 1 - fade, fade if right else 1 - fade)
    return total


def box_random_grid(
    difficulty: float,
    rng: np.random.Generator,
    grid_width: float,
    grid_height_range: Range,
    platform_width: float,
    border_width: float,
    platform_height: float,
) -> np.ndarray:
    """Return squares up to a height above or below the border; the platform is at `platform_height` times it."""
    index, count, border = _squares(grid_width, border_width)
    height = _between(grid_height_range, difficulty)
    heights = rng.uniform(-height, height, (count, count))[np.ix_(index, index)]
    return _framed(_flattened(heights, platform_width, platform_height * height), border)


def tilted_grid(
    difficulty: float,
    rng: np.random.Generator,
    grid_width: float,
    tilt_range_deg: float,
    height_range: float,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return squares that are tilted up to an angle [deg], at heights drawn from a range of `height_range` in all [m].

    Both grow from 0 with the difficulty.
    """
    index, count, border = _squares(grid_width, border_width)
    square = np.ix_(index, index)
    tilt, spread = np.deg2rad(tilt_range_deg * difficulty), height_range * difficulty / 2
    heights, along_y, along_x = (
        rng.uniform(-1.0, 1.0, (3, count, count)) * np.array([spread, tilt, tilt])[:, None, None]
    )
    # Where a point is in its square.
    part = np.mod(_ALONG + _MIDDLE - border + _EPSILON, grid_width) - grid_width / 2
    tilted = heights[square] + along_y[square] * part[:, None] + along_x[square] * part[None, :]
    return _framed(_flattened(tilted, platform_width), border)


def random_spread_boxes(
    difficulty: float,
    rng: np.random.Generator,
    num_boxes: int,
    box_width_range: Range,
    box_length_range: Range,
    box_height_range: Range,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return boxes with sizes drawn from ranges, turned at random: half of them at first, 0.2 times as high."""
    heights = np.zeros((POINTS, POINTS))
    for _ in range(int(num_boxes * (0.5 + 0.5 * difficulty))):
        sides = np.array([rng.uniform(*box_width_range), rng.uniform(*box_length_range)])
        height = rng.uniform(*box_height_range) * (0.2 + 0.8 * difficulty)
        reach = np.maximum(0.0, _MIDDLE - border_width - sides / 2)
        place, yaw = rng.uniform(-reach, reach), rng.uniform(0.0, 2 * np.pi)
        if (np.abs(place) > (platform_width + sides) / 2).any():
            along = (_X - place[0]) * np.cos(yaw) + (_Y - place[1]) * np.sin(yaw)
            across = (_Y - place[1]) * np.cos(yaw) - (_X - place[0]) * np.sin(yaw)
            is_inside = (np.abs(along) <= sides[0] / 2) & (np.abs(across) <= sides[1] / 2)
            heights = np.where(is_inside, np.maximum(heights, height), heights)
    return _framed(_flattened(heights, platform_width), border_width)


def stepping_stones(
    difficulty: float,
    rng: np.random.Generator,
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
    size = _between(stone_size_range, 1 - difficulty)
    inner = TILE - 2 * border_width
    count = max(2, int(inner / (stone_size_range[1] + stone_distance)) + 1)
    pitch = inner / (count - 1)
    gap = max(0.0, pitch - size)
    first_stone = np.ceil((_MIDDLE + platform_width / 2 + size / 2 + gap - border_width) / pitch)
    nearest = min(count - 1, int(first_stone)) * pitch + border_width - _MIDDLE
    platform = max(platform_width / 2, nearest - size / 2 - gap)
    heights = np.full((POINTS, POINTS), -floor_depth)
    for place in np.stack(np.meshgrid(*2 * [np.arange(count) * pitch - inner / 2]), -1).reshape(-1, 2):
        center = place + rng.uniform(-1, 1, 2) * displacement_range * difficulty
        sides = size + rng.uniform(-1, 1, 2) * stone_size_variation * difficulty
        top = rng.uniform(-1, 1) * stone_height_variation * difficulty
        if (np.abs(center) > platform).any():
            is_inside = (np.abs(_X - center[0]) <= sides[0] / 2) & (np.abs(_Y - center[1]) <= sides[1] / 2)
            heights = np.where(is_inside, np.maximum(heights, top), heights)
    return _framed(_flattened(heights, 2 * platform), border_width)


def narrow_beams(
    difficulty: float,
    rng: np.random.Generator,
    num_beams: int,
    beam_width_range: Range,
    floor_depth: float,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return beams from the platform to the border above a deep floor, narrower with the difficulty.

    The platform is so small that its corners lie on beams.
    """
    del rng
    width = _between(beam_width_range, 1 - difficulty)
    heights = np.full((POINTS, POINTS), -floor_depth)
    for angle in np.arange(num_beams) * 2 * np.pi / num_beams:
        along, across = _X * np.cos(angle) + _Y * np.sin(angle), _Y * np.cos(angle) - _X * np.sin(angle)
        heights[(along >= 0) & (np.abs(across) <= width / 2 + _EPSILON)] = 0.0
    corner = width / np.sqrt(2) / max(np.sin(np.pi / num_beams), _EPSILON)
    return _framed(_flattened(heights, min(platform_width, corner)), border_width)


def nested_rings(
    difficulty: float,
    rng: np.random.Generator,
    num_rings: int,
    ring_width_range: Range,
    gap_range: Range,
    floor_depth: float,
    platform_width: float,
    border_width: float,
) -> np.ndarray:
    """Return square rings above a deep floor: they become narrower, and the gaps between them wider."""
    del rng
    width, gap = _between(ring_width_range, 1 - difficulty), _between(gap_range, difficulty)
    pitch, inner = width + gap, TILE - 2 * border_width
    count = min(num_rings, max(0, int(np.ceil((inner - platform_width) / (2 * pitch) - _EPSILON))))
    inside = _MIDDLE - _AWAY - border_width + _EPSILON
    is_gap = (inside >= 0) & (np.mod(inside, pitch) >= width) & (inside < count * pitch - gap)
    return np.where(is_gap, -floor_depth, 0.0)
