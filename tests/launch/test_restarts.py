"""Trainings that lose workers and start again, in real launches."""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.commands import FAULTY, SMALL, TRAIN, run, start
from support.killer import PHASES, Killer

if TYPE_CHECKING:
    from pathlib import Path

    from support.commands import Ended

pytestmark = pytest.mark.spawn

RANKS = 2
QUICK = ("--agent.algorithm.num-learning-epochs", "1", "--agent.algorithm.num-mini-batches", "1", "--logger", "none")
SWINGUP = ("Cartpole-Swingup", *SMALL, *QUICK, "--nproc-per-node", str(RANKS), "--agent.save-interval", "2")


def train_under_fire(where: Path, phases: list[str], *, seed: int, iterations: int, max_restarts: int) -> Killer:
    """Start a training that loses a random rank in each of these phases."""
    limits = ("--max-iterations", str(iterations), "--max-restarts", str(max_restarts))
    running = start((*TRAIN, *SWINGUP, *limits), where)
    killer = Killer(running, RANKS, random.Random(seed))  # noqa: S311  To be repeated, not to be secret.
    killer.strike(phases)
    return killer


def launches_of(ended: Ended) -> list[dict[str, Any]]:
    return json.loads((ended.run / "run.json").read_text(encoding="utf-8"))["launches"]


def assert_one_run(ended: Ended, killer: Killer, iterations: int) -> None:
    """It is one finished run with continuous curves, whose record tells of each loss, and nothing is left."""
    assert ended.code == 0, ended.stdout + ended.stderr
    assert [row["iteration"] for row in ended.rows] == list(range(1, iterations + 1))
    assert [row["Train/total_steps"] for row in ended.rows] == [
        16 * 8 * RANKS * count for count in range(1, iterations + 1)
    ]
    launches = launches_of(ended)
    assert [launch["ended"]["exit_code"] for launch in launches] == [75] * len(killer.kills) + [0]
    for kill, launch in zip(killer.kills, launches, strict=False):
        assert launch["ended"]["last_line"].startswith(f"Lost rank {kill.rank} on "), kill
    origins = [launch["plan"]["start_iteration"] for launch in launches]
    assert origins == sorted(origins)
    assert (ended.left_processes, ended.left_files) == ([], [])


def test_a_training_that_loses_workers_goes_on_from_its_checkpoints_to_its_end(tmp_path: Path) -> None:
    iterations = 24
    phases = ["iteration", "start-up", "checkpoint"]
    killer = train_under_fire(tmp_path, phases, seed=1, iterations=iterations, max_restarts=2)
    ended = killer.running.end()
    assert_one_run(ended, killer, iterations)
    origins = [launch["plan"]["start_iteration"] for launch in launches_of(ended)]
    # It pauses longer where a launch was lost before its first checkpoint.
    pauses = [1 if later > before else 2 for before, later in itertools.pairwise(origins)]
    again = re.findall(r"Starting again in (\d+) s from iteration (\d+)", ended.stdout)
    assert again == [(str(pause), str(origin)) for pause, origin in zip(pauses, origins[1:], strict=True)]


@pytest.mark.soak
def test_a_rank_that_is_lost_again_and_again_gives_up_its_place(tmp_path: Path) -> None:
    limits = ("--max-restarts", "2", "--min-workers", "1", "--num-envs-total", "32", "--max-iterations", "3")
    ended = run((*TRAIN, f"{FAULTY}:Dies", "--gpu-ids", "None", *QUICK, "--nproc-per-node", "2", *limits), tmp_path)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert "Starting again in 1 s from the beginning: there is no checkpoint yet (try 1 of 2" in ended.stdout
    assert "Starting again in 2 s from the beginning" in ended.stdout
    told = "Going on with 1 of 2 workers, 32 environments each: 32 in all, as before. The learning rate is not changed."
    assert told in ended.stdout
    assert [launch["ended"]["exit_code"] for launch in launches_of(ended)] == [75, 75, 0]
    assert [launch["plan"]["devices"] for launch in launches_of(ended)] == [["cpu", "cpu"]] * 2 + [["cpu"]]
    assert [row["Train/total_steps"] for row in ended.rows] == [256, 512, 768]
    assert (ended.left_processes, ended.left_files) == ([], [])


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_kills_in_random_phases_cost_no_iteration(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    kills = int(request.config.getoption("--soak-kills") or 0)
    seed = int(request.config.getoption("--soak-seed") or 0)
    rng = random.Random(seed)  # noqa: S311  To be repeated, not to be secret.
    phases = [rng.choice(PHASES) for _ in range(kills)]
    began, iterations = time.monotonic(), 60 * kills  # More than a launch does in the killer's patience
    killer = train_under_fire(tmp_path, phases, seed=seed, iterations=iterations, max_restarts=kills)
    ended = killer.running.end(timeout=1200)
    assert_one_run(ended, killer, iterations)
    seconds = sorted(kill.seconds for kill in killer.kills)
    counts = {phase: phases.count(phase) for phase in PHASES}
    sys.stdout.write(
        f"{kills} kills (seed {seed}, {counts}) in {time.monotonic() - began:.0f} s, {iterations} iterations; ended "
        f"within {seconds[-1]:.1f} s each, median {seconds[len(seconds) // 2]:.1f} s\n"
    )
