"""`evaluate` through the launch modes: the same episodes to the last byte, and nothing lost with a worker."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import SMALL, TRAIN, run, start, torchrun, wait_until
from support.fake_slurm import batch_environment
from support.machines import machines, needs_machines

pytestmark = [pytest.mark.spawn, pytest.mark.slow]

POLICIES = Path(__file__).parents[1] / "support" / "faulty_policies.py"
SHORT = {"episode_length_s": 0.4}
TWELVE: list[dict[str, Any]] = [
    {"name": "random", "policy": "random", "seed": [1, 2, 3], "num_episodes": 20, "num_envs": 8},
    {"name": "zero", "policy": "zero", "seed": [1, 2], "variations": {"force_limit": [5.0, 10.0]}, "num_episodes": 9},
    {"name": "many", "policy": "random", "num_episodes": 400, "num_envs": 16, "seed": 5},
    {"name": "steps", "policy": "random", "num_steps": 60, "num_envs": 4},
    {"name": "rebuilt", "policy": "random", "num_episodes": 10, "num_envs": 4, "rebuilds": 3, "control": True},
    {"name": "own", "policy": f"{POLICIES}:Half", "config": {"scale": 0.5}, "num_episodes": 12, "num_envs": 5},
]
"""Twelve jobs in six entries."""


def evaluate(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "shoal", "evaluate", *words)


def jobs_file(where: Path, entries: list[dict[str, Any]]) -> Path:
    """A jobs file of swing-ups with short episodes."""
    where.mkdir(parents=True, exist_ok=True)
    whole = [
        {"task": "Cartpole-Swingup", **each, "variations": {**SHORT, **each.get("variations", {})}} for each in entries
    ]
    file = where / "jobs.yaml"
    file.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return file


def episodes_in(out: Path) -> dict[str, bytes]:
    """The bytes of each job's episodes."""
    return {file.parent.name: file.read_bytes() for file in sorted(out.glob("*/episodes.jsonl"))}


def ranks_in(out: Path) -> set[int]:
    """The ranks that ran parts."""
    lines = [line for file in out.glob("*/timing.jsonl") for line in file.read_text(encoding="utf-8").splitlines()]
    return {json.loads(line)["rank"] for line in lines}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The episodes of twelve jobs on one worker."""
    where = tmp_path_factory.mktemp("alone")
    file = jobs_file(where, TWELVE)
    ended = run(evaluate("--jobs", str(file), "--json", "--out", "results", "--gpu-ids", "None"), where)
    assert ended.code == 0, ended.stderr
    assert len(json.loads(ended.stdout)) == 12
    found = episodes_in(where / "results")
    assert [json.loads(line)["index"] for line in found["many"].splitlines()] == list(range(400))
    return found


@pytest.mark.parametrize(
    "how",
    [
        ("--nproc-per-node", "3"),
        ("--nproc-per-node", "2", "--assignment", "static"),
        (),
    ],
    ids=["three", "static", "torchrun"],
)
@pytest.mark.soak
def test_twelve_jobs_have_the_same_episodes_on_any_workers(
    alone: dict[str, bytes], how: tuple[str, ...], tmp_path: Path
) -> None:
    file = jobs_file(tmp_path, TWELVE)
    words = ("--jobs", str(file), "--out", "results", "--gpu-ids", "None", *how)
    ended = run(evaluate(*words) if how else (*torchrun(2)[:-1], "evaluate", *words), tmp_path)
    assert ended.code == 0, ended.stderr
    out = tmp_path / "results"
    assert episodes_in(out) == alone
    assert ranks_in(out) == set(range(3 if "3" in how else 2))
    assert set(states_of(out).values()) == {"finished"}


def test_a_killed_worker_loses_no_finished_episode_and_no_job(alone: dict[str, bytes], tmp_path: Path) -> None:
    killed = {"name": "killed", "policy": f"{POLICIES}:KillsRank1", "config": {"mark": str(tmp_path / "mark")}}
    file = jobs_file(tmp_path, [{**killed, "num_episodes": 30, "num_envs": 5}, *TWELVE])
    words = ("--jobs", str(file), "--out", "results", "--gpu-ids", "None", "--nproc-per-node", "2")
    ended = run(evaluate(*words), tmp_path)
    assert ended.code == 0, ended.stderr
    assert "Lost rank 1" in ended.stderr
    out = tmp_path / "results"
    found = episodes_in(out)
    assert len(found.pop("killed").splitlines()) == 30
    assert found == alone
    assert ranks_in(out) == {0, 1}
    assert set(states_of(out).values()) == {"finished"}
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    assert not list(out.glob("*/parts"))
    (failure,) = (out / "killed" / "failures.jsonl").read_text(encoding="utf-8").splitlines()
    assert "Lost rank 1" in json.loads(failure)["error"]
    assert json.loads(failure)["rank"] == 1
    times = (out / "killed" / "timing.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(times) == 6, "no part that was done ran again"


@pytest.mark.soak
def test_a_job_that_fails_fails_alone_and_is_tried_on_another_worker(tmp_path: Path) -> None:
    file = jobs_file(
        tmp_path,
        [
            {"name": "raises", "policy": f"{POLICIES}:Raises", "num_episodes": 4, "num_envs": 4},
            {"name": "sleeps", "policy": f"{POLICIES}:Slow", "num_episodes": 4, "timeout": 0.2, "retries": 0},
            {"name": "once", "policy": f"{POLICIES}:RaisesOnce", "config": {"mark": str(tmp_path / "mark")}},
            {"name": "good", "policy": "zero", "num_episodes": 40, "num_envs": 4},
        ],
    )
    words = ("--jobs", str(file), "--out", "results", "--gpu-ids", "None", "--nproc-per-node", "2")
    ended = run(evaluate(*words), tmp_path)
    out = tmp_path / "results"
    assert ended.code == 1
    assert "2 of 4 jobs failed: raises, sleeps." in ended.last_line
    states = states_of(out)
    assert states == {"raises": "failed", "sleeps": "failed", "once": "finished", "good": "finished"}
    assert "raise ValueError" in (out / "raises" / "traceback.txt").read_text(encoding="utf-8")
    ranks = [json.loads(line)["rank"] for line in (out / "raises" / "failures.jsonl").read_text().splitlines()]
    assert all(one != other for one, other in pairwise(ranks)), "tried again on another rank"
    before = episodes_in(out)

    again = run(evaluate(*words), tmp_path)
    assert again.code == 1
    assert "done; the last one" not in again.stderr, "nothing is missing"
    (tmp_path / "repaired").touch()
    mended = run(evaluate(*words, "--rerun-failed", "--nproc-per-node", "1"), tmp_path, {"REPAIRED": "1"})
    assert mended.code == 1
    assert "1 of 4 jobs failed: sleeps." in mended.last_line
    assert {name: episodes_in(out)[name] for name in before} == before

    changed = jobs_file(tmp_path / "other", [{"name": "good", "policy": "zero", "num_episodes": 40, "seed": 3}])
    refused = run(evaluate("--jobs", str(changed), "--out", "results", "--gpu-ids", "None"), tmp_path)
    assert refused.code == 2
    assert "The job good of --out results has" in refused.last_line


def states_of(out: Path) -> dict[str, str]:
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return {each["name"]: each["state"] for each in results["jobs"]}


def test_fail_fast_ends_everything(tmp_path: Path) -> None:
    file = jobs_file(
        tmp_path,
        [
            {"name": "raises", "policy": f"{POLICIES}:Raises", "retries": 0},
            *({"name": f"later{number}", "policy": "zero"} for number in range(3)),
        ],
    )
    ended = run(evaluate("--jobs", str(file), "--out", "results", "--gpu-ids", "None", "--fail-fast"), tmp_path)
    assert ended.code == 1
    assert "The job raises failed, and --fail-fast ends all" in ended.last_line
    assert not episodes_in(tmp_path / "results")


@pytest.mark.soak
def test_two_tasks_of_srun_share_the_jobs(alone: dict[str, bytes], tmp_path: Path) -> None:
    file = jobs_file(tmp_path, TWELVE)
    words = ("srun", *evaluate("--jobs", str(file), "--out", "results", "--gpu-ids", "None"))
    ended = run(words, tmp_path, batch_environment(tmp_path / "slurm"))
    assert ended.code == 0, ended.stdout + ended.stderr
    assert episodes_in(tmp_path / "results") == alone
    assert ranks_in(tmp_path / "results") == {0, 1}


@pytest.mark.soak
@needs_machines
def test_two_machines_share_the_jobs(alone: dict[str, bytes], tmp_path: Path) -> None:
    with machines(tmp_path, "a", "b") as made:
        file = jobs_file(made.shared, TWELVE)
        words = ("--jobs", str(file), "--out", "logs/results", "--gpu-ids", "None", "--hosts", "a", "b")
        ended = made.launcher.start(evaluate(*words), made.shared).end()
        assert ended.code == 0, ended.stdout + ended.stderr
        out = made.shared / "logs" / "results"
        assert episodes_in(out) == alone
        assert ranks_in(out) == {0, 1}
        refused = made.launcher.start(evaluate(*words[:2], *words[4:], "--out", "elsewhere"), made.shared).end()
        assert refused.code == 2
        assert "which is not below --log-root" in refused.last_line
        assert made.left_processes() == []


@pytest.mark.soak
def test_a_training_is_watched_until_its_end(tmp_path: Path) -> None:
    length = ("--max-iterations", "60", "--agent.save-interval", "20")
    training = start((*TRAIN, "Cartpole-Swingup", *SMALL, *length), tmp_path)
    assert wait_until(lambda: any(training.log_root.glob("*/*/params/train.yaml")), 60)
    (run_json,) = training.log_root.glob("*/*/params/train.yaml")
    directory = str(run_json.parents[1])
    words = ("Cartpole-Swingup", "--watch", directory, "--gpu-ids", "None", "--num-episodes", "3", "--out", "w")
    ended = run(evaluate(*words), tmp_path)
    assert ended.code == 0, ended.stderr
    assert training.end().code == 0
    assert states_of(tmp_path / "w") == dict.fromkeys(["000020", "000040", "000060"], "finished")
