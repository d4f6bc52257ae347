"""`shoal sweep` with several workers: no trial is lost with one, and none is trained twice."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import Ended, Running, run, start, wait_until

pytestmark = [pytest.mark.spawn, pytest.mark.slow]

TRIALS = 5
SWEEP = {
    "name": "first",
    "task": "Cartpole-Swingup",
    "trials": TRIALS,
    "pruner": "none",
    "parameters": {"agent.algorithm.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
    "fixed": {
        "num_envs": 64,
        "max_iterations": 30,
        "agent.num_steps_per_env": 8,
        "agent.save_interval": 5,
        "env.episode_length_s": 0.4,
    },
}


def words(where: Path, sweep: dict[str, Any] = SWEEP) -> tuple[str, ...]:
    """The command with two workers on the CPU."""
    where.mkdir(exist_ok=True)
    file = where / "sweep.yaml"
    file.write_text(yaml.safe_dump(sweep), encoding="utf-8")
    return (sys.executable, "-m", "shoal", "sweep", str(file), "--gpu-ids", "None", "--nproc-per-node", "2")


def trained(where: Path) -> dict[str, int]:
    """The number of finished iterations of each trial."""
    found = (where / "logs" / "sweeps" / "first" / "trials").glob("*/metrics.jsonl")
    return {file.parent.name: file.read_text(encoding="utf-8").count("\n") for file in found}


def wait_for_checkpoints(where: Path, running: Running, trials: int) -> None:
    """Wait until so many trials have a checkpoint."""
    pattern = "logs/sweeps/first/trials/*/checkpoints/000005"
    wait_until(lambda: len(list(where.glob(pattern))) >= trials or running.process.poll() is not None, 120)
    assert running.process.poll() is None, running.end()


def rows_of(where: Path) -> list[dict[str, Any]]:
    return json.loads((where / "logs" / "sweeps" / "first" / "results.json").read_text(encoding="utf-8"))["trials"]


def launches_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    return json.loads((Path(row["run"]) / "run.json").read_text(encoding="utf-8"))["launches"]


def assert_complete(where: Path, ended: Ended) -> None:
    """Every trial was asked for once, and trained to its end."""
    assert ended.code == 0, ended.stderr
    rows = rows_of(where)
    assert sorted(row["trial"] for row in rows) == list(range(TRIALS))
    assert {(row["state"], row["iterations"]) for row in rows} == {("finished", 30)}
    assert trained(where) == {f"{number:04d}": 30 for number in range(TRIALS)}
    assert ended.left_processes == []
    assert ended.stdout.splitlines()[-1].startswith("Best: trial ")


@pytest.mark.soak
def test_a_killed_worker_loses_no_trial(tmp_path: Path) -> None:
    running = start(words(tmp_path), tmp_path)
    wait_for_checkpoints(tmp_path, running, 2)
    lock = tmp_path / "logs" / "sweeps" / "first" / "trials" / "0001" / "lock"
    os.kill(int(lock.read_text(encoding="utf-8").split()[0]), signal.SIGKILL)
    ended = running.end()
    assert_complete(tmp_path, ended)
    assert "Its trial goes on from its newest checkpoint." in ended.stderr
    assert len((lock.parent / "losses.txt").read_text(encoding="utf-8").splitlines()) == 1
    (resumed,) = [row for row in rows_of(tmp_path) if row["trial"] == 1]
    first, second = launches_of(resumed)
    assert first["ended"] is None
    assert second["plan"]["start_iteration"] >= 5


@pytest.mark.soak
def test_a_sweep_that_was_killed_goes_on(tmp_path: Path) -> None:
    running = start(words(tmp_path), tmp_path)
    wait_for_checkpoints(tmp_path, running, 3)
    before = trained(tmp_path)
    running.signal_every_process(signal.SIGKILL)
    running.end()
    assert len(before) < TRIALS, "it was killed in the middle"
    ended = run(words(tmp_path), tmp_path)
    assert_complete(tmp_path, ended)
    launches = [len(launches_of(row)) for row in rows_of(tmp_path)]
    assert sorted(launches) in ([1, 1, 1, 1, 2], [1, 1, 1, 2, 2]), "finished trials were not trained again"


@pytest.mark.soak
def test_ctrl_c_ends_a_sweep_with_checkpoints(tmp_path: Path) -> None:
    running = start(words(tmp_path), tmp_path)
    wait_for_checkpoints(tmp_path, running, 1)
    running.signal_all(signal.SIGINT)
    ended = running.end()
    assert ended.code == 130
    assert "the same command goes on" in ended.last_line
    assert ended.left_processes == []
    assert_complete(tmp_path, run(words(tmp_path), tmp_path))
