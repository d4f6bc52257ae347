"""Discounted sums over steps, without a loop over them."""

import torch


def discounted_sums(values: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return `sums`, where `sums[t] = values[t] + factors[t] * sums[t + 1]`, and nothing follows the last.

    In a number of operations that is the logarithm of the number of steps: after each, `values[t]` are the sums over
    twice as many steps, and `factors[t]` lead to the first step that is not in them (Hillis and Steele, "Data parallel
    algorithms", 1986). Both have the shape (num_steps, ...).
    """
    reach = 1
    while reach < len(values):
        values = torch.cat([values[:-reach] + factors[:-reach] * values[reach:], values[-reach:]])
        factors = torch.cat([factors[:-reach] * factors[reach:], factors[-reach:]])
        reach *= 2
    return values
