"""Running mean and deviation of observations: rsl_rl's normalisers, updated in place and without a wait."""

# ruff: noqa: ANN401, SLF001

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from rsl_rl.modules import EmpiricalNormalization


@torch.no_grad()
def update_normalisers(seen: Sequence[tuple[EmpiricalNormalization, torch.Tensor]]) -> None:
    """Let each normaliser learn from rows of all ranks, shape (num, columns), in one collective for all of them.

    Same formulas as the library's `update` (Chan et al., "Updating formulae and a pairwise algorithm for computing
    sample variances", 1979). That takes three collectives for each normaliser, copies a number to the device, and puts
    another tensor in the place of the deviation, which a captured graph would not see.
    """
    if not seen:
        return
    sums: list[torch.Tensor] = []
    for _, rows in seen:
        variance, mean = (moment.double() for moment in torch.var_mean(rows, dim=0, correction=0))
        sums += [torch.cat([mean, variance + mean.square(), mean.new_ones(1)]) * len(rows)]
    total = torch.cat(sums)
    if dist.is_initialized():
        dist.all_reduce(total)
    for (normaliser, rows), of_all in zip(seen, total.split([len(each) for each in sums]), strict=True):
        if normaliser.training:
            columns = rows.shape[1]
            mean, square, _ = (of_all / of_all[-1]).split([columns, columns, 1])
            _learn(normaliser, mean, square - mean.square(), of_all[-1])


def _learn(normaliser: Any, mean: torch.Tensor, variance: torch.Tensor, number: torch.Tensor) -> None:
    """Add `number` rows of this mean and variance."""
    if normaliser.until is not None:  # Learns no more then.
        number = torch.where(normaliser.count < normaliser.until, number, 0.0)
    normaliser.count += number.to(normaliser.count)
    rate = number / normaliser.count
    shift = mean - normaliser._mean
    normaliser._mean += rate * shift
    normaliser._var += rate * (variance - normaliser._var + shift * (mean - normaliser._mean))
    normaliser._var.clamp_(min=0.0)  # That of a constant column may be rounded to less, which has no root.
    normaliser._std.copy_(normaliser._var.sqrt())
