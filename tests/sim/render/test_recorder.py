"""What is recorded is what environment 0 did, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.counting_task import CountingConfig, CountingTask

from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.sim.bridge import to_torch
from shoal.sim.render.recorder import Recorder
from shoal.tasks.cartpole.config import SwingupConfig
from shoal.tasks.cartpole.task import Swingup


def test_a_reel_holds_the_positions_of_environment_0(device: str) -> None:
    task = Swingup(SwingupConfig(), num_envs=3, device=device, seed=0)
    env, seen = WarpVecEnv(task), []
    recorder = Recorder(env.picture(), 4, (64, 32))
    for _ in range(2):
        for _ in range(4):
            env.step(torch.ones((3, 1), device=device))
            recorder.take()
            seen.append(to_torch(task.state)[0, :2].cpu().numpy().copy())
        assert recorder.is_full
        trajectory = recorder.cut()
        assert (trajectory.step_dt, trajectory.size) == (task.step_dt, (64, 32))
        np.testing.assert_array_equal(trajectory.positions, seen[-4:])
    assert len({tuple(row) for row in seen}) == 8  # It moves, and no row was taken twice.


def test_a_reel_that_is_cut_early_holds_what_was_taken() -> None:
    env = WarpVecEnv(Swingup(SwingupConfig(), num_envs=1, device="cpu", seed=0))
    recorder = Recorder(env.picture(), 4, (64, 32))
    recorder.take()
    assert recorder.cut().positions.shape == (1, 2)
    assert recorder.taken == 0


def test_a_task_without_a_scene_cannot_be_shown() -> None:
    with pytest.raises(UsageError, match=r"CountingTask cannot be shown, because it has no scene\(\)"):
        WarpVecEnv(CountingTask(CountingConfig(), num_envs=1, device="cpu", seed=0)).picture()
