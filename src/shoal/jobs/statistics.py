"""Statistics of episodes, pooled: every episode counts once. Intervals of a mean and of a success rate."""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from shoal.errors import counted

CONFIDENCE = 0.95
"""Confidence of all intervals in the results."""

_CHUNK = 2**20
"""Most values that are resampled at once: 16 MiB."""


def wilson(successes: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the score interval of a success rate; (0, 1) without trials.

    Unlike the normal approximation it is good near 0 and 1, and with few trials (E. B. Wilson, "Probable inference,
    the law of succession, and statistical inference", JASA 22, 1927).
    """
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, squared = successes / trials, z * z / trials
    centre = (rate + squared / 2) / (1 + squared)
    half = z * math.sqrt(rate * (1 - rate) / trials + squared / (4 * trials)) / (1 + squared)
    # Rounding would leave the rates 0 and 1 just outside.
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == trials else centre + half


def bootstrap_mean(
    values: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return an interval of the mean of independent values: the BCa bootstrap, the same at every call.

    BCa (bias-corrected and accelerated: B. Efron, "Better bootstrap confidence intervals", JASA 82, 1987) and not
    plain percentiles: returns are skewed, because some episodes end early, and BCa shifts its ends accordingly. With
    fewer than about 20 values any bootstrap interval is too narrow.

    Args:
        values: Finite numbers, at least one. If all are equal, both ends are that number. Shape (count,).
        confidence: Probability that the interval covers the mean.
        resamples: Number of bootstrap samples.
        seed: Seed of the resampling.
    """
    numbers = np.asarray(values, dtype=np.float64)
    spread = np.ptp(numbers)
    if spread == 0:
        return float(numbers[0]), float(numbers[0])
    mean = numbers.mean()
    random = np.random.default_rng(seed)
    means = np.empty(resamples)
    rows = max(1, _CHUNK // numbers.size)
    for start in range(0, resamples, rows):
        chunk = means[start : start + rows]
        chunk[:] = numbers[random.integers(numbers.size, size=(chunk.size, numbers.size))].mean(axis=1)
    normal = NormalDist()
    # Ties lie on both sides and count half. A share of 0 or 1 has no quantile.
    below = (np.sum(means < mean) + np.sum(means <= mean)) / 2
    bias = normal.inv_cdf(min(max(below, 0.5), resamples - 0.5) / resamples)
    apart = (numbers - mean) / spread
    acceleration = np.sum(apart**3) / (6 * np.sum(apart**2) ** 1.5)
    shifted = [bias + normal.inv_cdf((1 + sign * confidence) / 2) for sign in (-1, 1)]
    low, high = np.quantile(means, [normal.cdf(bias + each / (1 - acceleration * each)) for each in shifted])
    return float(low), float(high)


class Pool:
    """Accumulates episodes, of each of which two numbers are kept."""

    def __init__(self) -> None:
        self._returns, self._lengths = array("d"), array("d")
        self._ended, self._counts = Counter[str](), Counter[str]()
        self._sums = {kind: defaultdict[str, float](float) for kind in ("terms", "metrics")}
        self._finite = {kind: Counter[str]() for kind in self._sums}

    def add(self, episode: Mapping[str, Any]) -> None:
        """Count an episode: an object of `episodes.jsonl`."""
        self._returns.append(episode["return"])
        self._lengths.append(episode["length"])
        self._ended[episode["ended"]] += 1
        self._counts["met_at_reset"] += bool(episode["met_at_reset"])
        self._counts["defined"] += episode["success"] is not None
        if episode["success"] is not None and not episode["met_at_reset"]:
            self._counts["trials"] += 1
            self._counts["successes"] += bool(episode["success"])
        for kind, sums in self._sums.items():
            for name, value in episode[kind].items():
                is_finite = math.isfinite(value)
                sums[name] += value if is_finite else 0.0
                self._finite[kind][name] += is_finite

    def summary(self) -> dict[str, Any]:
        """Return the statistics of the episodes so far in plain values: None for a mean of no value.

        Values that are not finite, such as the return of an environment that diverged, are left out of the means;
        `return.left_out` counts these returns. `success` is None where the task defines no success. Episodes whose
        success condition held at reset prove nothing: `met_at_reset` counts them, the success rate leaves them out.
        """
        returns = np.array(self._returns)
        means = {
            kind: {
                name: total / self._finite[kind][name] if self._finite[kind][name] else None
                for name, total in sums.items()
            }
            for kind, sums in self._sums.items()
        }
        return {
            "episodes": returns.size,
            "return": _return_statistics(returns[np.isfinite(returns)])
            | {"left_out": int(np.sum(~np.isfinite(returns)))},
            "length": {"mean": float(np.mean(self._lengths)) if returns.size else None},
            "ended": dict(sorted(self._ended.items())),
            "diverged": self._ended["diverged"],
            "met_at_reset": self._counts["met_at_reset"],
            "success": self._success() if self._counts["defined"] else None,
            **means,
        }

    def _success(self) -> dict[str, Any]:
        trials, successes = self._counts["trials"], self._counts["successes"]
        low, high = wilson(successes, trials)
        rate = successes / trials if trials else None
        return {"rate": rate, "low": low, "high": high, "successes": successes, "episodes": trials}


def _return_statistics(returns: np.ndarray) -> dict[str, float | None]:
    if not returns.size:
        return dict.fromkeys(("mean", "low", "high", "std", "min", "max"))
    low, high = bootstrap_mean(returns)
    std = float(returns.std(ddof=1)) if returns.size > 1 else None
    ends = {"min": float(returns.min()), "max": float(returns.max())}
    return {"mean": float(returns.mean()), "low": low, "high": high, "std": std, **ends}


def summarize(episodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of episodes, see `Pool.summary`."""
    pool = Pool()
    for episode in episodes:
        pool.add(episode)
    return pool.summary()


def sentence_of(summary: Mapping[str, Any]) -> str:
    """Return statistics in one line, such as ``30 episodes, with 95% intervals: return 17.60 [17.31, 17.82], ...``."""
    returns, success, begun = summary["return"], summary["success"], summary["met_at_reset"]
    said = ["no finite return"]
    if returns["mean"] is not None:
        said = ["return {mean:.2f} [{low:.2f}, {high:.2f}]".format(**returns)]
    if summary["length"]["mean"] is not None:
        said.append(f"length {summary['length']['mean']:.1f}")
    if cut := summary["ended"].get("time out", 0):
        said.append(f"{cut} of {summary['episodes']} reached the time limit")
    if success is not None and success["rate"] is None:
        said.append(f"success unknown, as all {begun} met it in the first step")
    elif success is not None:
        without = f" of {success['episodes']} episodes, without {begun} that met it in the first step" if begun else ""
        said.append("success {rate:.0%} [{low:.0%}, {high:.0%}]".format(**success) + without)
    return f"{counted(summary['episodes'], 'episode')}, with {CONFIDENCE:.0%} intervals: {', '.join(said)}"
