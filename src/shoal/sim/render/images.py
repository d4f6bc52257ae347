"""Images that a policy observes, as videos and viewers show them."""

import math

import numpy as np


def enlarged(image: np.ndarray, largest: tuple[int, int]) -> np.ndarray:
    """Return the channels of an image side by side, each pixel as a square of a whole number of pixels.

    Args:
        image: Numbers from 0, black, to 1, white. Shape (channels, height, width).
        largest: Width and height of the result, at most [pixels]; pixels of a larger image are left out.

    Returns:
        Colours as bytes. Shape (rows, columns, 3).
    """
    grey = np.rint(np.concatenate([*image], axis=1).clip(0.0, 1.0) * 255).astype(np.uint8)
    factor = min(most / size for most, size in zip(largest[::-1], grey.shape, strict=True))
    factor = math.floor(factor) if factor >= 1 else factor
    rows, columns = ((np.arange(max(1, int(size * factor))) / factor).astype(int) for size in grey.shape)
    return grey[np.ix_(rows, columns)][..., None].repeat(3, axis=2)
