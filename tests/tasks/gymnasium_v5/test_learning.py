"""The defaults learn from Gymnasium's rewards: a cheap task in seconds, and all of them if asked for."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from support.commands import TRAIN, start

from shoal.commands.play import play
from shoal.config import PlayConfig
from shoal.tasks.gymnasium_v5.specs import SPECS
from shoal.tasks.registry import registered

if TYPE_CHECKING:
    from pathlib import Path

LEAST = {
    "Ant-v5": 3100.0,
    "HalfCheetah-v5": 4200.0,
    "Hopper-v5": 2300.0,
    "Humanoid-v5": 2400.0,
    "HumanoidStandup-v5": 88000.0,
    "InvertedPendulum-v5": 700.0,
    "InvertedDoublePendulum-v5": 6500.0,
    "Pusher-v5": -38.0,
    "Reacher-v5": -4.9,
    "Swimmer-v5": 250.0,
    "Walker2d-v5": 3300.0,
}
"""Least mean return of each task after its default training: seven tenths of the one in docs/tasks/gymnasium_v5.md, or
three tenths more where it is a cost. Another machine rounds otherwise, and so learns otherwise."""

LONGEST_S = 3600.0
"""No default training takes so long on one core [s]."""


def train_and_evaluate(name: str, where: Path, *flags: str, episodes: int) -> float:
    """Train a task with its defaults, and return the mean return of what it has learned."""
    words = (*TRAIN, name, "--gpu-ids", "None", "--logger", "none", "--no-export", *flags)
    trained = start(words, where).end(timeout=LONGEST_S)
    assert trained.code == 0, trained.stderr
    spec = registered()[name]
    logs = str(trained.log_root)
    config = PlayConfig(task=name, gpu_ids=("None",), log_root=logs, episodes=episodes, env=spec.env, agent=spec.agent)
    return fmean(each["return"] for each in play(config).episodes)


@pytest.mark.spawn
@pytest.mark.soak
@pytest.mark.slow
def test_a_pendulum_is_kept_upright_after_thirty_iterations(tmp_path: Path) -> None:
    flags = ("--seed", "1", "--max-iterations", "30")
    # It falls within ten steps or so at the beginning, and 1,000 is all that can be had.
    assert train_and_evaluate("InvertedPendulum-v5", tmp_path, *flags, episodes=20) > 900.0


def test_every_task_has_a_return_to_reach() -> None:
    assert {spec.name for spec in SPECS} == set(LEAST)


@pytest.mark.soak
@pytest.mark.timeout(LONGEST_S + 600.0)
@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_a_default_training_reaches_its_return(
    name: str, least: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    asked = str(request.config.getoption("--soak-tasks"))
    if asked != "all" and name not in asked.split(","):
        pytest.skip(f"it takes up to an hour: pass --soak-tasks {name}, or all")
    assert train_and_evaluate(name, tmp_path, episodes=100) > least
