"""Rewards, ends and beginnings of the cart-pole tasks, worked out by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shoal.tasks.cartpole.config import BalanceConfig, SwingupConfig
from shoal.tasks.cartpole.task import Balance, Swingup

if TYPE_CHECKING:
    from collections.abc import Sequence

    import warp as wp


def put(task: Balance | Swingup, rows: Sequence[Sequence[float]]) -> None:
    task.state.assign(np.array(rows, dtype=np.float32))


def ends(array: wp.array) -> list[bool]:
    return array.numpy().astype(bool).tolist()


def test_balance_rewards_each_second_upright_less_distance_and_effort(device: str) -> None:
    task = Balance(
        BalanceConfig(physics_dt=1e-6, decimation=1, episode_length_s=1.0), num_envs=2, device=device, seed=0
    )
    put(task, [[0.0, 0.0, 0.0, 0.0], [1.2, 0.1, 0.0, 0.0]])
    task.actions.assign(np.array([[0.0], [0.5]], dtype=np.float32))
    task.step()
    # In a microsecond nothing moves. Half the rail counts (1/2)^2, half the force too.
    np.testing.assert_allclose(task.terms.numpy(), [[1.0, 0.0, 0.0], [1.0, 0.25, 0.25]], atol=1e-5)
    np.testing.assert_allclose(task.reward.numpy(), [1e-6, (1.0 - 0.5 * 0.25 - 0.05 * 0.25) * 1e-6], rtol=1e-4)


def test_balance_ends_where_the_pole_has_fallen_or_the_cart_has_left_the_rail(device: str) -> None:
    task = Balance(BalanceConfig(), num_envs=6, device=device, seed=0)
    put(
        task,
        [
            [0.0, 0.20, 0.0, 0.0],
            [0.0, 0.22, 0.0, 0.0],
            [0.0, -0.22, 0.0, 0.0],
            [2.39, 0.0, 0.0, 0.0],
            [2.41, 0.0, 0.0, 0.0],
            [-2.41, 0.0, 0.0, 0.0],
        ],
    )
    task.step()
    assert ends(task.done) == [False, True, True, False, True, True]
    assert not any(ends(task.time_out))


def test_swingup_is_worth_all_that_it_can_be_upright_in_the_middle_and_still(device: str) -> None:
    task = Swingup(SwingupConfig(), num_envs=1, device=device, seed=0)
    put(task, [[0.0, 0.0, 0.0, 0.0]])
    task.step()
    assert task.terms.numpy()[0, 0] == 1.0
    assert task.reward.numpy()[0] == pytest.approx(5.0 * 0.02)


@pytest.mark.parametrize(
    ("row", "action", "worth"),
    [
        ((0.0, math.pi, 0.0, 0.0), 0.0, 0.0),
        ((0.0, math.pi / 2, 0.0, 0.0), 0.0, 0.5),
        ((2.0, 0.0, 0.0, 0.0), 0.0, (1 + 0.1) / 2),
        ((0.0, 0.0, 0.0, -5.0), 0.0, (1 + 0.1) / 2),
        ((0.0, 0.0, 0.0, 0.0), -1.0, 4 / 5),
        ((2.0, math.pi / 2, 0.0, 5.0), 1.0, 0.5 * 0.55 * 0.55 * 0.8),
    ],
    ids=["hanging", "level", "off centre", "spinning", "pushed", "all at once"],
)
def test_swingup_loses_by_each_factor(row: Sequence[float], action: float, worth: float, device: str) -> None:
    task = Swingup(
        SwingupConfig(physics_dt=1e-6, decimation=1, episode_length_s=1.0), num_envs=1, device=device, seed=0
    )
    put(task, [row])
    task.actions.fill_(action)
    task.step()
    # In a microsecond a pole of 5 rad/s turns by 5e-6.
    assert task.terms.numpy()[0, 0] == pytest.approx(worth, abs=5e-5)


def test_swingup_ends_off_the_rail_alone(device: str) -> None:
    task = Swingup(SwingupConfig(), num_envs=3, device=device, seed=0)
    put(task, [[0.0, 1.0, 0.0, 9.0], [2.41, math.pi, 0.0, 0.0], [-2.41, math.pi, 0.0, 0.0]])
    task.step()
    assert ends(task.done) == [False, True, True]


def test_observations_are_scaled_to_about_one(device: str) -> None:
    task = Swingup(SwingupConfig(), num_envs=1, device=device, seed=0)
    put(task, [[-2.4, math.pi / 6, 5.0, -8.0]])
    task.observe()
    np.testing.assert_allclose(task.obs["policy"].numpy()[0], [-1.0, 0.5, math.sqrt(3) / 2, 1.0, -1.0], rtol=1e-6)


def test_episodes_begin_all_over_their_ranges(device: str) -> None:
    task = Swingup(SwingupConfig(), num_envs=4096, device=device, seed=0)
    off = task.state.numpy() - [0.0, math.pi, 0.0, 0.0]
    ranges = np.array([0.2, 0.8, 0.5, 2.0])
    assert (np.abs(off) <= ranges + 1e-5).all()  # Rounding of an angle near pi.
    # Of 4096 uniform draws the largest and the smallest miss an end by 1 % with a chance of 1e-9.
    assert (off.max(axis=0) > 0.99 * ranges).all()
    assert (off.min(axis=0) < -0.99 * ranges).all()
    # Four times the standard error of the mean, which is range / sqrt(3 * 4096).
    assert (np.abs(off.mean(axis=0)) < 4 * ranges / math.sqrt(3 * 4096)).all()
