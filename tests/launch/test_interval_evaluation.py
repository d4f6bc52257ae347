"""Trainings with `--eval-interval`: evaluations of any length keep nobody from learning the same, nor from resuming."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.commands import SMALL, TRAIN, run

from shoal.plan.checkpoints import best_good, list_checkpoints
from shoal.plan.rundir import RunDir
from shoal.timing import HANG_GRACE_S

if TYPE_CHECKING:
    from pathlib import Path

STALL_S = 1.0
STEP_S = 0.2
"""Time of a step in an evaluation of the task below."""
EPISODES = 3
EVALUATED = ("--eval-interval", "2", "--eval-episodes", str(EPISODES))
SLOW = f"""
import time
from shoal.tasks.cartpole.task import Swingup

class Slow(Swingup):
    def step(self):
        if self.num_envs == {EPISODES}:
            time.sleep({STEP_S})
        super().step()
"""
"""A task whose evaluations take longer than a rank may be without progress."""


def last_launch(run_directory: Path) -> dict[str, Any]:
    return json.loads((run_directory / "run.json").read_text(encoding="utf-8"))["launches"][-1]["ended"]


@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.soak
def test_two_workers_resume_and_wait_for_evaluations_that_are_longer_than_a_hang(tmp_path: Path) -> None:
    task = tmp_path / "slow.py"
    task.write_text(SLOW, encoding="utf-8")
    words = [*TRAIN, f"{task}:Slow", *SMALL, "--nproc-per-node", "2", "--logger", "none", "--save-interval", "2"]
    for network, kind in (("actor", "gru"), ("critic", "lstm")):
        settings = {"class-name": "RNNModel", "rnn-type": kind, "rnn-hidden-dim": "8", "hidden-dims": "8"}
        words += [word for name, value in settings.items() for word in (f"--agent.{network}.{name}", value)]
    words += ["--env.episode-length-s", "0.5"]  # 25 steps.
    silent = run((*words, "--max-iterations", "4"), tmp_path / "silent")
    assert silent.code == 0, silent.stderr

    flags = (*EVALUATED, "--stall-timeout", str(STALL_S), "--startup-timeout", "120")
    run((*words, *flags, "--max-iterations", "2"), tmp_path / "evaluated")
    evaluated = run((*words, *flags, "--max-iterations", "4", "--resume"), tmp_path / "evaluated")
    assert evaluated.code == 0, evaluated.stderr
    digests = last_launch(evaluated.run)["digests"]
    assert len(set(digests.values())) == 1
    assert digests == silent.record["ended"]["digests"]

    rows = {row["iteration"]: row for row in evaluated.rows if "Eval/return" in row}
    assert list(rows) == [2, 4]
    assert rows[2]["Eval/length"] == rows[4]["Eval/length"] == 25
    assert min(row["Perf/evaluation_time"] for row in rows.values()) > 25 * STEP_S > STALL_S + HANG_GRACE_S
    checkpoints = list_checkpoints(RunDir(evaluated.run))
    assert [each.score for each in checkpoints] == [row["Eval/return"] for row in rows.values()]
    best = best_good(RunDir(evaluated.run))
    assert best is not None
    assert best.iteration == max(rows, key=lambda iteration: rows[iteration]["Eval/return"])
