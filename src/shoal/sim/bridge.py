"""Torch tensors over the memory of Warp arrays, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import warp as wp

if TYPE_CHECKING:
    import torch


def to_torch(array: wp.array) -> torch.Tensor:
    """Return a tensor that shares the memory of `array`, outside autograd. Make it once: it costs more than a step.

    ``wp.bool`` becomes ``torch.bool``; the components of a vector type become a last axis.
    """
    return wp.to_torch(array, requires_grad=False)
