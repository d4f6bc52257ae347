"""What a task declares to be recorded: in the file of `evaluate --record`, and nothing in a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import mujoco
import numpy as np
import pytest
import torch
from support.arm_task import Arm, speeds_torch, tip

from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import ShoalError
from shoal.jobs.recording import Recording
from shoal.learn.episodes import run_episodes
from shoal.mdp.terms import Obs, Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict import TensorDict

OBSERVED = {"policy": {"tip": None, "speeds": None, "place": Obs("joint_pos_rel", joints=".*")}}


class Still:
    """A policy that asks for the default pose."""

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        return torch.zeros(len(observations), 2)

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Forget nothing."""


def build(**recorders: Any) -> Arm:
    config = Arm.config.change(
        decimation=1,
        observations=OBSERVED,
        recorders=recorders,
        terminations={"spins": None},
        curricula={"reach": None, "spins": None},
    )
    return Arm(config, num_envs=3, device="cpu", seed=3)


def test_recorders_are_written_for_the_state_that_the_policy_has_seen(tmp_path: Path) -> None:
    task = build(tip=Recorder(tip, site="tip"), speeds=Recorder("joint_vel_rel", joints="elbow"))
    env = WarpVecEnv(task)
    recording = Recording(env, 0, 3)
    run_episodes(env, Still(), 3, lambda *_: None, on_step=recording.add)
    with (tmp_path / "it.hdf5").open("w+b") as file:
        recording.write(file)
    data = mujoco.MjData(task.model)
    with h5py.File(tmp_path / "it.hdf5") as opened:
        assert sorted(opened) == ["episode_000000", "episode_000001", "episode_000002"]
        assert max(np.ptp(episode["records/tip"][:, 0]) for episode in opened.values()) > 0.05
        for episode in opened.values():
            places, speeds = episode["obs/policy"][:], episode["records/speeds"][:, 0]
            assert episode["records/tip"].shape == (len(places), 3) == (80, 3)
            # Sites are where the last physics step began, and the position follows from the speed after it.
            for place, seen in zip((places[0], *places[:-1]), episode["records/tip"][:], strict=True):
                data.qpos[:] = place
                mujoco.mj_kinematics(task.model, data)
                np.testing.assert_allclose(seen, data.site("tip").xpos, atol=1e-5)
            np.testing.assert_allclose(np.diff(places[:, 1]) / task.step_dt, speeds[1:], atol=1e-3)


def test_a_step_computes_no_recorder() -> None:
    task = build(tip=Recorder(tip, site="tip"))
    for _ in range(3):
        task.step()
    assert not task.records["tip"].numpy().any()
    assert np.abs(task.record()["tip"].numpy()).min() < np.inf
    assert task.records["tip"].numpy().any()
    assert "records/tip" not in task.arrays  # And no checkpoint has it.


def test_a_recorder_of_torch_is_refused() -> None:
    with pytest.raises(ShoalError, match=r"recorders\.x is a function on torch tensors, but must be a wp\.func"):
        build(x=Recorder(speeds_torch, joints=".*"))
