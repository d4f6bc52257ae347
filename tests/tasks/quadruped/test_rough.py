"""The rough ground: what the robot feels and sees of it is what MuJoCo collides with, and levels follow progress."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from support.calm import CALM, changed
from support.ground_probe import probe

from shoal.envs.vec_env import WarpVecEnv
from shoal.mdp.robots import find_feet
from shoal.mdp.terms import Obs
from shoal.mdp.terrain import make_terrain
from shoal.tasks.quadruped.config import DEPTH, ROUGH
from shoal.tasks.quadruped.task import RoughVelocity

KINDS = ROUGH.terrains


def rough(num_envs: int = 60, *changes: dict[str, Any], **fields: Any) -> RoughVelocity:
    """Build the task on the CPU."""
    return RoughVelocity(changed(ROUGH, *changes, **fields), num_envs=num_envs, device="cpu", seed=1)


def levels_of(task: RoughVelocity) -> np.ndarray:
    """Each environment's level. Shape (num_envs,)."""
    return np.array(task.levels.numpy(), dtype=int)


def test_the_ground_is_where_mujoco_has_it() -> None:
    task = rough(1, terrain_levels=3)
    data = mujoco.MjData(task.model)
    mujoco.mj_forward(task.model, data)
    half = -np.array(task.terrain.corner) - 0.01
    places = np.random.default_rng(0).uniform(-half, half, (500, 2))
    places = np.column_stack([places, np.full(500, 5.0)])
    surfaces, gaps = probe(task.state_values["ground"], places)
    floor = task.model.geom("floor").id
    down = np.array([0.0, 0.0, -1.0])
    heights = [5.0 - mujoco.mj_rayHfield(task.model, data, floor, place, down) for place in places]
    np.testing.assert_allclose(
        surfaces[:, 0], heights, atol=2e-4
    )  # MuJoCo keeps heights as 32-bit shares of the range.
    steepness = np.sqrt(1 + (surfaces[:, 1:] ** 2).sum(axis=1))
    np.testing.assert_allclose(gaps, (5.0 - surfaces[:, 0]) / steepness, rtol=1e-5)
    assert np.ptp(surfaces[:, 0]) > 1.0


def test_what_is_no_place_and_what_is_beyond_the_edge_has_a_ground_too() -> None:
    task = rough(1, terrain_levels=1)
    places = np.array([[np.nan, 0.0, 1.0], [1e30, -1e30, 1.0], [-np.inf, np.inf, 1.0]])
    assert np.isfinite(probe(task.state_values["ground"], places)[0]).all()


def test_each_level_is_harder_than_the_one_before() -> None:
    terrain = make_terrain(ROUGH)
    assert terrain.centers.shape == (10, len(KINDS), 2)
    again = make_terrain(ROUGH)
    np.testing.assert_array_equal(terrain.heights, again.heights)
    assert (make_terrain(changed(ROUGH, terrain_seed=1)).heights != terrain.heights).any()
    for column in range(len(KINDS)):
        roughness = []
        for level in range(10):
            low = np.rint((terrain.centers[level, column] - 8.0 / 2 - terrain.corner) / 0.1).astype(int)
            sub_terrain = terrain.heights[low[1] : low[1] + 81, low[0] : low[0] + 81]
            middle = sub_terrain[37:44, 37:44]
            assert np.ptp(middle) < 1e-6, "a robot begins on flat ground"
            assert not sub_terrain[[0, -1]].any()
            assert not sub_terrain[:, [0, -1]].any()
            roughness.append(np.abs(np.diff(sub_terrain[1:-1, 1:-1], axis=0)).mean())
        assert (np.diff(roughness) > 0).all(), KINDS[column]


def test_each_robot_begins_on_its_sub_terrain_and_stands_there() -> None:
    task = rough(60, CALM, terrain_levels=4, first_levels=4)
    places, levels = task.qpos.numpy()[:, :3], levels_of(task)
    assert set(levels) == {0, 1, 2, 3}
    kinds = np.arange(task.num_envs) % len(KINDS)
    assert np.abs(places[:, :2] - task.terrain.centers[levels, kinds]).max() < 0.31
    for _ in range(50):
        task.step()
    assert not task.done.numpy().any()
    qpos = task.qpos.numpy()
    heights = qpos[:, 2] - probe(task.state_values["ground"], qpos[:, :3])[0][:, 0]
    assert heights == pytest.approx(0.25, abs=0.03)
    feet = task.data("geom_xpos").numpy()[:, find_feet(task.model, task.config.feet)].reshape(-1, 3)
    assert (
        np.abs(probe(task.state_values["ground"], feet)[1] - 0.023) < 0.005
    ).all()  # They touch the ground: a foot's radius above it.
    assert (task.arrays["contacts/feet/air_time"].numpy() == 0).all()


def test_it_sees_the_ground_before_it_and_the_policy_with_errors() -> None:
    task = rough(60, CALM, terrain_levels=2, only_level=1)
    for _ in range(3):
        task.step()
    policy, critic = (task.obs[group].numpy() for group in ("policy", "critic"))
    assert policy.shape == (task.num_envs, 48 + 13 * 9)
    errors = np.abs(policy - critic)[:, 48:]
    assert errors.max() == pytest.approx(0.05, rel=0.05)
    assert np.ptp(errors, axis=0).all(), "each environment and each point has errors of its own"
    env, (ahead, left) = 2, (0.6, -0.4)  # The first row of points is behind, the last one ahead; left is last in it.
    qpos = task.qpos.numpy()[env].astype(float)
    heading = 2 * np.arctan2(qpos[6], qpos[3])  # It stands upright.
    turn = np.array([[np.cos(heading), -np.sin(heading)], [np.sin(heading), np.cos(heading)]])
    place = [*(qpos[:2] + turn @ (ahead, left)), 0.0]
    height = probe(task.state_values["ground"], np.array([place]))[0][0, 0]
    assert critic[env, 48 + 12 * 9] == pytest.approx(qpos[2] - 0.29 - height, abs=0.01)
    drawn: list[Any] = task.scan({"qpos": task.qpos.numpy()[env]})
    np.testing.assert_allclose([qpos[2] - 0.29 - mark.position[2] for mark in drawn], critic[env, 48:], atol=0.01)


def test_it_sees_the_ground_beside_the_heights_of_its_feet() -> None:
    feet = {"feet": Obs("foot_height", contact="feet")}
    config = changed(ROUGH, CALM, terrain_levels=1).change(observations={"critic": feet})
    task, alone = (
        RoughVelocity(each, num_envs=2, device="cpu", seed=1)
        for each in (config, changed(ROUGH, CALM, terrain_levels=1))
    )
    np.testing.assert_array_equal(task.obs["policy"].numpy(), alone.obs["policy"].numpy())
    heights = task.obs["critic"].numpy()[:, -4:]
    assert ((heights > 0.0) & (heights < 0.1)).all()  # The feet are spheres that stand.


def progress(task: RoughVelocity, *, asked: float, walked: float, failed: bool = False) -> np.ndarray:
    """End all episodes after such a way, and return the new levels."""
    task.arrays["commanded_distance"].fill_(asked)
    task.arrays["walked_distance"].fill_(walked)
    task.done.fill_(value=True)
    task.time_out.fill_(not failed)
    task.run("reset", "derive")
    assert not task.arrays["commanded_distance"].numpy().any()
    return levels_of(task)


def test_levels_follow_how_far_a_robot_came() -> None:
    task = rough(terrain_levels=3, first_levels=1)
    assert (levels_of(task) == 0).all()
    assert (progress(task, asked=10.0, walked=9.0) == 1).all()
    assert (progress(task, asked=10.0, walked=7.0) == 1).all()  # Neither far nor near.
    assert (progress(task, asked=1.0, walked=1.0) == 1).all()  # Hardly asked to go anywhere.
    assert (progress(task, asked=10.0, walked=9.0) == 2).all()
    assert (progress(task, asked=10.0, walked=4.0) == 1).all()
    assert (progress(task, asked=10.0, walked=10.0, failed=True) == 0).all()
    assert (progress(task, asked=10.0, walked=0.0) == 0).all()
    for _ in range(3):
        progress(task, asked=10.0, walked=9.0)
    assert set(levels_of(task)) == {0, 1, 2}, "whoever masters the hardest goes to any"


def test_a_restart_changes_no_level() -> None:
    task = rough(terrain_levels=4, first_levels=4)
    levels = levels_of(task)
    task.step()
    task.restart()
    np.testing.assert_array_equal(levels_of(task), levels)


def test_without_a_curriculum_each_episode_is_on_any_level() -> None:
    config = changed(ROUGH, terrain_levels=5).in_play()
    assert not config.curriculum
    task = RoughVelocity(config, num_envs=200, device="cpu", seed=1)
    assert set(levels_of(task)) == set(range(5))
    assert set(progress(task, asked=10.0, walked=0.0, failed=True)) == set(range(5))
    assert set(levels_of(rough(only_level=3))) == {3}
    for each in (task, rough(only_level=3)):  # Returns can be compared.
        assert (each.curriculum(), each.best_metric) == ({}, None)


@pytest.mark.parametrize("is_measured", [True, False])
def test_progress_is_the_way_along_the_command_also_where_no_metric_shows_it(is_measured: bool) -> None:
    removed = {} if is_measured else dict.fromkeys(("walked_share", "terrain_level"))
    config = changed(ROUGH, CALM, terrain_levels=1).change(metrics=removed)
    task = RoughVelocity(config, num_envs=6, device="cpu", seed=1)
    assert task.best_metric == ("terrain_level" if is_measured else None)
    qvel = task.qvel.numpy().copy()
    qvel[:, 0] = 0.4  # Along the world's x.
    task.qvel.assign(qvel)
    qpos = task.qpos.numpy().copy()
    qpos[:, 3:7] = (np.sqrt(0.5), 0, 0, np.sqrt(0.5))  # Facing y: x is to the right.
    task.qpos.assign(qpos)
    commands = np.zeros((6, 3), np.float32)
    commands[:, 1] = (-0.5, -0.3, 0.5, 0.0, 0.0, 0.0)
    commands[3:, 0] = (0.5, 0.0, -0.5)
    task.command_array.assign(commands)
    task.run("reward")
    assert task.arrays["commanded_distance"].numpy() / 0.02 == pytest.approx([0.5, 0.3, 0.5, 0.5, 0.0, 0.5])
    assert task.arrays["walked_distance"].numpy() / 0.02 == pytest.approx([0.4, 0.3, 0.0, 0.0, 0.0, 0.0], abs=1e-6)


def test_an_episode_is_cut_off_at_the_edge_and_has_not_failed() -> None:
    task = rough(4, CALM, terrain_levels=1)
    qpos = task.qpos.numpy().copy()
    qpos[1, 0] = 8.0 / 2 + 2.1  # One level along x, six kinds along y.
    qpos[2, 1] = -3 * 8.0 - 2.1
    qpos[3, 1] = 3 * 8.0 + 1.9
    qpos[1:, 2] = 0.29
    task.qpos.assign(qpos)
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    task.step()
    assert task.done.numpy().tolist() == [False, True, True, False]
    assert task.time_out.numpy().tolist() == [False, True, True, False]
    task.step()
    assert not task.done.numpy().any()


def test_levels_are_dealt_again_to_any_number_of_environments() -> None:
    counts = {"levels": np.array([0.0, 60.0, 0.0, 30.0, 30.0, 0.0, 0.0, 0.0, 0.0, 0.0])}
    task = rough(240)
    task.set_curriculum(counts)
    task.restart()
    assert task.curriculum()["levels"].tolist() == (2 * counts["levels"]).tolist()
    assert WarpVecEnv(task).best_metric == "Metrics/terrain_level"
    kinds = np.arange(240) % len(KINDS)
    levels = levels_of(task)
    assert all((levels[kinds == kind] == 3).sum() == 10 for kind in range(len(KINDS)))
    np.testing.assert_array_less(np.abs(task.qpos.numpy()[:, :2] - task.terrain.centers[levels, kinds]), 0.31)
    task.set_curriculum({"levels": np.ones(3)})  # Of a terrain with other levels.
    np.testing.assert_array_equal(levels_of(task), levels)


@pytest.mark.soak
def test_both_engines_agree() -> None:
    hard = {"njmax": 80, "nconmax": 32, "only_level": 9, "terrains": ("rough", "stairs_down")}
    native, warp = (rough(2, CALM, **hard, engine=engine) for engine in ("mujoco", "mjwarp"))
    rng = np.random.default_rng(0)
    differences: list[float] = []
    for _ in range(25):
        # Each step begins in the same state: a foot that touches another triangle first would lead elsewhere.
        for name in ("qpos", "qvel"):
            warp.data(name).assign(native.data(name))
        actions = rng.normal(0.0, 0.3, (2, 12)).astype(np.float32)
        for task in (native, warp):
            task.actions.assign(actions)
            task.step()
            assert not task.done.numpy().any()
        for name, tolerance in (("qpos", 0.01), ("qvel", 0.3), ("geom_xpos", 0.01)):
            own, other = (task.data(name).numpy() for task in (native, warp))
            np.testing.assert_allclose(other, own, atol=tolerance, err_msg=name)
        differences.append(float(np.abs(warp.qpos.numpy() - native.qpos.numpy()).max()))
    assert np.median(differences) < 1e-3
    assert warp.take_warnings() == {}


def test_no_robot_begins_in_the_ground_where_there_is_no_platform() -> None:
    task = rough(24, CALM, terrains=("random_rough", "wave_terrain"), terrain_levels=2)
    offsets = np.stack(np.meshgrid(*2 * [np.linspace(-0.2, 0.2, 5)]), axis=-1).reshape(-1, 2)
    for place in task.qpos.numpy()[:, :3]:
        around = np.column_stack([place[:2] + offsets, np.zeros(25)])
        assert probe(task.state_values["ground"], around)[0][:, 0].max() == pytest.approx(place[2] - 0.29, abs=1e-3)


def test_the_camera_looks_down_at_the_ground_ahead_ten_times_a_second() -> None:
    config = changed(DEPTH.undisturbed(), terrains=["flat"], terrain_levels=1)
    task = RoughVelocity(config, num_envs=2, device="cpu", seed=1)
    env = WarpVecEnv(task)
    image = env.reset(seed=2)["camera"].clone()
    assert image.shape == (2, 1, 24, 32)
    height = task.qpos.numpy()[1, 2] + 0.03  # On flat ground, before the robot has moved.
    up = (1 - (np.arange(24) + 0.5) / 12) * math.tan(math.radians(30.0))
    depths = height / ((1 - up) * math.sqrt(0.5)) / 2.0
    np.testing.assert_allclose(image[1, 0], np.tile(depths.clip(max=1.0)[:, None], 32), atol=2e-3)
    for step in range(1, 6):
        seen = env.step(torch.zeros(2, env.num_actions))[0]["camera"]
        assert torch.equal(seen, image) == (step < 5)
