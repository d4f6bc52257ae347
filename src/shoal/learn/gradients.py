"""Gradients as parts of one tensor that stays in place: few operations, one collective, and graphs that read them."""

from collections.abc import Iterable

import torch
from rsl_rl.utils import reduce_gradients_in_buckets
from torch import nn

BUCKET_MB = 25
"""Size of a collective: rsl_rl's default."""


class FlatGradients:
    """The gradients of groups of weights. Optimizers find each weight's in its `grad`."""

    def __init__(self, *groups: Iterable[nn.Parameter], num_extra: int = 0) -> None:
        """Lay them out. `num_extra` numbers before them are averaged over the ranks, too."""
        trained = [[each for each in group if each.requires_grad] for group in groups]
        self.weights = [each for group in trained for each in group]
        sizes = [sum(each.numel() for each in group) for group in trained]
        flat = torch.zeros(num_extra + sum(sizes), device=self.weights[0].device)
        self._carrier = nn.Parameter(torch.zeros_like(flat))  # Of which the collective takes the gradient.
        self._carrier.grad = flat
        self.extra, *self._groups = flat.split([num_extra, *sizes])
        self._flat = flat[num_extra:]
        pieces = self._flat.split([each.numel() for each in self.weights])
        self._pieces = [piece.view_as(weights) for weights, piece in zip(self.weights, pieces, strict=True)]

    def compute(self, loss: torch.Tensor) -> None:
        """Set them to those of `loss`."""
        gradients = torch.autograd.grad(loss, self.weights, materialize_grads=True)
        torch.cat([each.reshape(-1) for each in gradients], out=self._flat)
        # Each time: torch may take gradients from the weights that it loads, as on the emulated GPU, and an optimizer
        # passes over weights without one in silence.
        for weights, piece in zip(self.weights, self._pieces, strict=True):
            weights.grad = piece

    def average(self, num_ranks: int, bucket_mb: float = BUCKET_MB) -> None:
        """Average them over all ranks."""
        reduce_gradients_in_buckets([self._carrier], num_ranks, bucket_mb)

    def clip(self, *largest: float) -> None:
        """Shorten the gradient of each group whose `largest` norm is given, as `clip_grad_norm_` does it."""
        for gradients, norm in zip(self._groups, largest, strict=False):
            gradients.mul_((norm / (torch.linalg.vector_norm(gradients) + 1e-6)).clamp(max=1.0))
