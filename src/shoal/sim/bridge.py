"""Torch tensors over the memory of Warp arrays: what one side writes, the other reads, without a copy.

A tensor is made once, when an environment is built, and kept. Making one for each step would cost more than a
step of a small simulation, and a captured CUDA graph holds the addresses of the arrays for good, so neither
side may move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import warp as wp

if TYPE_CHECKING:
    import torch


def to_torch(array: wp.array) -> torch.Tensor:
    """Return a tensor that shares the memory of `array`.

    Args:
        array: Any Warp array of numbers, vectors, matrices or booleans. ``wp.bool`` becomes ``torch.bool``,
            which masks tensors; the components of a vector type become a last axis.

    Returns:
        A tensor on the array's device, outside autograd, since no gradient flows through a recorded step.
    """
    return wp.to_torch(array, requires_grad=False)
