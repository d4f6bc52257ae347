"""Results of output directories as workers write them: finished, failed, unfinished and damaged jobs."""

from __future__ import annotations

import csv
import json
import math
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from support.episode import EPISODE

from shoal.errors import UsageError
from shoal.jobs.comparison import pair
from shoal.jobs.ledger import state_of
from shoal.jobs.results import is_control, iterate_episodes, read_jobs, write_results, write_summary
from shoal.jobs.statistics import summarize
from shoal.plan.job import Job, JobFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def make_job(name: str, **changes: Any) -> Job:
    plain: dict[str, Any] = {"name": name, "task": "Cartpole-Swingup", "policy": "/runs/a/model.pt"}
    return Job(**plain | changes)


def write_manifest(out: Path, *jobs: Job) -> None:
    manifest = {"shoal": "1.2.3", "started": "2026-01-01T00:00:00", "command": ["evaluate"]}
    text = json.dumps({**manifest, "jobs": [asdict(job) for job in jobs]})
    (out / "manifest.json").write_text(text, encoding="utf-8")


def finish(out: Path, job: Job, returns: Sequence[float], **changes: Any) -> list[dict[str, Any]]:
    """Write the episodes of a job, with these returns."""
    plain: dict[str, Any] = {"length": 500, "ended": "time out", "success": None, "met_at_reset": False}
    plain |= {"terms": {"upright": 0.5}, "metrics": {}} | changes
    episodes = [{"index": i, "seed": job.seed, "return": value, **plain} for i, value in enumerate(returns)]
    write_lines(JobFiles(out / job.name).episodes, episodes)
    return episodes


def fail(out: Path, job: Job, *errors: str, part: int = 0) -> None:
    """Write failed attempts of a part."""
    failures = [{"part": part, "rank": 1, "host": "node", "error": error, "time": "now"} for error in errors]
    write_lines(JobFiles(out / job.name).failures, failures)


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


# Reading


def test_jobs_come_back_from_the_manifest(tmp_path: Path) -> None:
    jobs = [make_job("a", variation={"friction": 0.5}, num_episodes=10), make_job("b", seed=3)]
    write_manifest(tmp_path, *jobs)
    assert read_jobs(tmp_path) == jobs


def test_a_directory_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"manifest\.json cannot be read \(No such file"):
        read_jobs(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"jobs": [{"name": "a", "colour": "red"}]}', '{"jobs": 3}'])
def test_a_manifest_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"manifest\.json"):
        read_jobs(tmp_path)


@pytest.mark.parametrize("name", ["../b", "/b", "..", "", "a/b"])
def test_a_job_outside_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    write_manifest(tmp_path, make_job(name))
    with pytest.raises(UsageError, match="no name of a directory"):
        read_jobs(tmp_path)


def test_episodes_are_those_of_a_finished_job(tmp_path: Path) -> None:
    done, waiting = make_job("done"), make_job("waiting")
    assert [each["return"] for each in finish(tmp_path, done, [1.0, 2.0])] == [1.0, 2.0]
    assert [each["index"] for each in iterate_episodes(tmp_path, done)] == [0, 1]
    assert [*iterate_episodes(tmp_path, waiting)] == []


def test_a_return_that_is_no_number_is_read(tmp_path: Path) -> None:
    job = make_job("a")
    finish(tmp_path, job, [math.nan])
    assert math.isnan(next(iterate_episodes(tmp_path, job))["return"])


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    job = make_job("a")
    finish(tmp_path, job, [1.0])
    with JobFiles(tmp_path / "a").episodes.open("a", encoding="utf-8") as file:
        file.write('{"index": 1, "ret')
    with pytest.raises(UsageError, match=r"episodes\.jsonl cannot be read \(line 2: "):
        list(iterate_episodes(tmp_path, job))


NONSENSE = ["word", "[]", "{}", "5", '{"index": "one"}', json.dumps(EPISODE | {"terms": {"a": "b"}})]


@pytest.mark.parametrize("line", NONSENSE)
def test_an_episode_of_nonsense_is_refused_by_all_that_read_it(tmp_path: Path, line: str) -> None:
    job = make_job("a")
    write_manifest(tmp_path, job)
    finish(tmp_path, job, [1.0])
    with JobFiles(tmp_path / "a").episodes.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    for read in (write_results, lambda out: write_summary(out, job), lambda out: list(pair(out, out))):
        with pytest.raises(UsageError, match=r"episodes\.jsonl cannot be read \(line 2: .+\): remove it, and evaluate"):
            read(tmp_path)


@pytest.mark.parametrize("line", [*NONSENSE[:4], '{"part": "one", "rank": 0, "error": ""}'])
def test_a_failure_of_nonsense_is_refused_by_all_that_read_it(tmp_path: Path, line: str) -> None:
    job = make_job("a")
    write_manifest(tmp_path, job)
    fail(tmp_path, job, "broken")
    with JobFiles(tmp_path / "a").failures.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    for read in (write_results, lambda out: state_of(out, job)):
        with pytest.raises(UsageError, match=r"failures\.jsonl cannot be read \(line 2: .+\): remove it"):
            read(tmp_path)


def test_a_pipe_in_place_of_results_is_refused(tmp_path: Path) -> None:
    job = make_job("a")
    write_manifest(tmp_path, job)
    (tmp_path / "a").mkdir()
    os.mkfifo(JobFiles(tmp_path / "a").episodes)
    with pytest.raises(UsageError, match=r"episodes\.jsonl cannot be read \(it is no regular file\)"):
        list(iterate_episodes(tmp_path, job))


# Writing


def test_a_summary_is_the_statistics_of_the_episodes(tmp_path: Path) -> None:
    job = make_job("a")
    episodes = finish(tmp_path, job, [1.0, 2.0, 6.0])
    summary = write_summary(tmp_path, job)
    assert summary == summarize(episodes) == json.loads((tmp_path / "a" / "summary.json").read_text())


def test_results_are_written_as_they_are_returned(tmp_path: Path) -> None:
    job = make_job("a", seed=4)
    write_manifest(tmp_path, job)
    episodes = finish(tmp_path, job, [1.0, 3.0])
    results = write_results(tmp_path)
    assert results == json.loads((tmp_path / "results.json").read_text())
    assert (results["shoal"], results["command"]) == ("1.2.3", ["evaluate"])
    (row,) = results["jobs"]
    assert (row["name"], row["seed"], row["state"], row["failed_attempts"]) == ("a", 4, "finished", 0)
    assert row["summary"] == summarize(episodes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "manifest.json", "results.csv", "results.json"]


def test_a_job_is_failed_once_a_part_has_used_its_retries(tmp_path: Path) -> None:
    jobs = [make_job(name, retries=1) for name in ("finished", "failed", "unfinished", "waiting")]
    write_manifest(tmp_path, *jobs)
    finish(tmp_path, jobs[0], [1.0])
    fail(tmp_path, jobs[0], "it was lost")
    fail(tmp_path, jobs[1], "first", "second", part=2)
    fail(tmp_path, jobs[2], "first")
    rows = write_results(tmp_path)["jobs"]
    assert [row["state"] for row in rows] == ["finished", "failed", "unfinished", "unfinished"]
    assert [row["failed_attempts"] for row in rows] == [1, 2, 1, 0]
    assert [row["last_error"] for row in rows] == ["it was lost", "second", "first", None]
    assert [row["summary"] is None for row in rows] == [False, True, True, True]


def test_a_failure_that_was_cut_off_does_not_hide_the_others(tmp_path: Path) -> None:
    job = make_job("a")
    write_manifest(tmp_path, job)
    fail(tmp_path, job, "first")
    with JobFiles(tmp_path / "a").failures.open("a", encoding="utf-8") as file:
        file.write('{"part": 0, "er')
    assert write_results(tmp_path)["jobs"][0]["failed_attempts"] == 1


def test_episodes_are_pooled_over_seeds_and_not_their_means(tmp_path: Path) -> None:
    jobs = [make_job("a", seed=1), make_job("b", seed=2), make_job("c", seed=3)]
    write_manifest(tmp_path, *jobs)
    episodes = finish(tmp_path, jobs[0], [0.0]) + finish(tmp_path, jobs[1], [3.0, 3.0, 6.0])
    (group,) = write_results(tmp_path)["groups"]
    assert (group["seeds"], group["jobs"], group["finished"]) == ([1, 2, 3], ["a", "b", "c"], ["a", "b"])
    assert group["summary"]["return"]["mean"] == 3.0  # The mean of the means is 2.
    assert group["summary"] == summarize(episodes)


@pytest.mark.parametrize(
    "other",
    [{"task": "Ant-v5"}, {"policy": "/runs/b/model.pt"}, {"config": {"gain": 2}}, {"variation": {"friction": 0.5}}],
)
def test_jobs_under_different_conditions_are_not_pooled(tmp_path: Path, other: dict[str, Any]) -> None:
    jobs = [make_job("a", seed=1), make_job("b", seed=2, **other)]
    write_manifest(tmp_path, *jobs)
    assert [group["jobs"] for group in write_results(tmp_path)["groups"]] == [["a"], ["b"]]


def test_variations_in_another_order_are_pooled(tmp_path: Path) -> None:
    jobs = [make_job("a", variation={"x": 1, "y": 2}), make_job("b", variation={"y": 2, "x": 1}, seed=2)]
    write_manifest(tmp_path, *jobs)
    assert [group["jobs"] for group in write_results(tmp_path)["groups"]] == [["a", "b"]]


def test_an_episode_of_two_jobs_counts_once(tmp_path: Path) -> None:
    # Two policies on one task have the same control each.
    jobs = [make_job(f"{name}-control", policy="zero") for name in "ab"]
    write_manifest(tmp_path, *jobs)
    finish(tmp_path, jobs[0], [1.0, 2.0])
    finish(tmp_path, jobs[1], [1.0, 2.0, 6.0])
    (group,) = write_results(tmp_path)["groups"]
    assert group["summary"]["episodes"] == 3
    assert group["summary"]["return"]["mean"] == 3.0


def test_episodes_of_one_environment_all_count(tmp_path: Path) -> None:
    job = make_job("a", num_steps=1000)
    write_manifest(tmp_path, job)
    episodes = finish(tmp_path, job, [1.0, 2.0])
    write_lines(JobFiles(tmp_path / "a").episodes, [each | {"index": 0} for each in episodes])
    assert write_results(tmp_path)["groups"][0]["summary"]["episodes"] == 2


def test_the_zero_action_control_is_a_group_by_itself(tmp_path: Path) -> None:
    jobs = [make_job("a"), make_job("a-control", policy="zero"), make_job("zero", policy="zero")]
    jobs.append(make_job("trained-control"))
    assert [is_control(job) for job in jobs] == [False, True, False, False]
    write_manifest(tmp_path, *jobs)
    results = write_results(tmp_path)
    assert [row["control"] for row in results["jobs"]] == [False, True, False, False]
    groups = {tuple(group["jobs"]): group["control"] for group in results["groups"]}
    assert groups == {("a", "trained-control"): False, ("a-control",): True, ("zero",): False}


def test_the_table_has_a_line_for_each_job(tmp_path: Path) -> None:
    jobs = [make_job("a", variation={"friction": 0.5}), make_job("b", seed=2), make_job("c, quoted")]
    write_manifest(tmp_path, *jobs)
    finish(tmp_path, jobs[0], [1.0, 3.0], success=True)
    finish(tmp_path, jobs[1], [5.0], terms={"effort": -1.0})
    fail(tmp_path, jobs[2], "it was lost")
    write_results(tmp_path)
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        a, b, c = csv.DictReader(file)
    assert json.loads(a["variation"]) == {"friction": 0.5}
    assert (a["return.mean"], a["success.rate"], a["terms.upright"], a["terms.effort"]) == ("2.0", "1.0", "0.5", "")
    assert (b["return.mean"], b["success.rate"], b["terms.effort"], b["ended.time out"]) == ("5.0", "", "-1.0", "1")
    assert (c["name"], c["state"], c["last_error"], c["episodes"]) == ("c, quoted", "unfinished", "it was lost", "")


def test_results_are_written_anew_once_more_jobs_have_finished(tmp_path: Path) -> None:
    jobs = [make_job("a"), make_job("b")]
    write_manifest(tmp_path, *jobs)
    assert [row["state"] for row in write_results(tmp_path)["jobs"]] == ["unfinished"] * 2
    finish(tmp_path, jobs[1], [1.0])
    assert [row["state"] for row in write_results(tmp_path)["jobs"]] == ["unfinished", "finished"]
