"""Simulate what `shoal compare` and `evaluate` promise: print false alarms, power and coverage as tables for the pages.

    python docs/simulate_intervals.py --comparisons 2000

Returns are drawn as those of robots are: a usual one with noise, and now and then a fall that costs more than it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

import numpy as np

from shoal.jobs.comparison import Failures
from shoal.jobs.intervals import MINIMUM_PAIRS, Differences, bounded_mean
from shoal.jobs.statistics import CONFIDENCE, bootstrap_mean, wilson

ALPHA = 1 - CONFIDENCE
LOOKS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Numbers of pairs after which `shoal compare TASK A B --num-episodes 4096` looks."""
USUAL, LOSS = 100.0, 150.0
"""Mean of usual returns, whose standard deviation is 1, and what a fall costs."""
SPAN = 200.0
"""With `--return-range -75 125`: the largest difference of two returns."""

Draw = Callable[[np.random.Generator, int], np.ndarray]


def draw_of(rate: float = 0.0, gain: float = 0.0, rate_of_a: float = 0.0) -> Draw:
    """Return what draws returns of A and B, shape (pairs, 2): B earns `gain` more; they fall with their rates."""

    def draw(random: np.random.Generator, pairs: int) -> np.ndarray:
        falls = random.random((pairs, 2)) < (rate_of_a, rate)
        return USUAL + random.standard_normal((pairs, 2)) + (0.0, gain) - LOSS * falls

    return draw


UNBOUNDED: dict[str, Draw] = {
    "Student's t with 3 degrees of freedom": lambda random, pairs: USUAL + random.standard_t(3, (pairs, 2)),
    "lognormal losses, sigma 1.5": lambda random, pairs: USUAL - np.exp(1.5 * random.standard_normal((pairs, 2))),
}
EQUAL: dict[str, Draw] = {
    "normal": draw_of(),
    **UNBOUNDED,
    **{f"B falls 1 in {number}": draw_of(1 / number, LOSS / number) for number in (10, 20, 50, 100, 1000)},
    **{f"both fall 1 in {number}": draw_of(1 / number, 0.0, 1 / number) for number in (20, 100)},
}
"""Pairs of policies with equal mean returns."""
UNEQUAL: dict[str, tuple[Draw, str]] = {
    "B earns 1 more": (draw_of(gain=1.0), "B"),
    "B earns 2 more": (draw_of(gain=2.0), "B"),
    "B earns 1 more, and falls 1 in 100: worse by 0.5": (draw_of(1 / 100, 1.0), "A"),
    "B falls 1 in 50: worse by 3": (draw_of(1 / 50), "A"),
    "B falls 1 in 10: worse by 15": (draw_of(1 / 10), "A"),
    "both fall 1 in 20, B earns 10 more": (draw_of(1 / 20, 10.0, 1 / 20), "B"),
}
EPISODES = (64, 256, 1024)


def bounds(returns: np.ndarray, *, exact: bool) -> tuple[float, float]:
    """Return the interval of the mean difference."""
    if exact:
        return bounded_mean(returns[:, 1] - returns[:, 0], -SPAN, SPAN, ALPHA)
    if len(returns) < MINIMUM_PAIRS:
        return -math.inf, math.inf
    return Differences.of(returns).bounds(len(returns), ALPHA)


def verdicts(draw: Draw, comparisons: int, looks: tuple[int, ...], *, exact: bool) -> dict[str, float]:
    """Return the shares of comparisons that say A and B, at any look."""
    random, found = np.random.default_rng(0), {"A": 0, "B": 0}
    for _ in range(comparisons):
        returns = draw(random, looks[-1])
        for pairs in looks:
            low, high = bounds(returns[:pairs], exact=exact)
            if low > 0 or high < 0:
                found["B" if low > 0 else "A"] += 1
                break
    return {side: count / comparisons for side, count in found.items()}


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def print_comparisons(comparisons: int) -> None:
    """Print false alarms and power of `shoal compare`."""
    say(f"\nFalse alarms of {comparisons:,} comparisons of equal means, looks at {', '.join(map(str, LOOKS))}:\n")
    say("| returns | without a range | with `--return-range` |\n| --- | --- | --- |")
    for name, draw in EQUAL.items():
        plain = sum(verdicts(draw, comparisons, LOOKS, exact=False).values())
        exact = "no range"
        if name not in UNBOUNDED:
            exact = f"{sum(verdicts(draw, comparisons, LOOKS, exact=True).values()):.1%}"
        say(f"| {name} | {plain:.1%} | {exact} |")
    say("\nShare of comparisons that find the better policy within 1,024 and 4,096 pairs, and the worse one:\n")
    say("| policies | 1,024 | 4,096 | the worse one | 1,024 with a range | 4,096 |")
    say("| --- | --- | --- | --- | --- | --- |")
    for name, (draw, better) in UNEQUAL.items():
        cells: list[str] = []
        for exact in (False, True):
            number = comparisons // (8 if exact else 2)
            few, many = (verdicts(draw, number, looks, exact=exact) for looks in (LOOKS[:5], LOOKS))
            cells += [f"{few[better]:.0%}", f"{many[better]:.0%}"]
            if not exact:
                cells.append(f"{many['A' if better == 'B' else 'B']:.1%}")
        say(f"| {name} | {' | '.join(cells)} |")


def print_failures(comparisons: int) -> None:
    """Print how often `shoal compare` says that one policy fails less often, at any look."""
    say(f"\nShares of {comparisons:,} comparisons that find one policy to fail less often than the other:\n")
    say("| failures of A and of B | A, within 1,024 pairs | B | A, within 4,096 pairs | B |")
    say("| --- | --- | --- | --- | --- |")
    for of_a, of_b in ((2, 2), (10, 10), (50, 50), (100, 100), (50, 20), (100, 50), (1000, 100)):
        random, cells = np.random.default_rng(0), list[str]()
        for looks in (LOOKS[:5], LOOKS):
            found = {"A": 0, "B": 0, "undecided": 0}
            for _ in range(comparisons):
                failed = random.random((looks[-1], 2)) < (1 / of_a, 1 / of_b)
                sides = (Failures.of(failed[:pairs]).fewer for pairs in looks)
                found[next((side for side in sides if side != "undecided"), "undecided")] += 1
            cells += [f"{found[side] / comparisons:.1%}" for side in "AB"]
        say(f"| 1 in {of_a} and 1 in {of_b} | {' | '.join(cells)} |")


def print_coverage(evaluations: int) -> None:
    """Print how often the intervals of `evaluate` cover the true mean, and the true success rate."""
    say(f"\nCoverage of the 95 % interval of a mean return, {evaluations:,} evaluations:\n")
    say(f"| returns | {' | '.join(f'{number:,} episodes' for number in EPISODES)} |\n| --- | --- | --- | --- |")
    singles: dict[str, tuple[Draw, float]] = {
        "normal": (draw_of(), USUAL),
        "Student's t with 3 degrees of freedom": (UNBOUNDED["Student's t with 3 degrees of freedom"], USUAL),
        **{f"falls 1 in {n}": (draw_of(1 / n), USUAL - LOSS / n) for n in (10, 20, 50, 100, 1000)},
    }
    for name, (draw, mean) in singles.items():
        random, cells = np.random.default_rng(0), list[str]()
        for episodes in EPISODES:
            ends = [bootstrap_mean(draw(random, episodes)[:, 1]) for _ in range(evaluations)]
            cells.append(f"{np.mean([low <= mean <= high for low, high in ends]):.1%}")
        say(f"| {name} | {' | '.join(cells)} |")
    for rate in (0.5, 0.9, 0.98, 0.99):
        random, cells = np.random.default_rng(0), list[str]()
        for episodes in EPISODES:
            ends = [wilson(int(random.binomial(episodes, rate)), episodes) for _ in range(evaluations)]
            cells.append(f"{np.mean([low <= rate <= high for low, high in ends]):.1%}")
        say(f"| success in {rate:.0%} | {' | '.join(cells)} |")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=2000)
    comparisons = parser.parse_args().comparisons
    print_comparisons(comparisons)
    print_failures(comparisons)
    print_coverage(comparisons)


if __name__ == "__main__":
    main()
