"""Confidence sequences: intervals that all cover the truth at once, however often one looks, and stops.

With ordinary intervals, looking again and stopping as soon as 0 is outside finds differences that do not exist.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

MINIMUM_PAIRS = 500
"""Least number of pairs for an interval that relies on the deviation of the pairs so far."""
_FAR = 6.0
"""Robust standard deviations from the median, beyond which a difference is a rare outcome."""
_SPREADS = 20.0
"""A rare outcome that was not seen may cost as many robust standard deviations of the returns."""
_QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution in standard deviations."""
_MOST_PAIRS = 2**24
_LARGEST_BET = 0.75


def rate_bounds(count: int, trials: int, alpha: float) -> tuple[float, float]:
    """Return bounds of a probability that hold at every number of trials, except with probability `alpha`.

    H. Robbins, "Statistical methods related to the law of the iterated logarithm", Annals of Mathematical Statistics
    41, 1970: the ratio of the likelihoods of a mixture of all rates, here Beta(1/2, 1/2), and of the true rate is a
    martingale, which ever exceeds 1 / alpha with probability alpha at most.
    """
    floor = _log_beta(count + 0.5, trials - count + 0.5) - _log_beta(0.5, 0.5) + math.log(alpha)

    def is_likely(rate: float) -> bool:
        return count * math.log(rate) + (trials - count) * math.log1p(-rate) > floor

    middle = (count + 0.5) / (trials + 1)
    low = 0.0 if count == 0 else _edge(is_likely, middle, 0.0)
    return low, 1.0 if count == trials else _edge(is_likely, middle, 1.0)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _edge(is_inside: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return the end of an interval between a point inside and one that is not, which is never asked for."""
    for _ in range(40):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if is_inside(middle) else (inside, middle)
    return outside


def bounded_mean(values: np.ndarray, low: float, high: float, alpha: float) -> tuple[float, float]:
    """Return bounds of the mean of a stream of values in [low, high], which hold at every look, except with `alpha`.

    The hedged capital process of I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by
    betting", Journal of the Royal Statistical Society B 86, 2024, section 4.4: who bets that the mean is not m, with
    stakes that depend on the past alone, is rich with probability alpha at most if it is m.

    Args:
        values: The values so far. Shape (count,).
        low: The least value that there can be.
        high: The largest.
        alpha: Probability that any interval misses the mean.
    """
    if not values.size:
        return low, high
    shares = (values - low) / (high - low)
    number = np.arange(1, shares.size + 1)
    means = (0.5 + np.cumsum(shares)) / (number + 1)
    variances = (0.25 + np.cumsum((shares - means) ** 2)) / (number + 1)
    known = np.concatenate([[0.25], variances[:-1]])
    stakes = np.sqrt(2 * math.log(2 / alpha) / (known * number * np.log1p(number)))

    def is_poor(mean: float) -> bool:
        above = np.log1p(np.minimum(stakes, _LARGEST_BET / mean) * (shares - mean)).sum()
        below = np.log1p(-np.minimum(stakes, _LARGEST_BET / (1 - mean)) * (shares - mean)).sum()
        return max(above, below) < math.log(2 / alpha)

    middle = float(np.clip(shares.mean(), 1e-9, 1 - 1e-9))
    ends = [_edge(is_poor, middle, end) for end in (0.0, 1.0)]
    return low + (high - low) * ends[0], low + (high - low) * ends[1]


class Differences(NamedTuple):
    """Differences B - A of paired returns: most of them, and rare ones far from these, of which each counts."""

    mean: float
    deviation: float
    """Standard deviation of those that are not rare."""
    down: float
    """Share of those that are rare and negative."""
    up: float
    cost: float
    """What a rare outcome may cost: the whole return, counted from 0, or many times its usual spread."""

    @classmethod
    def of(cls, returns: np.ndarray) -> "Differences":
        """Return those of returns A and B. Shape (pairs, 2), two pairs at least."""
        values = returns[:, 1] - returns[:, 0]
        middle, spread = float(np.median(values)), _robust_deviation(values) or float(values.std())
        down, up = values < middle - _FAR * spread, values > middle + _FAR * spread
        usual = np.where(down | up, middle, values)
        whole = max(float(returns.max()), 0.0) - min(float(returns.min()), 0.0)
        cost = max(whole, *(_SPREADS * _robust_deviation(side) for side in returns.T))
        return cls(float(values.mean()), float(usual.std(ddof=1)), float(down.mean()), float(up.mean()), cost)

    def half_width(self, pairs: int, alpha: float) -> float:
        """Return half the width of the interval of the mean with so many pairs, if no other rare outcomes came.

        The asymptotic confidence sequence of I. Waudby-Smith, D. Arbour, R. Sinha, E. H. Kennedy and A. Ramdas,
        "Time-uniform central limit theory and asymptotic confidence sequences", Annals of Statistics 52, 2024: with n
        values and their standard deviation sd

            mean ± sd sqrt(2 (n rho² + 1) / (n² rho²) log(sqrt(n rho² + 1) / alpha)),

        which is tightest at n = n0 for about rho = sqrt((-2 log(alpha) + log(1 - 2 log(alpha))) / n0): here at
        `MINIMUM_PAIRS`, and with half of `alpha`, since rare outcomes take the other half.
        """
        log_alpha = math.log(alpha / 2)
        rho2 = (-2 * log_alpha + math.log(1 - 2 * log_alpha)) / MINIMUM_PAIRS
        scaled = pairs * rho2 + 1
        return self.deviation * math.sqrt(2 * scaled / (pairs**2 * rho2) * (math.log(scaled) / 2 - log_alpha))

    def bounds(self, pairs: int, alpha: float) -> tuple[float, float]:
        """Return bounds of the mean with so many pairs, of whose rare outcomes the true shares may be others."""
        least_down, most_down = rate_bounds(round(self.down * pairs), pairs, alpha / 8)
        least_up, most_up = rate_bounds(round(self.up * pairs), pairs, alpha / 8)
        half = self.half_width(pairs, alpha)
        return (
            self.mean - half - self.cost * (most_down - self.down + self.up - least_up),
            self.mean + half + self.cost * (most_up - self.up + self.down - least_down),
        )

    def enough(self, pairs: int, alpha: float) -> int | None:
        """Return about how many such pairs leave 0 outside of the bounds, beginning with `pairs`; None for too many."""
        while pairs < _MOST_PAIRS:
            low, high = self.bounds(pairs, alpha)
            if low > 0 or high < 0:
                return pairs
            pairs += pairs // 8
        return None


def _robust_deviation(values: np.ndarray) -> float:
    low, high = np.quantile(values, (0.25, 0.75))
    return float(high - low) / _QUARTILES
