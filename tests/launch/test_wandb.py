"""Trainings with the real wandb: one W&B run over all launches, nothing left behind, and no training lost to it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN, run, start
from support.killer import Killer
from support.wandb_files import launches_in
from support.wandb_server import KEY, wandb_server

if TYPE_CHECKING:
    from pathlib import Path

    from support.commands import Ended

pytestmark = [pytest.mark.spawn, pytest.mark.slow]

OFFLINE = {"WANDB_MODE": "offline"}
SWINGUP = (*TRAIN, "Cartpole-Swingup", *SMALL, "--logger", "wandb", "--agent.save-interval", "2")
SPAWNED = ("--nproc-per-node", "2")


def assert_ended_well(ended: Ended, code: int = 0) -> None:
    assert ended.code == code, ended.stdout + ended.stderr
    assert (ended.left_processes, ended.left_files) == ([], [])


@pytest.mark.soak
def test_a_server_gets_the_rows_of_all_launches_and_loses_none(tmp_path: Path) -> None:
    with wandb_server() as server:
        environ = {**server.environ(), "WANDB_CONFIG_DIR": str(tmp_path)}
        ended = run((*SWINGUP, "--max-iterations", "4"), tmp_path, environ)
        assert_ended_well(ended)
        shutil.rmtree(ended.run / "checkpoints" / "000004")
        # Another configuration, which W&B refuses of some runs; and other workers.
        again = run((*SWINGUP, "--max-iterations", "5", "--seed", "7", "--resume"), tmp_path, environ)
        assert_ended_well(again)
        assert_ended_well(run((*SWINGUP, *SPAWNED, "--max-iterations", "6", "--resume"), tmp_path, environ))
        # A launch without a network is sent later.
        assert_ended_well(run((*SWINGUP, "--max-iterations", "7", "--resume"), tmp_path, OFFLINE))
        (launch,) = (ended.run / "wandb").glob("offline-run-*")
        wandb = (sys.executable, "-m", "wandb", "sync", "--yes", str(launch))
        subprocess.run(wandb, cwd=tmp_path, env={**os.environ, **environ}, check=True, capture_output=True)
    ((run_id, rows),) = server.rows.items()
    assert run_id == (ended.run / "wandb_run_id").read_text(encoding="utf-8").strip()
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 3, 4, 5, 6, 7]
    assert [row["_step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert KEY not in ended.stdout + ended.stderr + again.stdout + again.stderr
    assert [file for file in ended.run.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()] == []


@pytest.mark.soak
def test_a_training_that_starts_again_goes_on_in_the_same_run(tmp_path: Path) -> None:
    words = (*SWINGUP, *SPAWNED, "--max-iterations", "12", "--max-restarts", "1")
    killer = Killer(start(words, tmp_path, OFFLINE), 2, random.Random(2))  # noqa: S311  To be repeated.
    killer.strike(["iteration"])
    ended = killer.running.end()
    assert_ended_well(ended)
    run_id = (ended.run / "wandb_run_id").read_text(encoding="utf-8").strip()
    launches = sorted((ended.run / "wandb").glob("offline-run-*"))
    assert [launch.name.rpartition("-")[2] for launch in launches] == [run_id, run_id]
    assert launches_in(ended.run)[-1].rows[-1]["iteration"] == 12


@pytest.mark.soak
@pytest.mark.parametrize("workers", [(), SPAWNED], ids=["in process", "spawned"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_a_training_that_is_ended_leaves_nothing_of_wandb(
    tmp_path: Path, workers: tuple[str, ...], number: signal.Signals
) -> None:
    running = start((*SWINGUP, *workers, "--max-iterations", "100000"), tmp_path, OFFLINE)
    running.read_until("[1/")
    if number == signal.SIGINT:
        running.signal_all(number)
    else:
        running.signal_itself(number)
    ended = running.end()
    assert_ended_well(ended, 130 if number == signal.SIGINT else -number)
    if number == signal.SIGINT:
        (launch,) = launches_in(ended.run)
        assert [row["iteration"] for row in launch.rows] == [row["iteration"] for row in ended.rows]


@pytest.mark.soak
def test_a_server_that_is_not_there_costs_a_warning_and_no_row(tmp_path: Path) -> None:
    nobody = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY, "WANDB_INIT_TIMEOUT": "1"}
    online = {"WANDB_MODE": "online", "WANDB_CONFIG_DIR": str(tmp_path)}
    ended = run((*SWINGUP, *SPAWNED, "--max-iterations", "2"), tmp_path, {**nobody, **online})
    assert_ended_well(ended)
    assert "W&B does not take this run now (CommError: " in ended.stdout + ended.stderr
    (launch,) = launches_in(ended.run)
    assert [row["iteration"] for row in launch.rows] == [1, 2]
    assert KEY not in ended.stdout + ended.stderr
    holders = [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]
    assert holders == []
