"""Every task that ships, and the documentation's own, keeps the contract of the boundary to rsl_rl."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from support.counting_task import CountingConfig, CountingTask
from support.vec_env_contract import NUM_ENVS, VecEnvContract

from shoal.envs.vec_env import WarpVecEnv
from shoal.tasks import registry

if TYPE_CHECKING:
    from shoal.tasks.registry import TaskSpec

PENDULUM = Path(__file__).parents[2] / "docs" / "examples" / "pendulum.py"


def build(spec: TaskSpec, device: str, seed: int, **changes: float) -> WarpVecEnv:
    config = dataclasses.replace(spec.env, **changes)
    return WarpVecEnv(spec.load_builder()(config, num_envs=NUM_ENVS, device=device, seed=seed))


class TestBalance(VecEnvContract):
    def make(self, device: str, *, seed: int = 7) -> WarpVecEnv:
        return build(registry.resolve("Cartpole-Balance"), device, seed, episode_length_s=1.0)

    def are_first_observations(self, observations: torch.Tensor) -> torch.Tensor:
        upright = math.cos(0.05) - 1e-6  # Rounding of a cosine near 1.
        return (observations[:, 2] >= upright) & (observations[:, 0].abs() <= 0.2 / 2.4)


class TestSwingup(VecEnvContract):
    def make(self, device: str, *, seed: int = 7) -> WarpVecEnv:
        return build(registry.resolve("Cartpole-Swingup"), device, seed, episode_length_s=1.0)

    def are_first_observations(self, observations: torch.Tensor) -> torch.Tensor:
        hanging = -math.cos(0.8) + 1e-6
        return (observations[:, 2] <= hanging) & (observations[:, 0].abs() <= 0.2 / 2.4)


class TestPendulum(VecEnvContract):
    fails = False

    def make(self, device: str, *, seed: int = 7) -> WarpVecEnv:
        return build(self.spec(), device, seed, episode_length_s=2.5)

    @staticmethod
    @cache
    def spec() -> TaskSpec:
        return registry.resolve(f"{PENDULUM}:Pendulum")

    def are_first_observations(self, observations: torch.Tensor) -> torch.Tensor:
        on_circle = (observations[:, :2].square().sum(dim=1) - 1.0).abs() < 1e-5
        return on_circle & (observations[:, 2].abs() <= 1.0 / 8.0)


@pytest.mark.parametrize("task", ["Cartpole-Swingup", "Cartpole-Swingup-Mujoco"])
def test_the_final_observation_is_what_an_episode_with_more_time_goes_on_from(task: str, device: str) -> None:
    short, long = (build(registry.resolve(task), device, 7, episode_length_s=seconds) for seconds in (0.2, 60.0))
    short.keep_final_observations()
    actions = torch.linspace(-1, 1, NUM_ENVS, device=device).unsqueeze(1)
    steps = [(short.step(actions), long.step(actions)) for _ in range(int(short.max_episode_length))]
    (observations, _, _, extras), (longer, *_) = steps[-1]
    cut = extras["time_outs"]
    assert cut.sum() > NUM_ENVS / 2
    assert torch.equal(extras["final_observation"]["policy"][cut], longer["policy"][cut])
    assert not torch.equal(observations["policy"][cut], longer["policy"][cut])


def test_tensors_are_the_tasks_own_memory(device: str) -> None:
    task = CountingTask(CountingConfig(), num_envs=3, device=device, seed=0)
    env = WarpVecEnv(task)
    _, rewards, dones, extras = env.step(torch.zeros(3, 1, device=device))
    shared = {
        "reward": rewards,
        "done": dones,
        "time_out": extras["time_outs"],
        "finished_sums": extras["episode_sums"],
        "episode_length": env.episode_length_buf,
    }
    assert {name: tensor.data_ptr() for name, tensor in shared.items()} == {
        name: task.arrays[name].ptr for name in shared
    }


def test_rewards_and_sums_are_those_worked_out_by_hand(device: str) -> None:
    # One step of env e is worth (2 * 1 - 1 * e) * 0.5 s; an episode has four.
    env = WarpVecEnv(CountingTask(CountingConfig(), num_envs=3, device=device, seed=0))
    nothing = torch.zeros(3, 1, device=device)
    for _ in range(3):
        _, rewards, dones, extras = env.step(nothing)
        assert rewards.tolist() == [1.0, 0.5, 0.0]
        assert not dones.any()
    _, rewards, dones, extras = env.step(nothing)
    assert rewards.tolist() == [1.0, 0.5, 0.0]
    assert dones.all()
    assert extras["time_outs"].all()
    assert env.episode_terms == ("one", "index")
    assert extras["episode_sums"].tolist() == [[4.0, 0.0], [4.0, -2.0], [4.0, -4.0]]


def test_an_episode_that_fails_in_its_last_step_has_failed(device: str) -> None:
    env = WarpVecEnv(CountingTask(CountingConfig(), num_envs=2, device=device, seed=0))
    for _ in range(3):
        env.step(torch.zeros(2, 1, device=device))
    _, _, dones, extras = env.step(torch.tensor([[1.0], [0.0]], device=device))
    assert dones.tolist() == [True, True]
    assert extras["time_outs"].tolist() == [False, True]


def test_a_failure_ends_one_episode_and_not_the_next(device: str) -> None:
    # The task's kernel sets the flag of those that failed, and never clears one.
    env = WarpVecEnv(CountingTask(CountingConfig(), num_envs=1, device=device, seed=0))
    _, _, dones, _ = env.step(torch.ones(1, 1, device=device))
    assert dones.all()
    _, _, dones, _ = env.step(torch.zeros(1, 1, device=device))
    assert not dones.any()


def test_sums_of_an_episode_that_failed_hold_its_steps_alone(device: str) -> None:
    env = WarpVecEnv(CountingTask(CountingConfig(), num_envs=2, device=device, seed=0))
    nothing, fail_first = torch.zeros(2, 1, device=device), torch.tensor([[1.0], [0.0]], device=device)
    env.step(nothing)
    _, _, dones, extras = env.step(fail_first)
    assert dones.tolist() == [True, False]
    assert extras["episode_sums"][0].tolist() == [2.0, 0.0]
    _, _, dones, extras = env.step(fail_first)
    assert dones.tolist() == [True, False]
    assert extras["episode_sums"][0].tolist() == [1.0, 0.0]


def test_groups_cannot_be_added_to_the_observations(device: str) -> None:
    observations = WarpVecEnv(CountingTask(CountingConfig(), num_envs=2, device=device, seed=0)).get_observations()
    with pytest.raises(RuntimeError, match="locked"):
        observations["mine"] = torch.zeros(2, 1, device=device)
