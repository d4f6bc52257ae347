"""Intervals that keep their promise at every look, held to closed forms, published processes, and simulations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from shoal.jobs.intervals import MINIMUM_PAIRS, Differences, bounded_mean, rate_bounds

ALPHA = 0.05
LOOKS = (64, 128, 256, 512, 1024)
"""Those of `shoal compare TASK A B`."""
LOSS = 150.0
"""What a fall costs."""

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Draws returns of A and B. Shape (pairs, 2)."""


# Rates


@pytest.mark.parametrize("trials", [1, 10, 512])
def test_the_bound_without_a_success_is_the_closed_form(trials: int) -> None:
    # (1 - p)^n = alpha B(1/2, n + 1/2) / B(1/2, 1/2)
    share = math.exp(math.lgamma(0.5) + math.lgamma(trials + 0.5) - math.lgamma(trials + 1)) / math.pi
    low, high = rate_bounds(0, trials, ALPHA)
    assert low == 0
    assert high == pytest.approx(1 - (ALPHA * share) ** (1 / trials), rel=1e-9)


def test_a_rate_and_its_complement_have_mirrored_bounds() -> None:
    low, high = rate_bounds(3, 10, ALPHA)
    assert low < 0.3 < high
    assert rate_bounds(7, 10, ALPHA) == pytest.approx((1 - high, 1 - low), rel=1e-9)
    assert rate_bounds(0, 0, ALPHA) == (0, 1)


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01])
def test_the_bounds_of_a_rate_hold_at_every_trial(rate: float) -> None:
    random = np.random.default_rng(0)
    missed = 0
    for _ in range(200):
        counts = np.cumsum(random.random(300) < rate)
        ends = [rate_bounds(int(count), number, ALPHA) for number, count in enumerate(counts, 1)]
        missed += any(not low <= rate <= high for low, high in ends)
    assert missed <= 10 + 6  # 5 % of 200, and two standard errors.


# Bounded values


def test_at_the_ends_who_bets_against_the_mean_has_become_rich() -> None:
    values = np.random.default_rng(0).normal(2, 10, 200).clip(-50, 50)
    for end, sign in zip(bounded_mean(values, -50, 50, ALPHA), (1, -1), strict=True):
        mean, rich, total, squares = (end + 50) / 100, 1 / 2, 0.5, 0.25
        variance = 0.25
        for number, value in enumerate((values + 50) / 100, 1):  # As in section 4.4 of the paper.
            stake = math.sqrt(2 * math.log(2 / ALPHA) / (variance * number * math.log(1 + number)))
            rich *= 1 + sign * min(stake, 0.75 / (mean if sign > 0 else 1 - mean)) * (value - mean)
            total += value
            squares += (value - total / (number + 1)) ** 2
            variance = squares / (number + 1)
        assert rich == pytest.approx(1 / ALPHA, rel=1e-6)


def test_bounds_of_values_that_are_all_alike_come_near_them() -> None:
    low, high = bounded_mean(np.full(1024, 3.0), 0, 10, ALPHA)
    assert 2.9 < low < 3 < high < 3.1
    assert bounded_mean(np.array([]), 0, 10, ALPHA) == (0, 10)
    assert bounded_mean(np.zeros(1024), 0, 10, ALPHA)[0] == 0


# Pairs of returns


def walks(random: np.random.Generator, count: int, *, rate: float = 0.0, gain: float = 0.0) -> np.ndarray:
    """Returns around 100; B earns `gain` more, and falls with this rate."""
    returns = 100 + random.standard_normal((count, 2))
    returns[:, 1] += gain - LOSS * (random.random(count) < rate)
    return returns


def equal(rate: float) -> Draw:
    """B falls, and earns so much more that the mean is equal."""
    return lambda random, count: walks(random, count, rate=rate, gain=rate * LOSS)


def both_fall(random: np.random.Generator, count: int) -> np.ndarray:
    """A and B fall once in twenty episodes, each in its own."""
    return walks(random, count) - LOSS * (random.random((count, 2)) < 1 / 20)


EQUAL: dict[str, Draw] = {
    "normal": walks,
    "heavy-tailed": lambda random, count: 100 + random.standard_t(3, (count, 2)),
    "skewed": lambda random, count: 100 - np.exp(1.5 * random.standard_normal((count, 2))),
    "both fall": both_fall,
    **{f"1 in {number} falls": equal(1 / number) for number in (10, 20, 50, 100, 1000)},
}
"""Policies with equal mean returns."""


def verdicts(draw: Draw, comparisons: int, *, span: float | None = None) -> dict[str, float]:
    """Return the shares of comparisons that stop with A or B, at any look."""
    random, found = np.random.default_rng(0), {"A": 0, "B": 0}
    for _ in range(comparisons):
        returns = draw(random, LOOKS[-1])
        for pairs in LOOKS:
            low, high = -math.inf, math.inf
            if span is not None:
                low, high = bounded_mean(returns[:pairs, 1] - returns[:pairs, 0], -span, span, ALPHA)
            elif pairs >= MINIMUM_PAIRS:
                low, high = Differences.of(returns[:pairs]).bounds(pairs, ALPHA)
            if low > 0 or high < 0:
                found["B" if low > 0 else "A"] += 1
                break
    return {side: count / comparisons for side, count in found.items()}


def false_alarms(draw: Draw, comparisons: int, **options: float) -> float:
    return sum(verdicts(draw, comparisons, **options).values())


@pytest.mark.parametrize("comparisons", [200, pytest.param(2000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("draw", EQUAL.values(), ids=EQUAL)
def test_equal_means_raise_no_more_false_alarms_than_promised(draw: Draw, comparisons: int) -> None:
    assert false_alarms(draw, comparisons) <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / comparisons)


@pytest.mark.parametrize("comparisons", [50, pytest.param(2000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ["normal", "1 in 10 falls", "1 in 100 falls", "1 in 1000 falls"])
def test_with_a_range_equal_means_raise_no_more_false_alarms_than_promised(name: str, comparisons: int) -> None:
    alarms = false_alarms(EQUAL[name], comparisons, span=200.0)
    assert alarms <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / comparisons)


def test_a_policy_that_earns_a_little_more_but_falls_once_in_a_hundred_episodes_is_not_preferred() -> None:
    found = verdicts(lambda random, count: walks(random, count, rate=0.01, gain=1.0), 200)
    assert found["B"] <= 0.01  # It is worse by 0.5.


@pytest.mark.parametrize(
    ("rate", "gain", "better"), [(0.0, 2.0, "B"), (0.0, -2.0, "A"), (1 / 10, 0.0, "A"), (1 / 10, 30.0, "B")]
)
def test_a_difference_that_is_large_enough_is_found(rate: float, gain: float, better: str) -> None:
    found = verdicts(lambda random, count: walks(random, count, rate=rate, gain=gain), 50)
    assert found[better] >= 0.95


def test_with_a_range_a_difference_is_found_with_fewer_pairs() -> None:
    returns = walks(np.random.default_rng(0), 256, gain=5.0)
    low, high = bounded_mean(returns[:, 1] - returns[:, 0], -200, 200, ALPHA)
    assert 0 < low < 5 < high


def test_rare_outcomes_are_counted_apart() -> None:
    returns = np.tile([[10.0, 11.0], [10.0, 9.0]], (300, 1))
    returns[:3, 1] = -40
    seen = Differences.of(returns)
    assert (seen.down, seen.up) == (3 / 600, 0)
    assert seen.mean == pytest.approx((-50 * 3 - 1) / 600)
    assert seen.deviation == pytest.approx(1, rel=0.01)
    assert seen.cost == 51  # From 11 to -40.


@pytest.mark.parametrize(("difference", "down", "up"), [(12, 0, 3), (-12, 3, 0), (8, 0, 0), (-8, 0, 0)])
def test_a_rare_outcome_is_six_robust_deviations_away(difference: float, down: int, up: int) -> None:
    returns = np.tile([[10.0, 11.0], [10.0, 9.0]], (300, 1))  # Quartiles -1 and 1: a robust deviation is 1.48.
    returns[:3, 1] = 10 + difference
    seen = Differences.of(returns)
    assert (seen.down, seen.up) == (down / 600, up / 600)


def test_without_rare_outcomes_one_may_cost_the_whole_return() -> None:
    seen = Differences.of(np.tile([[99.0, 101.0], [100.0, 100.0]], (300, 1)))
    assert (seen.down, seen.up, seen.cost) == (0, 0, 101)
    low, high = seen.bounds(600, ALPHA)
    share = rate_bounds(0, 600, ALPHA / 8)[1]
    half = seen.half_width(600, ALPHA)
    assert (low, high) == pytest.approx((1 - half - 101 * share, 1 + half + 101 * share))


def test_half_the_width_is_the_published_formula() -> None:
    seen = Differences(mean=0.0, deviation=3.0, down=0.0, up=0.0, cost=0.0)
    log = math.log(ALPHA / 2)
    rho2 = (-2 * log + math.log(1 - 2 * log)) / MINIMUM_PAIRS
    squared = 2 * (800 * rho2 + 1) / (800**2 * rho2) * math.log(math.sqrt(800 * rho2 + 1) / (ALPHA / 2))
    assert seen.half_width(800, ALPHA) == pytest.approx(3 * math.sqrt(squared))


def test_the_number_of_pairs_that_would_do_does() -> None:
    seen = Differences(mean=1.0, deviation=1.0, down=0.0, up=0.0, cost=100.0)
    enough = seen.enough(512, ALPHA)
    assert enough is not None
    assert seen.bounds(512, ALPHA)[0] < 0 < seen.bounds(enough, ALPHA)[0]
    assert Differences(mean=0.0, deviation=1.0, down=0.0, up=0.0, cost=100.0).enough(512, ALPHA) is None
