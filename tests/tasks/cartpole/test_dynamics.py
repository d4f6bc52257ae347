"""The kernels' dynamics against MuJoCo's, and against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import mujoco
import numpy as np
import pytest
from mujoco.batch import Batch

from shoal.tasks.cartpole.config import BalanceConfig, CartpoleConfig, SwingupConfig
from shoal.tasks.cartpole.model import reference_rate, spec_of
from shoal.tasks.cartpole.task import Balance, Swingup

NUM_ENVS = 64
FREE = SwingupConfig(rail_half_length=1e6, episode_length_s=1e6)
"""No episode ends."""


def test_two_hundred_steps_agree_with_mujoco(device: str) -> None:
    task, reference = start_together(FREE, device)
    rng = np.random.default_rng(1)
    for _ in range(200):
        step_together(task, reference, rng.uniform(-1.5, 1.5, (NUM_ENVS, 1)))
    # MuJoCo counts in 64 bits and the kernels in 32. What they round differently in the first steps, about 1e-7,
    # swinging poles blow up by about four orders of magnitude in the 4 seconds that follow.
    np.testing.assert_allclose(task.state.numpy(), reference.state, atol=1e-2)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cart_mass": 0.3, "pole_mass": 0.7, "pole_half_length": 1.1},
        {"gravity": 3.7, "force_limit": 2.5},
        {"physics_dt": 0.002, "decimation": 7},
    ],
    ids=["defaults", "heavy pole", "Mars", "small steps"],
)
def test_each_single_step_agrees_with_mujoco_whatever_the_configuration(changes: dict[str, float], device: str) -> None:
    config = dataclasses.replace(FREE, **changes)
    task, reference = start_together(config, device)
    rng = np.random.default_rng(2)
    for _ in range(20):
        reference.state = task.state.numpy()
        step_together(task, reference, rng.uniform(-1.5, 1.5, (NUM_ENVS, 1)))
        # A few roundings of 32-bit numbers of about 10.
        np.testing.assert_allclose(task.state.numpy(), reference.state, rtol=1e-5, atol=1e-5)


class ReferenceSimulation:
    """`num_envs` cart-poles, stepped on the calling thread by `mujoco.batch`, the oracle."""

    def __init__(self, config: CartpoleConfig, num_envs: int) -> None:
        """Compile the model, with all cart-poles at rest in the middle and upright."""
        self.config = config
        self.num_envs = num_envs
        self.model = spec_of(config).compile()
        self._batch = Batch(self.model, nsim=num_envs, nthread=1)
        self._positions = self._batch.bind("qpos")
        self._speeds = self._batch.bind("qvel")
        self._forces = self._batch.bind("ctrl")

    @property
    def state(self) -> np.ndarray:
        """Rows of x [m], theta [rad], x' [m/s] and theta' [rad/s], as in the task. Shape (num_envs, 4)."""
        return np.concatenate([self._positions, self._speeds], axis=1)

    @state.setter
    def state(self, rows: np.ndarray) -> None:
        self._positions[:] = rows[:, :2]
        self._speeds[:] = rows[:, 2:]

    def step(self, actions: np.ndarray) -> None:
        """Advance by one action; `actions`, (num_envs, 1), are clipped to [-1, 1]."""
        np.clip(actions, -1.0, 1.0, out=self._forces)
        self._forces *= self.config.force_limit
        self._batch.step(nstep=self.config.decimation)


def start_together(config: SwingupConfig, device: str) -> tuple[Swingup, ReferenceSimulation]:
    """Build task and reference, both in the same states: any angle, up to 6 rad/s."""
    task = Swingup(config, num_envs=NUM_ENVS, device=device, seed=0)
    reference = ReferenceSimulation(config, NUM_ENVS)
    rows = np.random.default_rng(0).uniform(-1.0, 1.0, (NUM_ENVS, 4)) * (1.0, math.pi, 2.0, 6.0)
    task.state.assign(rows.astype(np.float32))
    reference.state = task.state.numpy()
    return task, reference


def step_together(task: Swingup, reference: ReferenceSimulation, actions: np.ndarray) -> None:
    task.actions.assign(actions.astype(np.float32))
    task.step()
    reference.step(task.actions.numpy())


def test_full_force_on_an_upright_pole_does_what_the_equations_say(device: str) -> None:
    # theta'' = -10 / (4/3 * 1.1 * 0.5 - 0.05) = -14.6341, x'' = (10 + 0.05 * 14.6341) / 1.1 = 9.75610
    task = Balance(BalanceConfig(decimation=1), num_envs=1, device=device, seed=0)
    task.state.zero_()
    task.actions.fill_(1.0)
    task.step()
    x_speed, theta_speed = 0.0975610, -0.146341  # After 0.01 s, from rest.
    expected = [0.01 * x_speed, 0.01 * theta_speed, x_speed, theta_speed]
    np.testing.assert_allclose(task.state.numpy()[0], expected, rtol=1e-5)


def test_actions_beyond_one_push_no_harder(device: str) -> None:
    task = Balance(BalanceConfig(), num_envs=2, device=device, seed=0)
    task.state.zero_()
    task.actions.assign(np.array([[1.0], [30.0]], dtype=np.float32))
    task.step()
    assert task.state.numpy()[0].tolist() == task.state.numpy()[1].tolist()
    assert task.terms.numpy()[1].tolist() == task.terms.numpy()[0].tolist()


def test_a_hanging_pole_at_rest_hangs_on(device: str) -> None:
    task = Swingup(SwingupConfig(), num_envs=1, device=device, seed=0)
    task.state.assign(np.array([[0.0, math.pi, 0.0, 0.0]], dtype=np.float32))
    for _ in range(50):
        task.step()
    # The sine of the 32-bit number next to pi is 9e-8.
    np.testing.assert_allclose(task.state.numpy(), [[0.0, math.pi, 0.0, 0.0]], atol=1e-5)


def test_the_reference_simulation_has_the_configured_masses() -> None:
    config = CartpoleConfig(cart_mass=2.0, pole_mass=0.3, pole_half_length=0.4)
    model = ReferenceSimulation(config, 1).model
    assert model.body("cart").mass == 2.0
    assert model.body("pole").mass == 0.3
    assert model.body("pole").ipos.tolist() == [0.0, 0.0, 0.4]
    assert model.body("pole").inertia[0] == pytest.approx(0.3 * 0.4**2 / 3)


def test_the_reference_speed_is_measured_in_environment_steps() -> None:
    slow, fast = (reference_rate(BalanceConfig(decimation=n), 64, seconds=0.2) for n in (20, 1))
    assert 0 < slow < fast


def test_the_scene_stands_as_the_task_does(device: str) -> None:
    task, _ = start_together(FREE, device)
    scene = task.scene()
    data = mujoco.MjData(scene)
    for row, positions in zip(task.state.numpy(), task.positions().numpy(), strict=True):
        data.qpos[:] = positions
        mujoco.mj_kinematics(scene, data)
        x, theta = row[:2]
        tip = data.body("pole").xpos + data.body("pole").xmat.reshape(3, 3) @ (0.0, 0.0, 1.0)
        np.testing.assert_allclose(tip, (x + np.sin(theta), 0.0, np.cos(theta)), atol=1e-6)
    assert scene.camera("video").id == 0
