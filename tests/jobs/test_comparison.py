"""Pairs of two directories, and what they tell about returns and failures."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.episode import EPISODE

from shoal.errors import UsageError
from shoal.jobs.comparison import Episode, Failures, Pairs, judge, pair
from shoal.plan.job import Job, JobFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shoal.jobs.comparison import Side


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


def differences(pairs: Pairs) -> list[float]:
    return [b["return"] - a["return"] for a, b in pairs.pairs]


# Pairs


def test_pairs_are_episodes_with_equal_variation_seed_and_index(tmp_path: Path) -> None:
    slippery: dict[str, Any] = {"variation": {"friction": 0.1}}
    a = write_jobs(tmp_path / "a", ({"seed": 1}, [10, 20]), ({"seed": 2}, [30, 40]), (slippery, [50]))
    b = write_jobs(tmp_path / "b", (slippery, [55]), ({"seed": 2}, [33, 44]), ({"seed": 1}, [11, 22, 99]))
    (pairs,) = pair(a, b)
    assert differences(pairs) == [5, 1, 3, 2, 4]  # By index, then by seed and variation.
    assert (pairs.task, pairs.unpaired) == ("Ant-v5", 1)


@pytest.mark.parametrize("other", [{"seed": 2}, {"task": "Hopper-v5"}, {"variation": {"friction": 0.1}}])
def test_directories_in_which_nothing_pairs_are_both_named(tmp_path: Path, other: dict[str, Any]) -> None:
    a, b = write_jobs(tmp_path / "a", ({}, [1.0])), write_jobs(tmp_path / "b", (other, [1.0]))
    with pytest.raises(
        UsageError, match=r"have no finished episode( of Ant-v5)? with equal task, variation, seed and index"
    ) as raised:
        list(pair(a, b))
    assert f"A ({a}) and B ({b})" in str(raised.value)


def test_each_task_is_compared_for_itself(tmp_path: Path) -> None:
    jobs: list[tuple[dict[str, Any], list[float]]] = [({"task": "Ant-v5"}, [1.0]), ({"task": "Hopper-v5"}, [100.0])]
    a, b = (write_jobs(tmp_path / name, *jobs) for name in "ab")
    assert [(each.task, len(each.pairs)) for each in pair(a, b)] == [("Ant-v5", 1), ("Hopper-v5", 1)]
    JobFiles(b / "1").episodes.unlink()
    with pytest.raises(UsageError, match="no finished episode of Hopper-v5"):
        list(pair(a, b))


def test_the_control_is_no_side_of_a_comparison(tmp_path: Path) -> None:
    control = {"name": "0-control", "policy": "zero"}
    a = write_jobs(tmp_path / "a", (control, [-1.0]), ({}, [1.0]))
    b = write_jobs(tmp_path / "b", ({}, [2.0]), (control, [-1.0]))
    (pairs,) = pair(a, b)
    assert differences(pairs) == [1.0]


def test_a_directory_with_two_policies_is_refused(tmp_path: Path) -> None:
    a = write_jobs(tmp_path / "a", ({"policy": "x.pt"}, [1.0]), ({"policy": "y.pt"}, [2.0]))
    with pytest.raises(UsageError, match=r"same episodes of x\.pt and of y\.pt"):
        list(pair(a, write_jobs(tmp_path / "b", ({}, [2.0]))))


# Verdicts


def episode(value: float, ended: str = "time out", *, success: bool | None = None) -> Episode:
    return EPISODE | {"return": value, "ended": ended, "success": success}


def walks(values: Sequence[float], falls: int = 0) -> list[Episode]:
    """Episodes with these returns, of which the first ones end with a fall."""
    return [episode(value, "terminated" if index < falls else "time out") for index, value in enumerate(values)]


def alternating(low: float, high: float, pairs: int = 1000) -> list[float]:
    return [low, high] * (pairs // 2)


def judged(a: Sequence[Episode], b: Sequence[Episode], **options: Any) -> Any:
    return judge(list(zip(a, b, strict=True)), **options)


def test_the_policy_with_the_higher_mean_return_is_named() -> None:
    verdict = judged(walks(alternating(10, 11)), walks(alternating(12, 13)))
    assert (verdict.which, verdict.mean, verdict.pairs, verdict.sure) == ("B", 2, 1000, True)
    assert verdict.low < 2 < verdict.high
    assert verdict.text.startswith("B returns more after 1,000 pairs: B - A is 2 (95% interval 1.8")
    swapped = judged(walks(alternating(12, 13)), walks(alternating(10, 11)))
    assert (swapped.which, swapped.mean) == ("A", -2)


def test_no_verdict_about_returns_comes_before_five_hundred_pairs() -> None:
    a, b = walks(alternating(10, 11, 498)), walks(alternating(20, 21, 498))
    verdict = judged(a, b)
    assert (verdict.which, verdict.low, verdict.high) == ("undecided", -math.inf, math.inf)
    assert verdict.text == ("Undecided after 498 pairs: B - A is 10. At least 500 pairs are needed, or --return-range.")
    assert judged([*a, *a[:2]], [*b, *b[:2]]).which == "B"
    assert judged([], []).text.startswith("Undecided after 0 pairs: B - A is nan.")


def test_with_the_range_of_returns_a_verdict_comes_early() -> None:
    verdict = judged(walks(alternating(10, 11, 64)), walks(alternating(20, 21, 64)), return_range=(0, 30))
    assert verdict.which == "B"
    with pytest.raises(UsageError, match=r"--return-range is 0 to 20, but there are returns from 10 to 21: pass"):
        judged(walks(alternating(10, 11, 64)), walks(alternating(20, 21, 64)), return_range=(0, 20))


def test_a_small_gain_waits_for_rare_outcomes() -> None:
    verdict = judged(walks(alternating(100, 101)), walks(alternating(100.5, 101.5)))
    assert verdict.which == "undecided"
    assert "Rare outcomes decide, and too few were seen: about " in verdict.text
    enough = int(verdict.text.split("about ")[1].split(" pairs")[0].replace(",", ""))
    assert judged(walks(alternating(100, 101, 2 * enough)), walks(alternating(100.5, 101.5, 2 * enough))).which == "B"


def test_equal_policies_stay_undecided() -> None:
    verdict = judged(walks(alternating(5, 6)), walks(alternating(5, 6)))
    assert (verdict.which, verdict.mean, verdict.failures.fewer) == ("undecided", 0, "undecided")
    assert "Rare outcomes" not in verdict.text


def test_the_policy_that_falls_less_is_named_beside_the_return() -> None:
    a, b = walks(alternating(10, 11), falls=12), walks(alternating(12, 13))
    assert judged(a, b).text.startswith("B returns more, and ends early less often, after 1,000 pairs: ")
    a, b = walks(alternating(10, 11)), walks(alternating(12, 13), falls=12)
    verdict = judged(a, b)
    assert verdict.text.startswith("B returns more, A ends early less often after 1,000 pairs: ")
    assert (verdict.which, verdict.failures) == ("B", Failures(a=0, b=12, only_a=0, only_b=12, fewer="A"))
    few = judged(walks(alternating(10, 11, 64), falls=12), walks(alternating(10, 11, 64)))
    assert few.text.startswith("B ends early less often, and the return is undecided, after 64 pairs: ")


def test_a_task_that_defines_success_is_judged_by_it() -> None:
    met = [episode(1.0, "terminated", success=True)] * 20
    missed = [episode(1.0, success=False)] * 20
    diverged = [episode(math.nan, "diverged", success=True)] * 20
    verdict = judged(missed, met)
    assert verdict.failures == Failures(a=20, b=0, only_a=20, only_b=0, fewer="B")
    assert verdict.text.startswith("B fails less often, and the return is undecided, after 20 pairs: ")
    assert judged(met, diverged).failures == Failures(a=0, b=20, only_a=0, only_b=20, fewer="A")


def test_a_return_that_is_no_number_counts_as_a_failure_only() -> None:
    a = [episode(1.0), episode(math.nan, "diverged"), episode(3.0)]
    b = [episode(2.0), episode(2.0), episode(math.inf, "diverged")]
    verdict = judged(a, b)
    assert (verdict.mean, verdict.pairs, verdict.diverged) == (1, 1, 2)
    assert (verdict.failures.only_a, verdict.failures.only_b) == (1, 1)


@pytest.mark.parametrize(("alone", "fewer"), [(6, "undecided"), (7, "B")])
def test_failures_of_one_side_alone_decide_from_seven_on(alone: int, fewer: Side) -> None:
    # The mixture has the likelihood B(n + 1/2, 1/2) / B(1/2, 1/2), 14.4 and 26.8 times that of equal rates: 20 decide.
    failed = np.zeros((1000, 2), dtype=bool)
    failed[:alone, 0] = True
    failed[alone : alone + 100] = True  # Both fail, which tells nothing.
    assert Failures.of(failed) == Failures(a=alone + 100, b=100, only_a=alone, only_b=0, fewer=fewer)


@pytest.mark.parametrize("comparisons", [200, pytest.param(2000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("rate", [1 / 2, 1 / 10, 1 / 100])
def test_equal_rates_of_failure_raise_no_more_false_alarms_than_promised(rate: float, comparisons: int) -> None:
    random = np.random.default_rng(0)
    alarms = 0
    for _ in range(comparisons):
        failed = random.random((1024, 2)) < rate
        alarms += any(Failures.of(failed[:pairs]).fewer != "undecided" for pairs in (64, 128, 256, 512, 1024))
    assert alarms <= comparisons / 20 + 2 * math.sqrt(comparisons / 20)


def test_a_policy_that_falls_once_in_twenty_episodes_is_told_from_one_that_does_not() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        failed = random.random((1024, 2)) < (0.0, 1 / 20)
        assert Failures.of(failed).fewer == "A"
