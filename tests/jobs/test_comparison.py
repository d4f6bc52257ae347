"""Pairs of two directories, and an interval that keeps its promise however often it is looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.episode import EPISODE

from shoal.errors import ShoalError, UsageError
from shoal.jobs.comparison import ConfidenceSequence, Verdict, pair
from shoal.plan.job import Job, JobFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def write_jobs(out: Path, *jobs: tuple[dict[str, Any], Sequence[float]]) -> Path:
    """Write an output directory of finished jobs: changes of a job, and the returns of its episodes."""
    made: list[Job] = []
    for number, (changes, _) in enumerate(jobs):
        plain: dict[str, Any] = {"name": str(number), "task": "Ant-v5", "policy": f"{out}/model.pt"}
        made.append(Job(**plain | changes))
    for job, (_, returns) in zip(made, jobs, strict=True):
        files = JobFiles(out / job.name)
        files.path.mkdir(parents=True)
        episodes = (EPISODE | {"index": i, "seed": job.seed, "return": value} for i, value in enumerate(returns))
        files.episodes.write_text("".join(json.dumps(episode) + "\n" for episode in episodes), encoding="utf-8")
    (out / "manifest.json").write_text(json.dumps({"jobs": [asdict(job) for job in made]}), encoding="utf-8")
    return out


# Pairs


def test_pairs_are_episodes_with_equal_variation_seed_and_index(tmp_path: Path) -> None:
    slippery: dict[str, Any] = {"variation": {"friction": 0.1}}
    a = write_jobs(tmp_path / "a", ({"seed": 1}, [10, 20]), ({"seed": 2}, [30, 40]), (slippery, [50]))
    b = write_jobs(tmp_path / "b", (slippery, [55]), ({"seed": 2}, [33, 44]), ({"seed": 1}, [11, 22, 99]))
    pairs = pair(a, b)
    assert pairs.differences.tolist() == [5, 1, 3, 2, 4]  # By index, then by seed and variation.
    assert (pairs.task, pairs.unpaired, pairs.diverged) == ("Ant-v5", 1, 0)


def test_pairs_with_a_return_that_is_no_number_are_left_out_and_counted(tmp_path: Path) -> None:
    a = write_jobs(tmp_path / "a", ({}, [1.0, math.nan, 3.0]))
    b = write_jobs(tmp_path / "b", ({}, [2.0, 2.0, math.inf]))
    pairs = pair(a, b)
    assert (pairs.differences.tolist(), pairs.diverged, pairs.unpaired) == ([1.0], 2, 0)


@pytest.mark.parametrize("other", [{"seed": 2}, {"task": "Hopper-v5"}, {"variation": {"friction": 0.1}}])
def test_directories_in_which_nothing_pairs_are_both_named(tmp_path: Path, other: dict[str, Any]) -> None:
    a, b = write_jobs(tmp_path / "a", ({}, [1.0])), write_jobs(tmp_path / "b", (other, [1.0]))
    with pytest.raises(
        UsageError, match="have no finished episode with equal task, variation, seed and index"
    ) as raised:
        pair(a, b)
    assert f"A ({a}) and B ({b})" in str(raised.value)


def test_one_task_is_compared_at_a_time(tmp_path: Path) -> None:
    jobs: list[tuple[dict[str, Any], list[float]]] = [({"task": "Ant-v5"}, [1.0]), ({"task": "Hopper-v5"}, [100.0])]
    a, b = (write_jobs(tmp_path / name, *jobs) for name in "ab")
    with pytest.raises(UsageError, match="have the tasks Ant-v5, Hopper-v5: compare one task at a time"):
        pair(a, b)
    assert pair(a, b, task="Hopper-v5").task == "Hopper-v5"
    with pytest.raises(UsageError, match="no finished episode of Walker2d-v5"):
        pair(a, b, task="Walker2d-v5")


def test_the_control_is_no_side_of_a_comparison(tmp_path: Path) -> None:
    control = {"name": "0-control", "policy": "zero"}
    a = write_jobs(tmp_path / "a", (control, [-1.0]), ({}, [1.0]))
    b = write_jobs(tmp_path / "b", ({}, [2.0]), (control, [-1.0]))
    assert pair(a, b).differences.tolist() == [1.0]


def test_a_directory_with_two_policies_is_refused(tmp_path: Path) -> None:
    a = write_jobs(tmp_path / "a", ({"policy": "x.pt"}, [1.0]), ({"policy": "y.pt"}, [2.0]))
    with pytest.raises(UsageError, match=r"same episodes of x\.pt and of y\.pt"):
        pair(a, write_jobs(tmp_path / "b", ({}, [2.0])))


# The confidence sequence


def look_at_each(differences: Iterable[float], sequence: ConfidenceSequence | None = None) -> Verdict:
    """Look after each pair, and stop as soon as the verdict is sure."""
    sequence = sequence or ConfidenceSequence()
    for difference in differences:
        sequence.add(difference)
        if (verdict := sequence.verdict()).sure:
            return verdict
    return sequence.verdict()


def returns_with_falls(random: np.random.Generator, count: int) -> np.ndarray:
    """Returns of a policy that sometimes falls early."""
    return np.where(random.random(count) < 0.2, random.uniform(0, 10, count), random.normal(30, 2, count))


Draw = Callable[[np.random.Generator, int], np.ndarray]
DRAWS: dict[str, Draw] = {
    "normal": lambda random, count: random.normal(0, 3, count),
    "of returns": lambda random, count: returns_with_falls(random, count) - returns_with_falls(random, count),
    "mostly equal": lambda random, count: np.where(random.random(count) < 0.3, random.normal(0, 5, count), 0),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_looking_after_every_pair_raises_no_more_false_alarms_than_promised(draw: Draw) -> None:
    random = np.random.default_rng(0)
    alarms = sum(look_at_each(draw(random, 500)).sure for _ in range(300))
    # 5 % of 300, plus two standard errors. Ordinary intervals raise 39 % alarms.
    assert alarms <= 15 + 8


def test_skewed_differences_keep_the_promise_from_a_hundred_pairs_on() -> None:
    random = np.random.default_rng(0)
    alarms = 0
    for _ in range(300):
        alarms += look_at_each(random.exponential(2, 500) - 2, ConfidenceSequence(minimum=100)).sure
    assert alarms <= 15 + 8


def test_a_true_difference_stops_early() -> None:
    random = np.random.default_rng(1)
    verdicts = [look_at_each(random.normal(1.0, 1.5, 500)) for _ in range(50)]
    assert {verdict.which for verdict in verdicts} == {"B"}
    assert np.median([verdict.pairs for verdict in verdicts]) < 60
    assert look_at_each(random.normal(-1.0, 1.5, 500)).which == "A"


def test_identical_policies_stay_undecided() -> None:
    sequence = ConfidenceSequence()
    for _ in range(500):
        sequence.add(0.0)
        assert not sequence.verdict().sure
    verdict = sequence.verdict()
    assert (verdict.which, verdict.low, verdict.high, verdict.pairs) == ("undecided", 0.0, 0.0, 500)


def test_no_verdict_comes_before_fifty_pairs() -> None:
    verdict = look_at_each(100.0 + i for i in range(49))
    assert (verdict.which, verdict.low, verdict.high) == ("undecided", -math.inf, math.inf)
    assert verdict.text == "Undecided after 49 pairs: at least 50 are needed."
    assert look_at_each(100.0 + i for i in range(500)).pairs == 50


def test_the_interval_is_the_formulas() -> None:
    sequence = ConfidenceSequence(tightest_at=100)
    values = np.random.default_rng(2).normal(1e6, 1.0, 64)
    for value in values:
        sequence.add(value)
    rho2 = (-2 * math.log(0.05) + math.log(-2 * math.log(0.05) + 1)) / 100
    half = values.std(ddof=1) * math.sqrt(
        2 * (64 * rho2 + 1) / (64**2 * rho2) * math.log(math.sqrt(64 * rho2 + 1) / 0.05)
    )
    # Of values near a million, about ten digits of their spread remain.
    assert sequence.interval() == pytest.approx((values.mean() - half, values.mean() + half), rel=1e-14, abs=1e-8)


@given(st.integers(50, 300), st.floats(0.8, 0.99))
def test_the_interval_is_about_as_tight_as_it_can_be_where_it_was_asked_to_be(count: int, confidence: float) -> None:
    def width(tightest_at: int) -> float:
        sequence = ConfidenceSequence(confidence, tightest_at)
        for i in range(count):
            sequence.add((-1.0) ** i)
        low, high = sequence.interval()
        return high - low

    assert width(count) <= 1.001 * min(width(count // 2), width(2 * count), width(int(1.2 * count)))


def test_a_verdict_is_one_sentence() -> None:
    values = [0.5, 1.5] * 50
    assert (
        look_at_each(values).text
        == "B has the higher mean return after 50 pairs: B - A is 1 (95% interval 0.7832 to 1.217)."
    )
    assert look_at_each(-value for value in values).text.startswith(
        "A has the higher mean return after 50 pairs: B - A is -1 "
    )
    assert look_at_each([0.0] * 50).text == "Undecided after 50 pairs: B - A is 0 (95% interval 0 to 0)."


def test_a_difference_that_is_no_number_is_refused() -> None:
    with pytest.raises(ShoalError, match="A difference of returns is nan"):
        ConfidenceSequence().add(math.nan)
