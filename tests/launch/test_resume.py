"""A training that is interrupted and resumed is, bit for bit, the one that was never interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.commands import TRAIN, Ended, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spawn, pytest.mark.slow]

BASE = ("--gpu-ids", "None", "--no-export", "--logger", "none", "--agent.num-steps-per-env", "8")
SMALL = {
    "Cartpole-Swingup": ("--num-envs", "16", "--env.episode-length-s", "0.3"),
    "Quadruped-Velocity-Rough": (
        *("--num-envs", "16", "--env.episode-length-s", "0.4", "--env.terrain-levels", "3"),
        *("--env.command-interval-min", "0.1", "--env.command-interval-max", "0.2"),
    ),
}
"""A task of kernels and one with MuJoCo, with episodes that end in the middle of all that is tried here."""


def trained(where: Path, task: str, *flags: str) -> Ended:
    """Train, and see that it went well."""
    ended = run((*TRAIN, task, *BASE, *SMALL[task], *flags), where)
    assert ended.code == 0, ended.stderr
    return ended


def everything_in(ended: Ended, iteration: int) -> dict[str, Any]:
    """All that a checkpoint holds, by file and name; without the time that it took."""
    found: dict[str, Any] = {}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk(f"{name}/{key}", each)
        elif isinstance(value, list | tuple):
            for index, each in enumerate(value):
                walk(f"{name}/{index}", each)
        else:
            found[name] = value

    for file in sorted((ended.run / "checkpoints" / f"{iteration:06}").glob("*.pt")):
        walk(file.name, torch.load(file, weights_only=True))
    found.pop("model.pt/infos/totals/seconds")
    return found


def told(ended: Ended) -> list[dict[str, float]]:
    """All metrics, but for times and what follows from them."""
    others = ("Train/total_time", "max_iterations")
    return [
        {name: value for name, value in row.items() if not name.startswith("Perf/") and name not in others}
        for row in ended.rows
    ]


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """See that two checkpoints hold the same bits."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, name


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("task", SMALL)
def test_a_resumed_training_is_the_one_that_never_stopped(task: str, workers: str, tmp_path: Path) -> None:
    flags = ("--nproc-per-node", workers)
    straight = trained(tmp_path / "straight", task, *flags, "--max-iterations", "6")
    trained(tmp_path / "resumed", task, *flags, "--max-iterations", "3")
    resumed = trained(tmp_path / "resumed", task, *flags, "--max-iterations", "6", "--resume")
    assert told(resumed) == told(straight)
    assert len(told(straight)) == 6
    assert_same(everything_in(straight, 6), everything_in(resumed, 6))
    ranks = [name for name in everything_in(straight, 6) if name.endswith("/rows/task/rng")]
    assert len(ranks) == int(workers)
