"""The real wandb, without a network: what it is given, what it keeps, and that its failures cost no training."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from support.wandb_files import launches_in

from shoal.cli.parse import parse_train
from shoal.config import TrainConfig
from shoal.learn.metrics import open_writers

if TYPE_CHECKING:
    from shoal.plan.rundir import RunDir

CONFIG = TrainConfig(task="tiny", logger="wandb", wandb_project="fish")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def log(run: RunDir, *iterations: int, config: TrainConfig = CONFIG) -> None:
    """One launch that writes rows of these iterations."""
    writers = open_writers(run, config)
    for iteration in iterations:
        for writer in writers:
            writer.write({"iteration": float(iteration), "Train/mean_reward": iteration / 10})
    for writer in writers:
        writer.close()


def test_another_launch_continues_the_same_run_and_what_was_edited_in_wandb_stays(run_dir: RunDir) -> None:
    config = parse_train(["Cartpole-Swingup", "--logger", "wandb", "--wandb-project", "fish", "--env.pole-mass", "0.3"])
    log(run_dir, 1, 2, config=config)
    log(run_dir, 3, config=config)
    assert [child.cmdline() for child in psutil.Process().children(recursive=True) if "wandb" in child.name()] == []
    assert "WANDB_SERVICE" not in os.environ
    first, second = launches_in(run_dir.path)
    assert first.run_id == second.run_id == run_dir.wandb_run_id.read_text(encoding="utf-8").strip()
    assert [(row["_step"], row["iteration"], row["Train/mean_reward"]) for row in first.rows + second.rows] == [
        (1, 1, 0.1),
        (2, 2, 0.2),
        (3, 3, 0.3),
    ]
    assert {first.project, second.project} == {"fish"}
    assert first.axes == second.axes == {"*": "iteration"}
    # A name and notes are given once, so that others may be given in W&B.
    assert (first.name, second.name) == (run_dir.name, "")
    assert (first.notes, second.notes) == ("--logger wandb --wandb-project fish --env.pole-mass 0.3", "")


def test_iterations_that_are_done_again_are_not_dropped(run_dir: RunDir) -> None:
    log(run_dir, 4, 5, 4, 5, 6)
    (launch,) = launches_in(run_dir.path)
    assert [(row["_step"], row["iteration"]) for row in launch.rows] == [(4, 4), (5, 5), (6, 4), (7, 5), (8, 6)]


def test_a_wandb_that_is_switched_off_names_no_run(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    log(run_dir, 1)
    assert not run_dir.wandb_run_id.exists()
    assert launches_in(run_dir.path) == []


def test_a_broken_wandb_costs_a_warning(
    run_dir: RunDir, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "on a boat")
    with caplog.at_level(logging.WARNING):
        log(run_dir, 1)
    assert caplog.records[-1].getMessage().startswith("W&B cannot be used (")
    assert caplog.records[-1].getMessage().endswith("); training goes on without it.")
    assert run_dir.metrics_jsonl.read_text(encoding="utf-8").count("\n") == 1


def test_a_training_without_wandb_does_not_import_it() -> None:
    look = "import sys, shoal.learn.rsl_rl.learner; print('rsl_rl.runners' in sys.modules, 'wandb' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert seen.stdout == "True False\n"
