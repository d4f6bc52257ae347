"""The reorientation task: terms by their definitions, goals that follow one another, and the hand itself if installed.

The hand's files come with gymnasium-robotics. A stand-in, a palm with two fingers, has the same names and files.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from shoal.config.plain import from_plain
from shoal.errors import UsageError
from shoal.files import Folder
from shoal.mdp.actuators import joint_gains
from shoal.sim.engines.model_copies import copy_model
from shoal.sim.engines.model_files import find_robot
from shoal.sim.render.marks import Ghost
from shoal.tasks.manipulation.reorient import REORIENT_CUBE
from shoal.tasks.manipulation.reorient_task import ReorientCube, check_hand

FINGER = """
<body pos="{x} 0.78 0.15"><joint name="robot0:{name}J0" axis="1 0 0" range="0 1.5" damping="0.1" armature="0.001"/>
  <geom type="capsule" fromto="0 0 0 0 0 0.04" size="0.008"/><site name="robot0:S_{name}tip" pos="0 0 0.04"/></body>"""
FILES = {
    "robot.xml": f"""<mujoco><body name="robot0:palm">
      <geom type="box" pos="1 0.87 0.139" size="0.05 0.07 0.011"/>
      {FINGER.format(x=0.98, name="ff")}{FINGER.format(x=1.02, name="th")}</body></mujoco>""",
    "shared.xml": """<mujoco><actuator>
      <position name="robot0:A_ff" joint="robot0:ffJ0" kp="1" ctrllimited="true" ctrlrange="0 1"/>
      <position name="robot0:A_th" joint="robot0:thJ0" kp="1" ctrllimited="true" ctrlrange="-0.5 1.5"/></actuator>
      <sensor><jointpos joint="robot0:ffJ0"/></sensor></mujoco>""",
    "shared_asset.xml": """<mujoco>
      <texture type="skybox" builtin="flat" rgb1="0 1 0" width="8" height="8"/></mujoco>""",
    "manipulate_block.xml": """<mujoco><include file="shared.xml"/><asset><include file="shared_asset.xml"/></asset>
      <worldbody><include file="robot.xml"/></worldbody></mujoco>""",
}
IS_INSTALLED = importlib.util.find_spec("gymnasium_robotics") is not None
STILL: dict[str, Any] = {"joints": {"position": [0.0, 0.0]}, "cube": {axis: [0.0, 0.0] for axis in "xyz"}}
ENVS = 4


@pytest.fixture(scope="module")
def hand(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write the stand-in, and return its file."""
    directory = tmp_path_factory.mktemp("hand")
    for name, text in FILES.items():
        (directory / name).write_text(text, encoding="utf-8")
    return str(directory / "manipulate_block.xml")


def begun(hand: str, **changes: Any) -> ReorientCube:
    """Return environments whose hand and cube begin in the default pose, but for the cube's yaw."""
    config = from_plain(REORIENT_CUBE, {"robot": hand, "events": STILL} | changes)
    task = ReorientCube(config, num_envs=ENVS, device="cpu", seed=3)
    task.restart(7)
    return task


@pytest.fixture(scope="module")
def task(hand: str) -> ReorientCube:
    return begun(hand)


@pytest.fixture(autouse=True)
def _begin_again(request: pytest.FixtureRequest) -> None:
    if "task" in request.fixturenames:
        request.getfixturevalue("task").restart(7)


def goals_of(task: ReorientCube) -> np.ndarray:
    """Return the goals. Shape (num_envs, 4)."""
    return task.command_array.numpy().copy()


def step(task: ReorientCube, action: float = 0.0) -> dict[str, np.ndarray]:
    """Step, and return terms and metrics by name."""
    task.actions.fill_(action)
    task.step()
    terms = dict(zip(task.reward_terms, task.terms.numpy().T, strict=True))
    return terms | {f"metric {name}": row for name, row in zip(task.metrics, task.metric_values.numpy().T, strict=True)}


def angles(task: ReorientCube, goals: np.ndarray) -> np.ndarray:
    """Return the angle from each cube to its goal, by MuJoCo [rad]. Shape (num_envs,)."""
    found = [np.zeros(3) for _ in goals]
    for turn, goal, row in zip(found, goals.astype(float), task.qpos.numpy().astype(float), strict=True):
        mujoco.mju_subQuat(turn, goal, row[-4:])
    return np.linalg.norm(found, axis=1)


def put_goals(task: ReorientCube, angle: float) -> np.ndarray:
    """Put each goal at an angle about x from its cube; return the goals, (num_envs, 4)."""
    turn, goals = np.array([math.cos(angle / 2), math.sin(angle / 2), 0, 0]), np.zeros((ENVS, 4))
    for goal, row in zip(goals, task.qpos.numpy().astype(float), strict=True):
        mujoco.mju_mulQuat(goal, turn, row[-4:])
    task.command_array.assign(goals.astype(np.float32))
    return goals


def test_rewards_are_those_of_their_definitions(task: ReorientCube) -> None:
    goals = put_goals(task, 1.2)
    step(task, action=0.5)
    before = angles(task, goals)
    found = step(task, action=0.5)
    error, place = angles(task, goals), task.qpos.numpy()[:, -7:-4] - task.home()[-7:-4]
    assert error.min() > 1.0
    np.testing.assert_allclose(found["metric orientation_error"], error, atol=1e-5)
    np.testing.assert_allclose(found["orientation"], 1 / (error + 0.1), rtol=1e-5)
    np.testing.assert_allclose(found["turned"], (before - error) * 30, atol=1e-4)
    np.testing.assert_allclose(found["position"], np.linalg.norm(place, axis=1), rtol=1e-4)
    np.testing.assert_allclose(found["action"], 2 * 0.5**2)
    assert found["success"].tolist() == found["fall"].tolist() == [0.0] * ENVS


def test_actions_move_targets_between_the_limits_of_the_controls(task: ReorientCube) -> None:
    alpha = 0.3
    step(task, action=1.0)
    np.testing.assert_allclose(task.ctrl.numpy()[0], alpha * np.array([1.0, 1.5]), rtol=1e-6)
    step(task, action=-2.0)  # Clipped to -1.
    wanted = alpha * np.array([0.0, -0.5]) + (1 - alpha) * alpha * np.array([1.0, 1.5])
    np.testing.assert_allclose(task.ctrl.numpy()[0], wanted, rtol=1e-6)


def test_a_goal_that_is_reached_is_paid_once_and_the_next_one_is_drawn(task: ReorientCube) -> None:
    first = goals_of(task)
    np.testing.assert_allclose(first[:, 1:3], 0.0, atol=1e-7)  # Turns about z.
    put_goals(task, 0.3)
    found = step(task)
    assert found["success"].tolist() == found["metric consecutive_successes"].tolist() == [1.0] * ENVS
    second = goals_of(task)
    assert (angles(task, second) > 0.4).any()
    before = angles(task, second)
    far = before > 0.45
    found = step(task)
    np.testing.assert_allclose(found["turned"], (before - angles(task, second)) * 30, atol=1e-4)  # From the new goal.
    assert found["success"][far].tolist() == [0.0] * far.sum()
    np.testing.assert_array_equal(goals_of(task)[far], second[far])
    for metric in ("consecutive_successes", "success"):
        assert found[f"metric {metric}"][far].tolist() == [1.0] * far.sum()


def test_an_episode_ends_when_the_cube_leaves_the_hand_and_the_count_begins_again(task: ReorientCube) -> None:
    put_goals(task, 0.0)
    step(task)
    qpos = task.qpos.numpy()
    qpos[:2, -5] += 0.2
    task.qpos.assign(qpos)
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    found = step(task)
    assert task.done.numpy().tolist() == [True, True, False, False]
    assert found["fall"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert task.arrays["successes"].numpy()[:2].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(task.qpos.numpy()[:2, -7:-4], np.tile(task.home()[-7:-4], (2, 1)), atol=1e-6)


def test_observations_have_the_goal_and_the_cube(task: ReorientCube) -> None:
    goals = put_goals(task, 1.0)
    step(task)
    obs, at = task.obs["policy"].numpy(), 0
    columns: dict[str, np.ndarray] = {}
    for name, bound in task.bound.observations["policy"].items():
        columns[name], at = obs[:, at : at + len(bound.columns)], at + len(bound.columns)
    np.testing.assert_allclose(columns["cube_quat"], task.qpos.numpy()[:, -4:], rtol=1e-6)
    np.testing.assert_allclose(columns["goal"], goals, rtol=1e-6)
    np.testing.assert_allclose(2 * np.arccos(columns["goal_quat_diff"][:, 0]), angles(task, goals), atol=1e-3)
    assert columns["fingertips"].shape == (ENVS, 6)
    np.testing.assert_allclose(columns["fingertips"][:, 0], 0.98, atol=1e-6)


def test_goals_may_be_turned_about_all_axes(hand: str) -> None:
    turn = [-math.pi, math.pi]
    task = begun(hand, commands={"goal": {"roll": turn, "pitch": turn}}, success_tolerance=3.2)
    drawn = [goals_of(task)]
    for _ in range(9):
        step(task)
        drawn.append(goals_of(task))
    goals = np.concatenate(drawn)
    np.testing.assert_allclose(np.linalg.norm(goals, axis=1), 1.0, rtol=1e-6)
    assert (np.abs(goals).max(axis=0) > 0.5).all()
    assert task.arrays["successes"].numpy().tolist() == [9.0] * ENVS  # Any angle is below this tolerance.


def test_the_goal_is_drawn_as_a_cube_above_the_hand(task: ReorientCube) -> None:
    row = {"commands": np.array([0.0, 1.0, 0.0, 0.0]), "qpos": task.home()}
    (mark,) = task.marks(row)
    assert isinstance(mark, Ghost)
    assert (mark.body, [*mark.positions[-4:]]) == ("cube/body", [0.0, 1.0, 0.0, 0.0])
    assert mark.positions[-5] > task.home()[-5] + 0.05


def test_a_run_keeps_a_copy_of_the_hand(hand: str, tmp_path: Path) -> None:
    copy_model(Path(hand), Folder(tmp_path), tmp_path / "robot", "model.xml")
    config = from_plain(REORIENT_CUBE, {"robot": str(tmp_path / "robot" / "model.xml")})
    assert ReorientCube.build_model(config).nu == 2


@pytest.mark.skipif(IS_INSTALLED, reason="gymnasium-robotics is installed")
def test_a_hand_that_is_not_installed_is_refused_with_the_package_to_install() -> None:
    with pytest.raises(UsageError, match=r"for manipulate_block gymnasium-robotics, each with `pip install --no-deps`"):
        check_hand(REORIENT_CUBE, REORIENT_CUBE)


@pytest.mark.skipif(not IS_INSTALLED, reason="needs the files of gymnasium-robotics: pip install --no-deps")
def test_the_cube_rests_on_the_palm_of_the_shadow_hand(tmp_path: Path) -> None:
    copy_model(find_robot("manipulate_block"), Folder(tmp_path), tmp_path / "robot", "model.xml")
    copied = next((tmp_path / "robot").rglob("model.xml"))
    for robot in ("manipulate_block", str(copied)):
        model = ReorientCube.build_model(from_plain(REORIENT_CUBE, {"robot": robot}))
        assert (model.nu, model.nq, model.body(model.nbody - 1).name) == (20, 31, "cube/body")
        kp, _, limits = joint_gains(model, range(model.nu))
        assert (kp.min(), kp.max(), limits.max()) == (1.0, 5.0, 4.785)
        data = mujoco.MjData(model)
        mujoco.mj_step(model, data, 240)
        assert np.linalg.norm(data.qpos[-7:-4] - model.qpos0[-7:-4]) < 0.02


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("robot", ["stand-in", "manipulate_block"])
def test_both_engines_agree(robot: str, hand: str) -> None:
    if robot == "stand-in":
        robot = hand
    elif not IS_INSTALLED:
        pytest.skip("needs the files of gymnasium-robotics: pip install --no-deps")
    high = STILL | {"cube": {"x": [0.0, 0.0], "y": [0.0, 0.0], "z": [0.05, 0.05]}}
    native, warp = (begun(robot, engine=engine, events=high) for engine in ("mujoco", "mjwarp"))
    draws = np.random.default_rng(0)
    for _ in range(2):  # The cube is in the air.
        actions = draws.uniform(-1, 1, native.actions.shape).astype(np.float32)
        for task in (native, warp):
            task.actions.assign(actions)
            task.step()
    for name in ("qpos", "ctrl"):
        np.testing.assert_allclose(warp.data(name).numpy(), native.data(name).numpy(), atol=1e-4, err_msg=name)
    np.testing.assert_array_equal(goals_of(warp), goals_of(native))
    np.testing.assert_allclose(warp.obs["policy"].numpy(), native.obs["policy"].numpy(), atol=2e-3)
    np.testing.assert_allclose(warp.terms.numpy(), native.terms.numpy(), atol=1e-3)
    for task in (native, warp):
        for _ in range(15):  # It falls on the palm. The engines find other contact points.
            step(task)
    np.testing.assert_allclose(warp.qpos.numpy()[:, -7:-4], native.qpos.numpy()[:, -7:-4], atol=0.01)
    assert not native.done_terms.numpy().any()
