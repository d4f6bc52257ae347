"""Intervals against scipy's and against what they promise; summaries against numbers worked out by hand."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from shoal.jobs.statistics import bootstrap_mean, summarize, wilson


def episode(index: int = 0, **changes: Any) -> dict[str, Any]:
    """An object of `episodes.jsonl`."""
    plain: dict[str, Any] = {"index": index, "seed": 1, "return": 1.0, "length": 500, "ended": "time out"}
    return plain | {"success": None, "met_at_reset": False, "terms": {}, "metrics": {}} | changes


# Success rates


@given(st.integers(1, 5000), st.data(), st.floats(0.5, 0.999))
def test_wilson_is_scipys(trials: int, data: st.DataObject, confidence: float) -> None:
    successes = data.draw(st.integers(0, trials))
    theirs = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_no_trials_say_nothing_about_the_rate() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 10_000))
def test_rates_0_and_1_lie_within_their_interval(trials: int) -> None:
    assert wilson(0, trials)[0] == 0.0
    assert wilson(trials, trials)[1] == 1.0


# The mean


def test_the_interval_of_a_mean_is_scipys_bca() -> None:
    values = np.random.default_rng(3).lognormal(sigma=1.5, size=15)  # Few and skewed, so that both corrections matter.
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=1).confidence_interval
    # The ends of 20,000 resamples scatter by about a hundredth of the standard deviation of the mean.
    tolerance = 0.1 * values.std() / math.sqrt(values.size)
    assert bootstrap_mean(values, resamples=20_000) == pytest.approx((theirs.low, theirs.high), abs=tolerance)


def test_the_interval_covers_the_mean_of_skewed_returns_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    # Most episodes last to the end, and some fall early.
    samples = np.where(
        random.random((400, 60)) < 0.2, random.uniform(0, 10, (400, 60)), random.normal(30, 2, (400, 60))
    )
    mean = 0.2 * 5 + 0.8 * 30
    intervals = [bootstrap_mean(sample, resamples=500) for sample in samples]
    missed_below = np.mean([high < mean for _, high in intervals])
    missed_above = np.mean([low > mean for low, _ in intervals])
    # 0.025 on each side, plus three standard errors of 400 trials.
    assert max(missed_below, missed_above) < 0.025 + 0.024
    assert missed_below + missed_above > 0.015


def test_an_interval_is_the_same_at_every_call() -> None:
    values = np.random.default_rng(0).normal(size=20)
    assert bootstrap_mean(values) == bootstrap_mean(values) != bootstrap_mean(values, seed=1)


@pytest.mark.parametrize("values", [[3.25], [0.1] * 7])
def test_equal_values_have_an_interval_of_no_width(values: list[float]) -> None:
    assert bootstrap_mean(values) == (values[0], values[0])


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=30))
def test_an_interval_lies_among_the_values(values: list[float]) -> None:
    low, high = bootstrap_mean(values, resamples=100)
    slack = 1e-12 * max(map(abs, values))
    assert min(values) - slack <= low <= high <= max(values) + slack


def test_many_episodes_are_resampled_in_little_memory() -> None:
    values = np.random.default_rng(0).normal(5.0, 1.0, 100_000)
    tracemalloc.start()
    low, high = bootstrap_mean(values, resamples=50)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6  # All resamples at once are 80 MB of indices and values.
    assert low == pytest.approx(5.0, abs=0.02)
    assert high == pytest.approx(5.0, abs=0.02)


# Summaries


def test_each_episode_counts_once() -> None:
    summary = summarize(episode(index, **{"return": float(index), "length": 10 * index}) for index in range(1, 5))
    assert summary["episodes"] == 4
    returns = summary["return"]
    assert (returns["mean"], returns["min"], returns["max"], returns["left_out"]) == (2.5, 1.0, 4.0, 0)
    assert returns["std"] == pytest.approx(math.sqrt(5 / 3))
    assert (returns["low"], returns["high"]) == bootstrap_mean([1, 2, 3, 4])
    assert summary["length"] == {"mean": 25.0}


def test_returns_that_are_no_number_are_left_out_and_counted() -> None:
    ends = {3.0: "time out", math.nan: "diverged", 5.0: "terminated"}
    summary = summarize(episode(**{"return": value, "ended": ended}) for value, ended in ends.items())
    assert (summary["return"]["mean"], summary["return"]["left_out"]) == (4.0, 1)
    assert (summary["episodes"], summary["diverged"]) == (3, 1)
    assert summary["ended"] == {"diverged": 1, "terminated": 1, "time out": 1}


def test_a_job_whose_episodes_all_diverged_has_no_mean() -> None:
    summary = summarize([episode(**{"return": math.nan, "ended": "diverged", "terms": {"upright": math.nan}})])
    assert summary["return"] == {**dict.fromkeys(("mean", "low", "high", "std", "min", "max")), "left_out": 1}
    assert summary["terms"] == {"upright": None}


def test_one_episode_has_no_standard_deviation() -> None:
    assert summarize([episode()])["return"]["std"] is None


def test_no_episodes_have_no_statistics() -> None:
    summary = summarize([])
    assert (summary["episodes"], summary["return"]["mean"], summary["length"]["mean"]) == (0, None, None)


def test_episodes_met_at_reset_are_counted_apart_from_the_success_rate() -> None:
    outcomes = [(True, False), (True, False), (False, False), (True, True), (False, True)]
    summary = summarize(episode(success=success, met_at_reset=met) for success, met in outcomes)
    low, high = wilson(2, 3)
    assert summary["success"] == {"rate": 2 / 3, "low": low, "high": high, "successes": 2, "episodes": 3}
    assert summary["met_at_reset"] == 2
    assert summary["episodes"] == 5


def test_a_task_that_defines_no_success_has_no_rate() -> None:
    assert summarize([episode(), episode()])["success"] is None


def test_a_rate_is_unknown_if_every_episode_was_met_at_reset() -> None:
    success = summarize([episode(success=True, met_at_reset=True)])["success"]
    assert success == {"rate": None, "low": 0.0, "high": 1.0, "successes": 0, "episodes": 0}


def test_terms_and_metrics_are_means_of_the_episodes_that_have_them() -> None:
    summary = summarize(
        [
            episode(terms={"upright": 1.0, "effort": -2.0}, metrics={"distance": 1.0}),
            episode(terms={"upright": 4.0, "effort": math.nan}, metrics={}),
        ]
    )
    assert summary["terms"] == {"upright": 2.5, "effort": -2.0}
    assert summary["metrics"] == {"distance": 1.0}
