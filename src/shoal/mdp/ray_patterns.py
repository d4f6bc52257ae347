"""Patterns of rays: each function returns where rays begin and where they point, in their frame. Names are mjlab's.

Shapes are (n, 3); directions need not be unit vectors.
"""

import numpy as np

from shoal.mdp import values

_Rays = tuple[np.ndarray, np.ndarray]
_DOWN = (0.0, 0.0, -1.0)


def grid(
    size: tuple[float, float] = (1.0, 1.0),
    resolution: float = 0.1,
    direction: tuple[float, float, float] = _DOWN,
) -> _Rays:
    """Return parallel rays from a grid around the frame's origin: length along x, width along y, and spacing [m]."""
    if resolution <= 0.0:
        raise ValueError(f"resolution is {resolution:g}, but must be above 0")
    return _parallel(values.grid_points(*size, resolution), direction)


def ring(
    radius: float = 0.1,
    num_samples: int = 8,
    include_center: bool = True,
    direction: tuple[float, float, float] = _DOWN,
) -> _Rays:
    """Return parallel rays from a circle around the frame's origin [m], and before them from the origin itself."""
    angles = 2.0 * np.pi * np.arange(num_samples) / num_samples
    points = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return _parallel(np.concatenate([np.zeros((int(include_center), 2)), points]), direction)


def pinhole(width: int = 16, height: int = 12, fovy: float = 45.0) -> _Rays:
    """Return the rays through a camera's pixels, row by row from the top. It looks along -z of the frame, x is right.

    `fovy` is the angle from the top to the bottom [degrees].
    """
    if not 0.0 < fovy < 180.0:  # noqa: PLR2004  Degrees.
        raise ValueError(f"fovy is {fovy:g}, but must be above 0 and below 180")
    rows, columns = np.mgrid[:height, :width]
    pixel = 2.0 * np.tan(np.deg2rad(fovy) / 2.0) / height
    right, up = (columns + 0.5 - width / 2.0) * pixel, (height / 2.0 - rows - 0.5) * pixel
    directions = np.stack([right, up, -np.ones_like(right)], axis=-1).reshape(-1, 3)
    return np.zeros_like(directions), directions


def _parallel(points: np.ndarray, direction: tuple[float, float, float]) -> _Rays:
    """Return rays of one direction from points in the plane of x and y, (n, 2)."""
    offsets = np.pad(points, ((0, 0), (0, 1)))
    return offsets, np.broadcast_to(direction, offsets.shape)
