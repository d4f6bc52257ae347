"""Sub-terrains of rough terrain: heights worked out by hand, the same in every version, and numbers that are flags."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
from support.calm import changed

from shoal.errors import ShoalError, UsageError
from shoal.mdp import sub_terrains
from shoal.mdp.scene import compile_scene
from shoal.mdp.terms import COUNTS, Command, Done, SubTerrain
from shoal.mdp.terrain import make_terrain, robot_on_terrain
from shoal.mdp.terrain_config import SUB_TERRAINS
from shoal.tasks.humanoid.velocity import G1_ROUGH
from shoal.tasks.quadruped.config import ROUGH
from shoal.tasks.quadruped.task import RoughVelocity

MIDDLE = 40


def sub_terrain(name: str, difficulty: float, seed: int = 0, **changes: Any) -> np.ndarray:
    """Heights of a kind's points [m]. Shape (81, 81)."""
    term = replace(SUB_TERRAINS[name], **changes)
    values = {each: getattr(term, each) for each in term.parameters}
    return getattr(sub_terrains, str(term.func))(sub_terrains.Plot(difficulty, np.random.default_rng(seed)), **values)


@pytest.mark.parametrize("name", SUB_TERRAINS)
def test_a_sub_terrain_meets_its_neighbours_and_has_a_place_to_begin_on(name: str) -> None:
    for difficulty in (0.0, 1.0):
        heights = sub_terrain(name, difficulty)
        assert heights.shape == (81, 81)
        assert np.isfinite(heights).all()
        if getattr(SUB_TERRAINS[name], "border_width", 0.0):
            assert not heights[[0, 1, -2, -1]].any()
            assert not heights[:, [0, 1, -2, -1]].any()
        if "platform_width" in SUB_TERRAINS[name].parameters:
            around = 4 if name != "narrow_beams" else 2  # Its platform shrinks with the beams.
            platform = heights[MIDDLE - around : MIDDLE + around + 1, MIDDLE - around : MIDDLE + around + 1]
            assert np.ptp(platform) < 1e-9


@pytest.mark.parametrize("name", [name for name in SUB_TERRAINS if name not in {"flat", "random_rough", "open_stairs"}])
def test_a_harder_sub_terrain_is_rougher(name: str) -> None:
    roughness = [np.std([sub_terrain(name, difficulty, seed) for seed in range(4)]) for difficulty in (0.0, 0.5, 1.0)]
    assert (np.diff(roughness) > 0).all() or name in {"narrow_beams", "nested_rings", "stepping_stones"}
    if name in {"narrow_beams", "nested_rings", "stepping_stones"}:  # Less is left to stand on.
        standing = [(sub_terrain(name, difficulty) > -1.0).mean() for difficulty in (0.0, 0.5, 1.0)]
        assert (np.diff(standing) < 0).all()


def test_stairs_have_the_steps_that_were_asked_for() -> None:
    up = sub_terrain("pyramid_stairs", 0.5)  # A border of 1 m, steps of 0.3 m, the platform from 2.5 m on.
    np.testing.assert_allclose(up[MIDDLE, [9, 10, 12, 13, 16, 24, 25, 40]], np.array([0, 1, 1, 2, 3, 5, 6, 6]) * 0.1)
    np.testing.assert_array_equal(sub_terrain("pyramid_stairs_inv", 0.5), -up)
    np.testing.assert_array_equal(up, up.T)


def test_a_slope_rises_as_asked_along_its_axes() -> None:
    heights = sub_terrain("hf_pyramid_slope", 1.0)
    assert np.diff(heights[MIDDLE, 2:21]) == pytest.approx(0.07)
    assert heights[MIDDLE, MIDDLE] == pytest.approx(0.7 * 3.8 * (2.8 / 3.8) ** 2)


def test_gaps_are_as_deep_and_as_wide_as_asked() -> None:
    rings = sub_terrain("nested_rings", 1.0, border_width=0.2, gap_range=(0.1, 0.4), floor_depth=1.0)
    assert rings[MIDDLE, :14].tolist() == [0.0] * 5 + [-1.0] * 4 + [0.0] * 3 + [-1.0] * 2


def test_the_terrain_of_the_quadruped_is_the_documented_one() -> None:
    terrain = make_terrain(ROUGH)
    whole = np.rint(terrain.heights * 1e5).astype("<i4")
    assert whole.shape == (561, 881)
    assert hashlib.sha256(whole.tobytes()).hexdigest()[:16] == "7d845322846e81c8"


def test_a_kind_that_is_named_twice_has_two_columns() -> None:
    terrain = make_terrain(replace(ROUGH, terrains=("random_rough", "flat", "random_rough"), terrain_levels=1))
    assert terrain.centers[0].tolist() == [[0.0, -8.0], [0.0, 0.0], [0.0, 8.0]]
    first, last = terrain.heights[40:120, 40:120], terrain.heights[200:280, 40:120]
    assert (first != last).any()
    assert G1_ROUGH.terrains.count("flat") == 2
    assert G1_ROUGH.terms("sub_terrains")["hf_pyramid_slope"] == replace(
        SUB_TERRAINS["hf_pyramid_slope"], slope_range=(0.0, 1.0)
    )


def craters(plot: sub_terrains.Plot, depth: float) -> np.ndarray:
    return np.full(plot.away.shape, -depth * plot.difficulty)


def test_numbers_of_a_kind_and_kinds_of_ones_own_make_the_ground() -> None:
    config = changed(ROUGH, terrains=["wave_terrain"], sub_terrains={"wave_terrain": {"amplitude_range": [0.0, 0.4]}})
    assert np.ptp(make_terrain(config).heights) == pytest.approx(0.8, abs=0.01)
    own = ROUGH.change(sub_terrains={"craters": SubTerrain(craters, depth=0.5), "rough": None}, terrains=("craters",))
    assert make_terrain(own).heights.min() == -0.5


def test_a_whole_number_of_a_sub_terrain_is_a_number_unless_the_function_counts_with_it() -> None:
    own = ROUGH.change(
        sub_terrains={
            "craters": SubTerrain(craters, depth=1),
            "stairs": SubTerrain("pyramid_stairs", **(STAIRS | {"step_width": 1})),
        },
        terrains=("craters",),
    )
    config = changed(own, sub_terrains={"craters": {"depth": 0.5}, "stairs": {"step_width": 0.5}})
    assert make_terrain(config).heights.min() == -0.5
    assert type(config.terms("sub_terrains")["stairs"].step_width) is float
    with pytest.raises(UsageError, match=r"num_waves is 2\.5, but must be a whole number\."):
        changed(ROUGH, sub_terrains={"wave_terrain": {"num_waves": 2.5}})
    counts = {
        name
        for function in vars(sub_terrains).values()
        if inspect.isfunction(function)
        for name, kind in inspect.signature(function).parameters.items()
        if kind.annotation is int
    }
    assert counts == COUNTS


STAIRS = {"step_height_range": (0.0, 0.1), "step_width": 0.3, "platform_width": 3.0, "border_width": 1.0}


def test_sub_terrains_of_another_size_have_steps_of_the_same_size_in_smaller_cells() -> None:
    stairs = changed(ROUGH, terrains=["pyramid_stairs"], terrain_levels=2, sub_terrain_size=6.0, horizontal_scale=0.05)
    terrain = make_terrain(stairs)
    assert terrain.heights.shape == (120 + 160 + 1, 240 + 160 + 1)
    assert terrain.centers[:, 0].tolist() == [[-3.0, 0.0], [3.0, 0.0]]
    # The harder one, from its edge to its middle: a border of 1 m, steps of 0.3 m and 0.2 m up, a platform of 3 m.
    row = terrain.heights[140, 200:261]
    np.testing.assert_allclose(
        row[[0, 19, 21, 25, 27, 31, 33, 60]], np.array([0, 0, 1, 1, 2, 2, 2, 2]) * 0.2, atol=1e-6
    )


def test_robots_begin_on_the_flat_patches_of_a_sub_terrain() -> None:
    config = changed(ROUGH, terrains=["discrete_obstacles", "random_rough"], terrain_levels=3, num_patches=20)
    terrain = make_terrain(config)
    np.testing.assert_array_equal(terrain.heights, make_terrain(replace(config, num_patches=0)).heights)
    away = np.abs(terrain.patches - terrain.centers[:, :, None]).max(axis=-1)
    assert (away[:, 1] == 0.0).all(), "nothing is flat there, so they begin in the middle"
    assert (away[:, 0] <= 3.5 + 1e-9).all()
    assert len(np.unique(terrain.patches[2, 0], axis=0)) > 10
    for x, y in terrain.patches[:, 0].reshape(-1, 2):
        column, row = np.rint((np.array([x, y]) - terrain.corner) / 0.1).astype(int)
        assert np.ptp(terrain.heights[row - 5 : row + 6, column - 5 : column + 6]) <= 0.05 + 1e-6
    task = walking(config)
    for x, y in task.qpos.numpy()[:, :2]:
        near = np.abs(terrain.patches.reshape(-1, 2) - (x, y)).max(axis=1)
        assert near.min() <= 0.5  # The event's own `spread`.
    assert len(np.unique(task.qpos.numpy()[::2, :2].round(), axis=0)) > 4


def test_an_episode_may_end_at_the_edge_of_its_sub_terrain() -> None:
    edge = Done("terrain_edge_reached", time_out=True, threshold_fraction=0.9)
    task = walking(changed(ROUGH, terrains=["flat", "rough"], terrain_levels=2).change(terminations={"edge": edge}))
    at, rng = [*task.terminations].index("edge"), np.random.default_rng(0)
    centers = task.terrain.centers[task.levels.numpy(), np.arange(24) % 2]
    away = rng.uniform(-5.0, 5.0, (24, 2))
    task.qpos.numpy()[:, :2] = centers + away
    for age in (2, 3):
        task.age.fill_(age)
        task.run("reward")
        ended = task.done_terms.numpy()[:, at]
        np.testing.assert_array_equal(ended, (np.abs(away) > 0.9 * 4.0).any(axis=1) & (age > 2))
    assert 0 < ended.sum() < 24


def test_targets_are_flat_patches_of_the_sub_terrain_as_seen_from_the_base() -> None:
    columns = {"pos_x": "m", "pos_y": "m", "pos_z": "m", "heading": "rad"}
    goal: dict[str, Any] = {"func": "terrain_based_pose_2d", "columns": columns, "resampling_time": (9.0, 9.0)}
    config = changed(ROUGH, terrains=["discrete_obstacles", "flat"], terrain_levels=2, num_patches=8)
    commands = {"goal": Command(**goal, heading=(-1.0, 1.0)), "simple": Command(**goal, simple_heading=True)}
    task = walking(config.change(commands=commands))
    patches = task.terrain.patches[task.levels.numpy(), np.arange(24) % 2]
    data, down = mujoco.MjData(task.model), np.array([0.0, 0.0, -1.0])
    mujoco.mj_forward(task.model, data)
    first: Any = None
    for _ in range(2):
        w, x, y, z = task.qpos.numpy()[:, 3:7].T
        yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
        seen = task.command_array.numpy()[:, 3:].reshape(24, 2, 4).astype(float)
        targets = task.qpos.numpy()[:, None, :3].repeat(2, axis=1).astype(float)
        targets[..., :2] += np.einsum("ijn,ncj->nci", turn, seen[..., :2])
        targets[..., 2] += seen[..., 2]
        nearest = np.abs(patches[:, None] - targets[:, :, None, :2]).max(axis=-1).min(axis=-1)
        assert nearest.max() < 1e-4
        headings = (seen[..., 3] + yaw[:, None] + np.pi) % (2 * np.pi) - np.pi
        if first is None:
            first = targets, headings
            for target in targets.reshape(-1, 3)[:8]:
                ray = mujoco.mj_rayHfield(
                    task.model, data, task.model.geom("floor").id, np.array([*target[:2], 5.0]), down
                )
                assert target[2] == pytest.approx(5.0 - ray + task.home()[2], abs=1e-4)
            assert np.abs(headings[:, 0]).max() <= 1.0 + 1e-4
            ahead = targets[:, 1, :2] - task.qpos.numpy()[:, :2]
            off = headings[:, 1] - np.arctan2(ahead[:, 1], ahead[:, 0])
            np.testing.assert_allclose(np.sin(off), 0.0, atol=1e-3)  # Ahead or behind,
            assert np.abs(seen[:, 1, 3]).max() <= np.pi / 2 + 1e-3  # whichever is nearer.
        np.testing.assert_allclose(targets, first[0], atol=1e-4)  # It stays where it is while the robot moves.
        np.testing.assert_allclose(np.cos(headings - first[1]), 1.0, atol=1e-4)
        task.actions.fill_(0.5)
        for _ in range(3):
            task.step()
        assert not task.done.numpy().any()
    assert len(np.unique(first[0].round(3).reshape(-1, 3), axis=0)) > 10


def test_open_stairs_are_boxes_with_air_below_that_the_scan_sees() -> None:
    config = changed(ROUGH, terrains=["open_stairs"], terrain_levels=1)
    terrain, model = make_terrain(config), compile_scene(robot_on_terrain(config), config)
    assert not terrain.floor.any()
    data = mujoco.MjData(model)
    data.qpos[0] = 50.0  # The robot is not in the way.
    mujoco.mj_forward(model, data)
    down, geom = np.array([0.0, 0.0, -1.0]), np.zeros(1, dtype=np.int32)
    rng = np.random.default_rng(0)
    for column, row in rng.integers(45, 115, (60, 2)):
        x, y = terrain.corner[0] + 0.1 * column, terrain.corner[1] + 0.1 * row
        if min(abs((3.75 - max(abs(x), abs(y))) % 0.8), abs(-(3.75 - max(abs(x), abs(y))) % 0.8)) > 1e-6:
            ray = mujoco.mj_ray(model, data, np.array([x, y, 5.0]), down, None, 1, -1, geom, None)
            assert 5.0 - ray == pytest.approx(terrain.heights[row, column], abs=1e-5)
    # The first step is 0.05 m thick, 0.1 m high, and 0.8 m wide.
    below = mujoco.mj_ray(model, data, np.array([3.5, 0.0, 0.04]), -down, None, 1, -1, geom, None)
    assert below == pytest.approx(0.01)
    np.testing.assert_allclose(terrain.heights.max(), 0.5, atol=1e-6)


def walking(config: Any) -> Any:
    """Build the task of the quadruped on a terrain."""
    return RoughVelocity(config, num_envs=24, device="cpu", seed=0)


def test_what_is_no_terrain_is_refused() -> None:
    with pytest.raises(UsageError, match=r"env.terrains is .*, but must have one or more .* 'rough', 'boxes'"):
        replace(ROUGH, terrains=("lava",))
    with pytest.raises(UsageError, match=r"env.horizontal_scale is 1e-06, but must lie in \[0.01, 0.5\]"):
        replace(ROUGH, horizontal_scale=1e-6)
    with pytest.raises(UsageError, match=r"env.terrains is \(\)"):
        replace(ROUGH, terrains=())
    with pytest.raises(UsageError, match=r"env.sub_terrains.pyramid_stairs.step_width is 0.0, but must be above 0"):
        changed(ROUGH, sub_terrains={"pyramid_stairs": {"step_width": 0.0}})
    with pytest.raises(ShoalError, match=r"sub_terrains.own is 'pyramid_stair', .* Did you mean 'pyramid_stairs'"):
        make_terrain(ROUGH.change(sub_terrains={"own": SubTerrain("pyramid_stair")}))
