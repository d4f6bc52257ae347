"""Comparison of two evaluations: what pairs of episodes tell about returns, and about failures, at every look."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal.errors import UsageError, counted
from shoal.jobs.intervals import MINIMUM_PAIRS, Differences, bounded_mean, rate_bounds
from shoal.jobs.results import is_control, iterate_episodes, read_jobs
from shoal.jobs.statistics import CONFIDENCE
from shoal.plan.job import Job

_ALPHA = 1 - CONFIDENCE
Side = Literal["A", "B", "undecided"]
Episode = dict[str, Any]
_Key = tuple[int, int, str]
"""Index, seed and variation of an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Episodes of two evaluations with equal task, variation, seed and index."""

    task: str
    pairs: list[tuple[Episode, Episode]]
    """A and B, by index, then by seed and variation, so that any beginning is balanced."""
    unpaired: int
    """Episodes of either side that the other one lacks."""
    jobs: tuple[list[Job], list[Job]]
    """Jobs of A and B."""


def pair(out_a: Path, out_b: Path) -> Iterator[Pairs]:
    """Yield the pairs of two output directories, for each task that both have. Controls are left out.

    Raises:
        UsageError: Nothing of a task pairs, or a directory has an episode of several policies.
    """
    jobs_a, jobs_b = ([job for job in read_jobs(out) if not is_control(job)] for out in (out_a, out_b))
    for task in sorted({job.task for job in jobs_a} & {job.task for job in jobs_b}) or [""]:
        of_task = [job for job in jobs_a if job.task == task], [job for job in jobs_b if job.task == task]
        a, b = _episodes(out_a, of_task[0]), _episodes(out_b, of_task[1])
        keys = sorted(a.keys() & b.keys())
        if not keys:
            raise UsageError(
                f"A ({out_a}) and B ({out_b}) have no finished episode{f' of {task}' if task else ''} with equal task, "
                "variation, seed and index: evaluate both policies in the same jobs."
            )
        unpaired = len(a) + len(b) - 2 * len(keys)
        yield Pairs(task=task, pairs=[(a[key], b[key]) for key in keys], unpaired=unpaired, jobs=of_task)


def _episodes(out: Path, jobs: Sequence[Job]) -> dict[_Key, Episode]:
    episodes: dict[_Key, Episode] = {}
    origin: dict[_Key, tuple[str, object]] = {}
    for job in jobs:
        policy, variation = (job.policy, job.config), json.dumps(job.variation, sort_keys=True)
        for episode in iterate_episodes(out, job):
            key = (episode["index"], episode["seed"], variation)
            if origin.setdefault(key, policy) != policy:
                raise UsageError(
                    f"{out} has the same episodes of {origin[key][0]} and of {job.policy}: "
                    "compare directories with one policy each."
                )
            episodes.setdefault(key, episode)
    return episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failures of two policies in the same episodes.

    An episode fails that does not succeed; where the task defines no success, one that ends before its time.
    """

    a: int
    b: int
    only_a: int
    """Episodes in which A alone failed."""
    only_b: int
    fewer: Side
    """The side that fails less often."""

    @classmethod
    def of(cls, failed: np.ndarray) -> "Failures":
        """Return those of pairs. Shape (pairs, 2).

        The test of Q. McNemar (Psychometrika 12, 1947), exact and for every look: if both fail equally often, each side
        is the one that failed alone with probability 1/2.
        """
        a, b = (int(each) for each in failed.sum(axis=0))
        only_a, only_b = (int((failed[:, one] & ~failed[:, other]).sum()) for one, other in ((0, 1), (1, 0)))
        low, high = rate_bounds(only_a, only_a + only_b, _ALPHA)
        fewer: Side = "B" if low > 1 / 2 else "A" if high < 1 / 2 else "undecided"
        return cls(a=a, b=b, only_a=only_a, only_b=only_b, fewer=fewer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What pairs of episodes tell about returns and about failures, each wrong in one comparison of twenty at most."""

    mean: float
    """Mean difference of returns B - A; NaN without pairs."""
    low: float
    """Lower end of its interval; minus infinity with too few pairs."""
    high: float
    pairs: int
    """Pairs with finite returns."""
    diverged: int
    """Pairs with a return that is not finite, which tell of failures only."""
    which: Side
    """The side with the higher mean return."""
    failures: Failures
    text: str

    @property
    def sure(self) -> bool:
        """Whether 0 lies outside the interval, so that no more pairs are needed."""
        return self.which != "undecided"


def judge(pairs: Sequence[tuple[Episode, Episode]], return_range: tuple[float, float] | None = None) -> Verdict:
    """Return what pairs of episodes tell. One may look often, and stop as soon as it is sure.

    Args:
        pairs: Episodes of A and B, the earlier ones first.
        return_range: The least and the largest return of an episode. With it, the interval is exact, and comes early;
            without it, it relies on what was seen, see `Differences`.

    Raises:
        UsageError: A return lies outside of `return_range`.
    """
    every = np.array([[each["return"] for each in pair] for pair in pairs], dtype=float).reshape(-1, 2)
    returns = every[np.isfinite(every).all(axis=1)]
    failures = Failures.of(
        np.array([[_has_failed(each) for each in pair] for pair in pairs], dtype=bool).reshape(-1, 2)
    )
    count, remark = len(returns), ""
    low, high = -math.inf, math.inf
    if return_range is not None:
        least, most = return_range
        if returns.size and not least <= returns.min() <= returns.max() <= most:
            raise UsageError(
                f"--return-range is {least:g} to {most:g}, but there are returns from {returns.min():g} to "
                f"{returns.max():g}: pass the least and the largest return that an episode can have."
            )
        low, high = bounded_mean(returns[:, 1] - returns[:, 0], least - most, most - least, _ALPHA)
    elif count >= MINIMUM_PAIRS:
        differences = Differences.of(returns)
        low, high = differences.bounds(count, _ALPHA)
        if low <= 0 <= high and abs(differences.mean) > differences.half_width(count, _ALPHA):
            enough = differences.enough(count, _ALPHA)
            remark = " Rare outcomes decide, and too few were seen"
            remark += f": about {enough:,} pairs would do." if enough else "."
    else:
        remark = f" At least {MINIMUM_PAIRS} pairs are needed, or --return-range."
    which: Side = "B" if low > 0 else "A" if high < 0 else "undecided"
    mean = float(np.mean(returns[:, 1] - returns[:, 0])) if count else math.nan
    text = _claim(which, failures, names_success=any(each["success"] is not None for pair in pairs for each in pair))
    text += f" after {counted(count, 'pair')}: B - A is {mean:.4g}"
    text += f" ({CONFIDENCE:.0%} interval {low:.4g} to {high:.4g})." if math.isfinite(high) else "."
    return Verdict(
        mean=mean,
        low=low,
        high=high,
        pairs=count,
        diverged=len(every) - count,
        which=which,
        failures=failures,
        text=text + remark,
    )


def _has_failed(episode: Episode) -> bool:
    if episode["success"] is not None:
        return not episode["success"] or episode["ended"] == "diverged"
    return episode["ended"] in {"terminated", "diverged"}


def _claim(which: Side, failures: Failures, *, names_success: bool) -> str:
    """Return who is better in what."""
    rarely = "fails less often" if names_success else "ends early less often"
    if which == failures.fewer == "undecided":
        return "Undecided"
    if which == failures.fewer:
        return f"{which} returns more, and {rarely},"
    claims = [f"{which} returns more"] * (which != "undecided")
    claims += [f"{failures.fewer} {rarely}"] * (failures.fewer != "undecided")
    return f"{', '.join(claims)}{', and the return is undecided,' if which == 'undecided' else ''}"
