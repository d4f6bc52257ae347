"""Where environments stand when several are shown at once."""

from __future__ import annotations

import math

import numpy as np

ROOM = 1.3
"""How much wider a cell is than what stands in it."""
NARROWEST = 0.25
"""A cell is at least this part of its longer side wide, or else thin things stand one behind the other."""


def offsets(num_envs: int, size: tuple[float, float]) -> np.ndarray:
    """Return how far each environment is moved [m], so that none stands in another. Shape (num_envs, 3).

    Rows run along x, the first one in front; the whole is about as wide as it is deep, with its middle at the origin.

    Args:
        num_envs: Number of environments.
        size: What one environment takes along x and y [m].
    """
    longer = max(*size, 1e-3)
    width, depth = (ROOM * max(side, NARROWEST * longer) for side in size)
    columns = min(num_envs, max(1, round(math.sqrt(num_envs * depth / width))))
    rows = math.ceil(num_envs / columns)
    env = np.arange(num_envs)
    x = (env % columns - (columns - 1) / 2) * width
    y = (env // columns - (rows - 1) / 2) * depth
    return np.stack([x, y, np.zeros(num_envs)], axis=1).astype(np.float32)
