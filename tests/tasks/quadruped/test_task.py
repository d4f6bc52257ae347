"""The velocity task: its rewards against numpy, its commands, pushes and noise against what the configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import pytest
import torch
from support.calm import CALM, NEVER_FALLS, changed

from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.groups import World
from shoal.learn.statistics import Seconds, Statistics
from shoal.mdp.robots import find_feet
from shoal.tasks.quadruped.config import FLAT
from shoal.tasks.quadruped.task import FlatVelocity

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_ENVS = 256


def walking(num_envs: int = NUM_ENVS, *changes: dict[str, Any], **fields: Any) -> FlatVelocity:
    """Build the task on the CPU."""
    return FlatVelocity(changed(FLAT, *changes, **fields), num_envs=num_envs, device="cpu", seed=1)


def noisy_steps(task: FlatVelocity, steps: int, size: float = 0.5) -> Iterator[np.ndarray]:
    """Step with random actions; yield those of each step."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        actions = rng.normal(0.0, size, task.actions.shape).astype(np.float32)
        task.actions.assign(actions)
        task.step()
        yield actions


def in_base(quaternions: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Turn vectors of the world into the bases' frames, with MuJoCo's own rotation."""
    out = np.zeros((len(vectors), 3))
    for row, quaternion, vector in zip(out, quaternions.astype(float), vectors.astype(float), strict=True):
        inverse = np.zeros(4)
        mujoco.mju_negQuat(inverse, quaternion)
        mujoco.mju_rotVecQuat(row, vector, inverse)
    return out


def test_reward_terms_are_what_their_names_say() -> None:
    task = walking(64, CALM, events={"gains": {"kp": [0.7, 1.3], "kd": [0.7, 1.3]}})
    for _ in noisy_steps(task, 12, size=1.0):
        pass
    before = {
        name: array.numpy().copy()
        for name, array in {
            "action": task.action,
            "joint_vel": task.qvel,
            "feet": task.arrays["contacts/feet/position"],
            "air_time": task.arrays["contacts/feet/air_time"],
            "contact_time": task.arrays["contacts/feet/contact_time"],
        }.items()
    }
    task.actions.assign(np.random.default_rng(1).normal(0.0, 1.0, task.actions.shape).astype(np.float32))
    task.run("act", "physics", "reward")  # Up to the terms: nothing is reset yet.
    qpos, qvel = task.qpos.numpy(), task.qvel.numpy()
    actions, command = task.actions.numpy(), task.command_array.numpy()
    speed, turning = in_base(qpos[:, 3:7], qvel[:, :3]), qvel[:, 3:6]
    gravity = in_base(qpos[:, 3:7], np.tile([0.0, 0.0, -1.0], (64, 1)))
    angles, joint_speeds = qpos[:, 7:], qvel[:, 6:]
    standing = np.tile([0.0, 0.9, -1.8], 4)
    stiffness = task.parameter("actuator_gainprm").numpy()[:, :, 0]
    damping = -task.parameter("actuator_biasprm").numpy()[:, :, 2]
    assert (np.ptp(stiffness), np.ptp(damping)) == pytest.approx((0.6 * 35.0, 0.6 * 0.9), rel=0.05)
    torques = task.data("qfrc_actuator").numpy()[:, 6:]  # Of the last physics step.
    assert (np.abs(torques) <= task_limits() + 1e-4).all()
    stands = np.abs(command).sum(axis=1) < 0.1
    feet = task.data("geom_xpos").numpy()[:, find_feet(task.model, task.config.feet)]
    touches = feet[:, :, 2] <= 0.023 + 0.005
    was_in_air = before["air_time"] > 0
    swings = np.where(touches & was_in_air, before["air_time"] - 0.25, 0.0).sum(axis=1) / 0.02
    slips = (((feet - before["feet"]) / 0.02)[:, :, :2] ** 2).sum(axis=2)
    expected = {
        "track_linear_velocity": np.exp(-((command[:, :2] - speed[:, :2]) ** 2).sum(axis=1) / 0.25),
        "track_angular_velocity": np.exp(-((command[:, 2] - turning[:, 2]) ** 2) / 0.25),
        "lin_vel_z": speed[:, 2] ** 2,
        "ang_vel_xy": (turning[:, :2] ** 2).sum(axis=1),
        "flat_orientation": (gravity[:, :2] ** 2).sum(axis=1),
        "joint_torques": (torques**2).sum(axis=1),
        "joint_acc": (((joint_speeds - before["joint_vel"][:, 6:]) / 0.02) ** 2).sum(axis=1),
        "action_rate": ((actions - before["action"]) ** 2).sum(axis=1),
        "feet_swing_time": np.where(stands, 0.0, swings),
        "joint_deviation": ((angles - standing) ** 2).sum(axis=1) * np.where(stands, 10.0, 1.0),
        "feet_slip": np.where(touches & (before["contact_time"] > 0), slips, 0.0).sum(axis=1),
    }
    terms = dict(zip(task.reward_terms, task.terms.numpy().T, strict=True))
    assert expected.keys() == terms.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(terms[name], values, rtol=2e-4, atol=1e-4, err_msg=name)
        if name != "feet_swing_time":
            assert np.ptp(values) > 0, name
    assert touches.any()
    assert (touches & was_in_air).any()


def task_limits() -> np.ndarray:
    """Largest torques of the joints of the shipped robot [N m]."""
    return np.tile([23.7, 23.7, 35.55], 4)


def test_it_fails_where_it_has_fallen() -> None:
    task = walking(3, CALM)
    qpos = task.qpos.numpy().copy()
    qpos[0, 2] = 1.0
    qpos[1, 2:7] = (1.0, np.cos(0.7), np.sin(0.7), 0.0, 0.0)  # Rolled by 80 degrees.
    qpos[2, 2] = 0.1
    task.qpos.assign(qpos)
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    task.step()
    assert task.done.numpy().tolist() == [False, True, True]
    assert task.time_out.numpy().tolist() == [False, False, False]


def test_commands_are_drawn_anew_within_their_ranges() -> None:
    task = walking(NUM_ENVS, CALM, NEVER_FALLS, commands={"twist": {"resampling_time": [0.1, 0.2]}})
    drawn = np.stack([task.command_array.numpy().copy() for _ in noisy_steps(task, 30, size=0.0)])
    changes = (np.diff(drawn, axis=0) != 0).any(axis=2).sum(axis=0)
    # 0.6 s of commands that last 0.15 s in the mean: about four, of which some are drawn twice to stand.
    assert 3.0 < changes.mean() < 5.0
    commands = drawn.reshape(-1, 3)
    standing = (commands == 0).all(axis=1)
    assert 0.06 < standing.mean() < 0.14
    assert np.abs(commands).max(axis=0) == pytest.approx([1.0, 0.5, 1.0], abs=0.02)
    assert np.abs(commands[~standing].mean(axis=0)).max() < 0.05


def test_a_viewer_offers_the_commands_that_it_is_trained_in() -> None:
    task = walking(1, commands={"twist": {"lin_vel_x": [-2, 2]}})
    assert [(command.low, command.high) for command in task.commands.values()] == [(-2, 2), (-0.5, 0.5), (-1, 1)]
    assert task.command_array.shape == (1, 3)


def test_pushes_come_in_their_intervals_and_as_hard_as_asked() -> None:
    pushes = {"push": {"interval": [0.1, 0.3], "x": [-50, 50], "y": [-50, 50]}}
    task = walking(NUM_ENVS, CALM, NEVER_FALLS, events=pushes)
    pushed, before = 0, task.qvel.numpy()[:, :2].copy()
    for _ in range(20):
        task.step()
        speeds = task.qvel.numpy()[:, :2].copy()
        pushed += int((np.abs(speeds - before).max(axis=1) > 20.0).sum())
        before = speeds
    # Renewals with a mean of 0.2 s: 0.4 / 0.2 - 1/2 + variance / (2 * 0.2^2) in 0.4 s. A push is stronger than 20 of
    # 50 m/s along one axis or the other with a chance of 1 - 0.4^2.
    count = 0.4 / 0.2 - 0.5 + (0.2**2 / 12) / (2 * 0.2**2)
    assert pushed == pytest.approx(count * (1 - 0.16) * NUM_ENVS, rel=0.15)


def test_each_environment_has_a_floor_a_load_and_motors_of_its_own() -> None:
    task = walking(NUM_ENVS)
    feet = find_feet(task.model, task.config.feet)
    friction = task.parameter("geom_friction").numpy()[:, feet, 0]
    assert (friction == friction[:, :1]).all()
    assert (friction.min(), friction.max()) == pytest.approx((0.4, 1.2), abs=0.02)
    mass = task.parameter("body_mass").numpy()[:, task.robot.base] - task.model.body_mass[task.robot.base]
    assert (mass.min(), mass.max()) == pytest.approx((-1.0, 2.0), abs=0.05)
    stiffness = task.parameter("actuator_gainprm").numpy()[:, :, 0]
    assert (stiffness.min(), stiffness.max()) == pytest.approx((31.5, 38.5), abs=0.05)
    np.testing.assert_array_equal(task.parameter("actuator_biasprm").numpy()[:, :, 1], -stiffness)


def test_the_policy_sees_errors_and_the_critic_none() -> None:
    task = walking(NUM_ENVS, CALM)
    for _ in noisy_steps(task, 3):
        pass
    policy, critic = (task.obs[group].numpy() for group in ("policy", "critic"))
    errors = np.abs(policy - critic).max(axis=0)
    assert errors[:3] == pytest.approx(0.1, rel=0.1)
    assert errors[3:6] == pytest.approx(0.2, rel=0.1)
    assert errors[6:9] == pytest.approx(0.05, rel=0.1)
    assert errors[12:24] == pytest.approx(0.01, rel=0.1)
    assert errors[24:36] == pytest.approx(1.5, rel=0.1)
    assert not errors[[9, 10, 11, *range(36, 48)]].any()  # The command, and the actions.
    qpos, qvel = task.qpos.numpy(), task.qvel.numpy()
    np.testing.assert_allclose(critic[:, :3], in_base(qpos[:, 3:7], qvel[:, :3]), atol=1e-5)
    np.testing.assert_allclose(critic[:, 9:12], task.command_array.numpy())
    np.testing.assert_allclose(critic[:, 36:], task.action.numpy())


def test_a_lost_environment_is_left_out_of_the_metrics() -> None:
    task = walking(3, CALM)
    env, metrics = WarpVecEnv(task), []
    statistics = Statistics(World(), env.num_envs, env.episode_terms)
    for lose in (False, True, False):
        if lose:
            speeds = task.qvel.numpy().copy()
            speeds[1, 0] = np.nan
            task.qvel.assign(speeds)
            task.moved.fill_(value=True)
            task.engine.forward(task.done, task.moved)
        _, rewards, dones, extras = env.step(torch.zeros(3, 12))
        statistics.add_step(rewards, dones, extras)
        metrics.append(task.metric_values.numpy()[:, 0].copy())
    assert np.isnan(metrics[1][1])
    # From its loss to the end of the iteration, where `take_warnings` is asked.
    others = [*metrics[0], metrics[1][0], metrics[1][2], metrics[2][0], metrics[2][2]]
    means = statistics.pool({}, Seconds(0.0, 0.0, 0.0), {}).means
    assert means["Metrics/error_linear_velocity"] == pytest.approx(np.mean(others), rel=1e-5)
    env.take_warnings()
    statistics.add_step(*env.step(torch.zeros(3, 12))[1:])
    means = statistics.pool({}, Seconds(0.0, 0.0, 0.0), {}).means
    assert means["Metrics/error_linear_velocity"] == pytest.approx(task.metric_values.numpy()[:, 0].mean(), rel=1e-5)


def test_it_stands_when_nothing_is_asked_of_it() -> None:
    task = walking(16, CALM)
    for _ in noisy_steps(task, 100, size=0.0):
        assert not task.done.numpy().any()
    assert (task.qpos.numpy()[:, 2] > 0.23).all()
    assert np.abs(task.qvel.numpy()).max() < 0.1


def test_both_engines_agree() -> None:
    tasks = [walking(2, CALM, engine=engine, njmax=64, nconmax=24) for engine in ("mujoco", "mjwarp")]
    for steps in zip(*(noisy_steps(task, 25, size=0.3) for task in tasks), strict=True):
        np.testing.assert_array_equal(*steps)
        assert not any(task.done.numpy().any() for task in tasks)
    # 100 physics steps. MuJoCo counts in 64 bits and MuJoCo Warp in 32, and their solvers stop at different
    # residuals: feet that touch down a step earlier or later carry on what that makes, about 1e-5 at first.
    for name, tolerance in (("qpos", 0.01), ("qvel", 0.3), ("geom_xpos", 0.01)):
        native, warp = (task.data(name).numpy() for task in tasks)
        np.testing.assert_allclose(warp, native, atol=tolerance, err_msg=name)
