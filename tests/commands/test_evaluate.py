"""Planning of `evaluate`: jobs of flags, their order, and what is refused before anything runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shoal.cli.parse import parse
from shoal.commands.evaluate import make_plan
from shoal.config.plain import to_plain
from shoal.errors import UsageError
from shoal.plan.rundir import RunDir
from shoal.run_record import trains

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.job import EvaluatePlan

TASK = "Cartpole-Swingup"
CPU = ("--gpu-ids", "None")


def plan_of(where: Path, *words: str) -> EvaluatePlan:
    return make_plan(*parse("evaluate", [*words, *CPU, "--log-root", str(where)]))


def test_flags_make_a_grid_of_jobs(tmp_path: Path) -> None:
    plan = plan_of(
        *(tmp_path, TASK, "--checkpoint", "zero", "random", "--seeds", "3", "4", "--num-episodes", "10"),
        *("--env.episode-length-s", "0.5", "--num-envs", "5", "--control"),
    )
    found = {(job.policy, job.seed, job.env["episode_length_s"], job.num_envs, job.num_episodes) for job in plan.jobs}
    assert found == {(policy, seed, 0.5, 5, 10) for policy in ("zero", "random") for seed in (3, 4)}
    assert len({job.name for job in plan.jobs}) == len(plan.jobs) == 8, "each with a control"
    assert plan.num_parts == 16
    assert plan.launch_mode == "in process"
    assert plan_of(tmp_path, TASK, "--policy", "zero", "--nproc-per-node", "2").launch_mode == "spawned"


def test_the_job_that_took_longest_before_comes_first(tmp_path: Path) -> None:
    words = (TASK, "--checkpoint", "zero", "random", "--out", str(tmp_path / "new"))
    plan = plan_of(tmp_path, *words)
    names = [job.name for job in plan.jobs]
    earlier = tmp_path / "earlier"
    for name, seconds in zip(names, (1.0, 2.0), strict=True):
        (earlier / name).mkdir(parents=True)
        lines = [json.dumps({"part": part, "rank": 0, "seconds": seconds}) for part in range(2)]
        (earlier / name / "timing.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    manifest = {"jobs": [to_plain(job) for job in plan.jobs]}
    (earlier / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert [job.name for job in plan_of(tmp_path, *words).jobs] == names[::-1]
    assert [job.name for job in plan_of(tmp_path, *words, "--assignment", "static").jobs] == names


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((TASK, "--jobs", "jobs.yaml"), r"The task Cartpole-Swingup was passed with --jobs"),
        (("--jobs", "jobs.yaml", "--env.decimation", "2"), r"A flag of the environment or of the learner was passed"),
        ((TASK, "--num-steps", "9", "--num-episodes", "9"), r"--num-steps and --num-episodes exclude each other"),
        ((TASK, "--watch", "run", "--checkpoint", "best"), r"--watch evaluates the checkpoints of one run"),
        ((TASK, "--policy", "zero", "--hosts", "a", "--out", "/elsewhere"), r"which is not below --log-root"),
        (("--jobs", "missing.yaml"), r"--jobs missing.yaml cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        plan_of(tmp_path, *words)


def test_a_directory_that_is_none_or_is_damaged_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"manifest\.json cannot be read"):
        plan_of(tmp_path, TASK, "--policy", "zero", "--out", str(tmp_path))
    with pytest.raises(UsageError, match=r"--out asks for .*manifest\.json, but .* is no directory"):
        plan_of(tmp_path, TASK, "--policy", "zero", "--out", str(tmp_path / "manifest.json"))


def test_another_job_of_the_same_name_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    plan = plan_of(tmp_path, TASK, "--policy", "zero")
    (out / "manifest.json").write_text(json.dumps({"jobs": [to_plain(job) for job in plan.jobs]}), encoding="utf-8")
    assert plan_of(tmp_path, TASK, "--policy", "zero", "--out", str(out), "--retries", "3").jobs
    with pytest.raises(UsageError, match=r"has policy 'zero', and now 'random': pass another --out"):
        plan_of(tmp_path, TASK, "--policy", "random", "--out", str(out))


@pytest.mark.parametrize("is_locked", [None, False])
def test_a_run_is_watched_until_its_record_says_that_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_locked: bool | None
) -> None:
    """Where the file system has no locks (None); elsewhere the lock decides."""
    monkeypatch.setattr("shoal.run_record.is_in_use", lambda _: is_locked)
    run = RunDir(tmp_path)
    assert not trains(run)
    run.run_json.write_text(json.dumps({"launches": [{"ended": None}]}), encoding="utf-8")
    assert trains(run) == (is_locked is None)
    run.run_json.write_text(json.dumps({"launches": [{"ended": None}, {"ended": {"exit_code": 0}}]}), encoding="utf-8")
    assert not trains(run)
