"""The lifting task: an arm that is led by hand lifts the cube, and the terms are those of their definitions."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np
import pytest

from shoal.config.plain import from_plain
from shoal.envs.vec_env import WarpVecEnv
from shoal.mdp.terms import Command, Obs, Reward
from shoal.tasks.manipulation.config import LIFT_CUBE, LIFT_CUBE_DEPTH
from shoal.tasks.manipulation.task import LiftCube

HOME = np.array([0.0, 0.467, 1.64, 1.034, 0.0, 0.005])
SCALE = np.array([0.5, 0.5, 0.5, 0.5, 0.5, 0.02])
OPEN, CLOSED = 0.04, 0.0
EXACT: dict[str, Any] = {"x": [0.0, 0.0], "y": [0.0, 0.0], "yaw": [0.0, 0.0]}


def begun(**cube: Any) -> LiftCube:
    """Return environments whose cube begins at a known place."""
    config = from_plain(LIFT_CUBE.undisturbed(), {"events": {"cube": EXACT | cube}})
    task = LiftCube(config, num_envs=2, device="cpu", seed=3)
    task.restart(7)
    return task


def joints(x: float, z: float, gripper: float) -> np.ndarray:
    """Return the joint positions whose hand points down at a place: links of 0.3, 0.25 and 0.13 m. Shape (6,)."""
    forward, up = x, z + 0.13 - 0.15
    elbow = math.acos((forward**2 + up**2 - 0.3**2 - 0.25**2) / (2 * 0.3 * 0.25))
    shoulder = math.atan2(forward, up) - math.atan2(0.25 * math.sin(elbow), 0.3 + 0.25 * math.cos(elbow))
    return np.array([0.0, shoulder, elbow, math.pi - shoulder - elbow, 0.0, gripper])


def move(task: LiftCube, target: np.ndarray, steps: int) -> None:
    task.actions.assign(np.tile((target - HOME) / SCALE, (2, 1)).astype(np.float32))
    for _ in range(steps):
        task.step()


def metrics(task: LiftCube) -> dict[str, np.ndarray]:
    return dict(zip(task.metrics, task.metric_values.numpy().T, strict=True))


def test_episodes_begin_with_the_cube_on_the_ground_before_the_arm() -> None:
    task = LiftCube(LIFT_CUBE.in_play(), num_envs=256, device="cpu", seed=3)
    task.restart(7)
    cube = task.qpos.numpy()[:, -7:]
    (x, y, z), angle = task.home()[-7:-4], 2 * np.arctan2(cube[:, 6], cube[:, 3])
    np.testing.assert_allclose(cube[:, 2], z, atol=1e-6)
    np.testing.assert_allclose(cube[:, 4:6], 0.0, atol=1e-6)
    for drawn, middle, most in ((cube[:, 0], x, 0.1), (cube[:, 1], y, 0.15), (angle, 0.0, math.pi / 4)):
        assert 0.9 * most < np.abs(drawn - middle).max() <= most + 1e-6


def test_an_arm_that_is_led_lifts_the_cube_to_its_goal() -> None:
    # All within 3 s, before the next goal is drawn.
    task = begun(in_hand=0.0)
    commands = task.command_array
    commands.assign(np.tile([0.35, 0.0, 0.25], (2, 1)).astype(np.float32))
    move(task, np.array([*HOME[:5], OPEN]), 20)
    move(task, joints(0.35, 0.02, OPEN), 60)
    assert metrics(task)["success"].tolist() == [0.0, 0.0]
    move(task, joints(0.35, 0.02, CLOSED), 20)
    move(task, joints(0.35, 0.25, CLOSED), 45)
    assert metrics(task)["position_error"].max() < 0.05
    assert metrics(task)["success"].tolist() == [1.0, 1.0]
    assert metrics(task)["object_height"].min() > 0.2
    assert not task.arrays["done_terms"].numpy().any()


def test_a_cube_in_the_hand_stays_there_while_the_gripper_closes_and_else_falls() -> None:
    task = begun(in_hand=1.0)
    np.testing.assert_allclose(task.data("xpos").numpy()[:, -1], [[0.35, 0.0, 0.16]] * 2, atol=1e-6)
    move(task, np.array([*HOME[:5], CLOSED]), 50)
    assert metrics(task)["object_height"].min() > 0.13
    move(task, np.array([*HOME[:5], OPEN]), 50)
    assert metrics(task)["object_height"].max() < 0.03


def test_rewards_are_those_of_their_definitions() -> None:
    task = begun(in_hand=0.0)
    move(task, HOME + SCALE, 3)
    cube, site = task.data("xpos").numpy()[:, -1], task.data("site_xpos").numpy()[:, 0]
    goal = task.command_array.numpy()
    reach, left = np.sum((site - cube) ** 2, axis=1), np.sum((goal - cube) ** 2, axis=1)
    terms = dict(zip(task.reward_terms, task.terms.numpy().T, strict=True))
    np.testing.assert_allclose(terms["lift"], np.exp(-reach / 0.1**2) * (1 + np.exp(-left / 0.3**2)), rtol=1e-5)
    np.testing.assert_allclose(terms["lift_precise"], np.exp(-left / 0.05**2), rtol=1e-4)
    excess = np.maximum(np.abs(task.qvel.numpy()[:, :-6]) - 0.5, 0.0)
    np.testing.assert_allclose(terms["joint_vel_hinge"], np.sum(excess**2, axis=1), rtol=1e-5)


def test_play_and_evaluate_begin_with_the_cube_on_the_ground() -> None:
    assert LIFT_CUBE.terms("events")["cube"].in_hand > 0.0
    assert LIFT_CUBE.in_play().terms("events")["cube"].in_hand == 0.0


@pytest.mark.slow
@pytest.mark.soak
def test_it_runs_on_mujoco_warp_too() -> None:
    config = from_plain(LIFT_CUBE, {"engine": "mjwarp"})
    task = LiftCube(config, num_envs=2, device="cpu", seed=3)
    move(task, HOME, 5)
    assert np.isfinite(task.obs["policy"].numpy()).all()


OWN = "shoal.tasks.manipulation.terms:"


def test_the_hand_sees_its_speed_and_goal_and_the_reward_is_of_the_object_that_is_asked_for() -> None:
    several = {"object_bodies": "cube/body|right_finger", "command": "several"}
    places: dict[str, Any] = {"x": (0.1, 0.4), "y": (-0.2, 0.2), "z": (0.1, 0.3)}
    columns = {"to_x": "m", "to_y": "m", "to_z": "m", "object": ""}
    many = Command(
        f"{OWN}multi_cube_lifting",
        columns=columns,
        resampling_time=(9.0, 9.0),
        object_bodies="cube/body|right_finger",
        **places,
    )
    rewards = {
        "lift": Reward(
            f"{OWN}multi_cube_staged_position_reward", 1.0, site="grasp", reaching_std=0.3, bringing_std=0.5, **several
        ),
        "bring": Reward(f"{OWN}multi_cube_bring_object_reward", 1.0, std=0.5, **several),
    }
    seen = {
        "speed": Obs(f"{OWN}ee_velocity", site="grasp"),
        "goal": Obs(f"{OWN}target_position", site="grasp", command="goal"),
    }
    config = LIFT_CUBE.change(
        commands={"several": many},
        rewards=dict.fromkeys(LIFT_CUBE.terms("rewards")) | rewards,
        observations={"policy": dict.fromkeys(LIFT_CUBE.parts()["observations"]["policy"]) | seen},
    )
    task = LiftCube(config, num_envs=16, device="cpu", seed=0)
    rng, model = np.random.default_rng(0), task.model
    task.qpos.numpy()[:, :-7] += rng.uniform(-0.3, 0.3, (16, model.nq - 7))
    task.qvel.numpy()[:] = rng.normal(size=task.qvel.shape)
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    task.run("reward")
    task.run("observe")
    commands, velocity = task.command_array.numpy(), np.zeros(6)
    assert {*commands[:, 6]} == {0.0, 1.0}
    for env, command in enumerate(commands):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = task.qpos.numpy()[env], task.qvel.numpy()[env]
        mujoco.mj_forward(model, data)
        site = data.site("grasp")
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_SITE, model.site("grasp").id, velocity, 1)
        goal = site.xmat.reshape(3, 3).T @ (command[:3] - site.xpos)
        np.testing.assert_allclose(task.obs["policy"].numpy()[env], [*velocity[3:], *goal], atol=2e-5)
        chosen = sorted(model.body(name).id for name in ("cube/body", "right_finger"))[int(command[6])]
        left = np.exp(-np.sum((command[3:6] - data.xpos[chosen]) ** 2) / 0.5**2)
        reach = np.exp(-np.sum((data.xpos[chosen] - site.xpos) ** 2) / 0.3**2)
        np.testing.assert_allclose(task.terms.numpy()[env], [reach * (1.0 + left), left], rtol=1e-4)


def test_the_camera_of_the_hand_sees_the_ground_and_the_top_of_a_cube_below_it() -> None:
    # At rest the hand points down, at 0.35 m and 0.25 m above the ground, and the camera is 0.07 m before it.
    below = EXACT | {"x": [0.07, 0.07], "in_hand": 0.0}
    config = from_plain(LIFT_CUBE_DEPTH.undisturbed(), {"events": {"cube": below}})
    env = WarpVecEnv(LiftCube(config, num_envs=2, device="cpu", seed=3))
    image = env.reset(seed=7)["camera"]
    assert image.shape == (2, 1, 32, 32)
    tilt, half = math.radians(20.0), math.tan(math.radians(40.0))
    rows, columns = np.mgrid[:32, :32]
    up, right = (1 - (rows + 0.5) / 16) * half, ((columns + 0.5) / 16 - 1) * half
    falls = math.cos(tilt) + up * math.sin(tilt)
    ahead = up * math.cos(tilt) - math.sin(tilt)
    top = 0.21 / falls
    is_cube = (np.abs(ahead * top) < 0.02) & (np.abs(right * top) < 0.02)
    assert 4 < is_cube.sum() < 40
    wanted = np.where(is_cube, top, 0.25 / falls) / 0.5
    np.testing.assert_allclose(image[1, 0, :17], wanted[:17], atol=2e-3)
    assert image[1, 0, 28, 16] < 0.2, "the hand is at the lower edge"
    assert image[1, 0, 24, 12:20].min() < 0.3, "and the fingers above it"
