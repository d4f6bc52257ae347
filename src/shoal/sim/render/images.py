"""Images that a policy observes, as videos and viewers show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Images:
    """A group of images that policies observe."""

    live: torch.Tensor
    """What is observed at present. Shape (num_envs, channels, height, width)."""
    tiles: Sequence[tuple[int, int, int]]
    """For each tile the channels that are its red, green and blue: one thrice where it is grey."""

    def drawn(self, values: np.ndarray) -> np.ndarray:
        """Return observations as colours, the tiles of an image side by side.

        Args:
            values: Numbers from 0, dark, to 1, bright. Shape (..., channels, height, width).

        Returns:
            Bytes. Shape (..., height, tiles * width, 3).
        """
        shades = np.rint(values.clip(0.0, 1.0) * 255).astype(np.uint8)
        tiles = np.moveaxis(shades[..., self.tiles, :, :], (-2, -4, -1, -3), (-4, -3, -2, -1))
        return tiles.reshape(*tiles.shape[:-3], -1, 3)


def enlarged(image: np.ndarray, largest: tuple[int, int]) -> np.ndarray:
    """Return an image with each pixel as a square of a whole number of pixels. Shapes (rows, columns, 3).

    `largest` is width and height of the result, at most [pixels]; pixels of a larger image are left out.
    """
    factor = min(most / size for most, size in zip(largest[::-1], image.shape[:2], strict=True))
    factor = math.floor(factor) if factor >= 1 else factor
    rows, columns = ((np.arange(max(1, int(size * factor))) / factor).astype(int) for size in image.shape[:2])
    return image[np.ix_(rows, columns)]
