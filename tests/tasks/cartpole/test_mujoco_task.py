"""The swing-up in MuJoCo against the one of kernels, whose numbers are worked out by hand elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.tasks.cartpole.config import SWINGUP_MUJOCO, SwingupConfig
from shoal.tasks.cartpole.mujoco_task import SwingupMujoco
from shoal.tasks.cartpole.task import Swingup

NUM_ENVS = 64


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_it_steps_rewards_ends_and_shows_what_the_kernels_do(engine: str) -> None:
    kernels = Swingup(SwingupConfig(), num_envs=NUM_ENVS, device="cpu", seed=0)
    task = SwingupMujoco(replace(SWINGUP_MUJOCO, engine=engine), num_envs=NUM_ENVS, device="cpu", seed=0)
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1.0, 1.0, (NUM_ENVS, 4)) * (2.5, math.pi, 2.0, 6.0)
    kernels.state.assign(rows.astype(np.float32))
    task.qpos.assign(kernels.state.numpy()[:, :2])
    task.qvel.assign(kernels.state.numpy()[:, 2:])
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    actions = rng.uniform(-1.5, 1.5, (NUM_ENVS, 1)).astype(np.float32)
    for each in (kernels, task):
        each.actions.assign(actions)
        each.step()
    done = kernels.done.numpy().astype(bool)
    assert done.any()
    assert (task.done.numpy() == done).all()
    assert not task.time_out.numpy().any()
    np.testing.assert_allclose(task.reward.numpy(), kernels.reward.numpy(), rtol=1e-5, atol=1e-6)
    shown, expected = (each.obs["policy"].numpy()[np.flatnonzero(~done)] for each in (task, kernels))
    np.testing.assert_allclose(shown, expected, rtol=1e-5, atol=1e-5)


def test_episodes_begin_all_over_the_ranges_of_the_kernels() -> None:
    task = SwingupMujoco(SWINGUP_MUJOCO, num_envs=4096, device="cpu", seed=0)
    off = np.concatenate([task.qpos.numpy() - [0.0, math.pi], task.qvel.numpy()], axis=1)
    ranges = np.array([0.2, 0.8, 0.5, 2.0])
    assert (np.abs(off) <= ranges + 1e-5).all()
    # Of 4096 uniform draws the largest and the smallest miss an end by 1 % with a chance of 1e-9.
    assert (off.max(axis=0) > 0.99 * ranges).all()
    assert (off.min(axis=0) < -0.99 * ranges).all()
