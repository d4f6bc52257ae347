"""Values of parameters as numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.mdp.patterns import numbers_by_pattern


def grid_points(length: float, width: float, spacing: float) -> np.ndarray:
    """Return the points of a grid around the origin, x and y [m]. Shape (n, 2)."""
    counts = (int(side / spacing + 1e-6) + 1 for side in (length, width))
    axes = [(np.arange(count) - (count - 1) / 2) * spacing for count in counts]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def numbers_by_name(path: str, value: Any, names: tuple[str, ...]) -> list[float]:
    """Return one number for each selected name, from a number, numbers, or numbers by pattern."""
    if not isinstance(value, Mapping):
        numbers = value if isinstance(value, tuple | list) else [value] * len(names)
        if len(numbers) != len(names):
            raise UsageError(f"{path} has {len(numbers)} numbers for {len(names)} names ({', '.join(names)}).")
        return numbers_of(path, numbers, len(names))
    found = numbers_by_pattern(path, value, names)
    missing = [name for name in names if name not in found]
    if missing:
        raise UsageError(f"{path} has no pattern for '{missing[0]}': each name must match one of {', '.join(value)}.")
    return [found[name] for name in names]


def numbers_of(path: str, value: Any, count: int) -> list[float]:
    """Return so many numbers.

    Raises:
        UsageError: They are not as many, or no numbers.
    """
    is_one = value is None or isinstance(value, int | float | str)
    numbers: Any = (value,) if is_one else value  # A default may be a vector of Warp's.
    if len(numbers) != count or not all(isinstance(each, int | float) for each in numbers):
        raise UsageError(f"{path} is {value!r}, but must be {'a number' if count == 1 else f'{count} numbers'}.")
    return [float(each) for each in numbers]
