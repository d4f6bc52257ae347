"""Random numbers of observations: another one in each step and column, also where nothing else draws."""

# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warp as wp
from support.arm_task import Arm

from shoal.mdp.annotations import Grid
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.random import uniform
from shoal.mdp.terms import Action, Obs, ObsTerm, Reward

WIDE = (3.9, 0.9, 0.1)
"""A grid of 40 x 10 points: more than the columns that one thread computes."""
WIDE_COLUMNS = 400
NUM_ENVS = 2


@wp.func
def nothing(state: Any, env: int, i: int, grid: Grid) -> float:
    """Return 0 for each point."""
    return 0.0


@wp.func
def drawn(state: Any, env: int, i: int, grid: Grid) -> float:
    """Draw a number between -1 and 1 for each point."""
    return uniform(state, env, -1.0, 1.0)


def observed(**terms: ObsTerm) -> list[np.ndarray]:
    """Return what a task that draws nothing else observes in each of three steps. Shapes (NUM_ENVS, columns)."""
    config = task_config(
        TermsConfig,
        actions={"targets": Action("joint_position", actuators=".*", scale=0.5)},
        observations={"policy": terms},
        rewards={"alive": Reward("is_alive", weight=1.0)},
    )
    task = Arm(config, num_envs=NUM_ENVS, device="cpu", seed=3)
    seen = []
    for _ in range(3):
        task.step()
        seen.append(task.obs["policy"].numpy().copy())
    return seen


def assert_independent(*rows: np.ndarray) -> None:
    """Assert that rows of numbers drawn uniformly from -1 to 1 are spread, and have nothing to do with one another."""
    for row in rows:
        assert np.abs(row).max() <= 1.0
        assert row.std() == pytest.approx(3**-0.5, abs=0.1)
    assert np.abs(np.corrcoef(rows) - np.eye(len(rows))).max() < 0.25  # Five standard errors of 400 pairs.


def test_noise_of_wide_observations_is_drawn_for_each_step_environment_and_term() -> None:
    one, other, _ = seen = observed(
        a=Obs(nothing, grid=WIDE, noise=1), b=Obs(nothing, grid=(*WIDE[1::-1], 0.1), noise=1)
    )
    assert one.shape == (NUM_ENVS, 2 * WIDE_COLUMNS)
    assert_independent(*(row[half] for each in seen for row in each for half in (slice(0, 400), slice(400, 800))))
    assert (one != other).all()


@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize("grid", [(0.3, 0.3, 0.1), WIDE])
def test_an_observation_that_draws_is_drawn_in_each_step(grid: tuple[float, ...], noise: float) -> None:
    seen = observed(a=Obs(drawn, grid=grid, noise=noise))
    values = np.concatenate(seen)
    assert len(np.unique(values)) == values.size
    assert np.abs(values).max() <= 1.0 + noise


def test_a_wide_observation_that_draws_is_computed_by_one_thread_of_each_environment() -> None:
    config = Arm.config.change(observations={"policy": {"a": Obs(drawn, grid=WIDE), "b": Obs(nothing, grid=WIDE)}})
    task = Arm(config, num_envs=1, device="cpu", seed=3)
    wide = [name for name, kernel in task._kernels.items() if kernel.columns]
    assert wide == ["observe_observations_policy_b"]
