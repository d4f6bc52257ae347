"""What every environment of the house promises to a learner, as tests to inherit: the contract of `shoal.envs.vec_env`.

A test class derives from `VecEnvContract`, builds its environment in `make`, and so shows that it keeps the contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import pytest
import torch

from shoal.errors import ShoalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.envs.vec_env import WarpVecEnv

NUM_ENVS = 32
STEPS = 120
"""More than two episodes of `make`'s environments, so that all of them end at least twice."""


class VecEnvContract(ABC):
    """Tests of the contract. Episodes last at most 50 steps, so that they end within a test."""

    fails = True
    """Whether full pushes to one side end an episode before its time."""

    @abstractmethod
    def make(self, device: str, *, seed: int = 7) -> WarpVecEnv:
        """Build `NUM_ENVS` environments whose episodes last at most 50 steps."""

    @abstractmethod
    def are_first_observations(self, observations: torch.Tensor) -> torch.Tensor:
        """Say for each row of the group `policy` whether an episode can begin like that."""

    @pytest.fixture
    def env(self, device: str) -> WarpVecEnv:
        """Environments at the beginning of their first episodes."""
        return self.make(device)

    def test_declared_sizes_agree_with_what_is_returned(self, env: WarpVecEnv, device: str) -> None:
        observations, rewards, dones, extras = env.step(random_actions(env, 1)[0])
        assert env.num_envs == NUM_ENVS
        assert env.max_episode_length == 50
        assert observations.batch_size == (NUM_ENVS,)
        assert all(group.shape[0] == NUM_ENVS and group.dtype == torch.float32 for group in observations.values())
        assert rewards.shape == dones.shape == extras["time_outs"].shape == (NUM_ENVS,)
        assert rewards.dtype == torch.float32
        assert dones.dtype == extras["time_outs"].dtype == torch.bool
        assert extras["episode_sums"].shape == (NUM_ENVS, len(env.episode_terms))
        tensors = [*observations.values(), rewards, dones, extras["time_outs"], extras["episode_sums"]]
        assert {tensor.device for tensor in tensors} == {torch.device(device)}
        assert not any(tensor.requires_grad for tensor in tensors)

    def test_first_observations_are_those_of_a_beginning_episode(self, env: WarpVecEnv) -> None:
        assert self.are_first_observations(env.get_observations()["policy"]).all()

    def test_observations_after_an_end_are_the_next_episodes_first(self, env: WarpVecEnv) -> None:
        ended = torch.zeros(NUM_ENVS, dtype=torch.bool, device=env.device)
        for observations, _, dones, _ in rollout(env, random_actions(env, STEPS)):
            assert self.are_first_observations(observations["policy"][dones]).all()
            assert (env.episode_length_buf[dones] == 0).all()
            ended |= dones
        assert ended.all()

    def test_episode_lengths_count_the_steps_of_each_episode(self, env: WarpVecEnv) -> None:
        lengths = torch.zeros(NUM_ENVS, dtype=torch.int64, device=env.device)
        for _, _, dones, _ in rollout(env, random_actions(env, STEPS)):
            lengths = torch.where(dones, 0, lengths + 1)
            assert torch.equal(env.episode_length_buf.to(torch.int64), lengths)

    def test_an_episode_ends_by_time_out_exactly_when_its_time_is_up_and_it_did_not_fail(self, env: WarpVecEnv) -> None:
        lengths = torch.zeros(NUM_ENVS, dtype=torch.int64, device=env.device)
        for _, _, dones, extras in rollout(env, random_actions(env, STEPS)):
            lengths += 1
            time_outs = extras["time_outs"]
            assert (dones[time_outs]).all()
            assert (lengths[time_outs] == env.max_episode_length).all()
            assert (dones[lengths == env.max_episode_length]).all()
            lengths[dones] = 0

    def test_a_failure_is_no_time_out(self, env: WarpVecEnv) -> None:
        failures = 0
        push = torch.ones(NUM_ENVS, env.num_actions, device=env.device)
        for _, _, dones, extras in rollout(env, [push] * (env.max_episode_length - 1)):
            assert not extras["time_outs"].any()
            failures += int(dones.sum())
        assert (failures > 0) == self.fails

    def test_episode_sums_add_up_to_the_return(self, env: WarpVecEnv) -> None:
        returns = torch.zeros(NUM_ENVS, device=env.device)
        for _, rewards, dones, extras in rollout(env, random_actions(env, STEPS)):
            returns += rewards
            # Sums of at most 50 numbers of size 1, taken in another order, in 24-bit arithmetic.
            torch.testing.assert_close(extras["episode_sums"].sum(dim=1)[dones], returns[dones], rtol=1e-5, atol=1e-5)
            returns[dones] = 0.0

    def test_observations_stay_as_they_are_during_the_next_step(self, env: WarpVecEnv) -> None:
        before = env.get_observations()
        kept = before["policy"].clone()
        for actions in random_actions(env, 5):
            after, *_ = env.step(actions)
            assert torch.equal(before["policy"], kept)
            assert not torch.equal(after["policy"], kept)
            before, kept = after, after["policy"].clone()

    def test_equal_seeds_give_equal_episodes(self, env: WarpVecEnv, device: str) -> None:
        actions = random_actions(env, STEPS)
        again = self.make(device)
        for mine, theirs in zip(rollout(env, actions), rollout(again, actions), strict=True):
            assert torch.equal(mine[0]["policy"], theirs[0]["policy"])
            assert all(torch.equal(one, other) for one, other in zip(mine[1:3], theirs[1:3], strict=True))

    def test_other_seeds_give_other_episodes(self, env: WarpVecEnv, device: str) -> None:
        other = self.make(device, seed=8)
        assert not torch.equal(env.get_observations()["policy"], other.get_observations()["policy"])

    def test_environments_differ_from_each_other(self, env: WarpVecEnv) -> None:
        assert len(env.get_observations()["policy"].unique(dim=0)) == NUM_ENVS

    def test_reset_with_the_same_seed_starts_all_over(self, env: WarpVecEnv) -> None:
        first = env.get_observations()["policy"].clone()
        for _ in rollout(env, random_actions(env, 3)):
            pass
        again = env.reset(seed=7)["policy"]
        assert torch.equal(first, again)
        assert (env.episode_length_buf == 0).all()

    def test_reset_without_a_seed_begins_other_episodes(self, env: WarpVecEnv) -> None:
        first = env.get_observations()["policy"].clone()
        again = env.reset()["policy"]
        assert not torch.equal(first, again)
        assert self.are_first_observations(again).all()

    def test_assigned_episode_lengths_decide_when_episodes_are_cut_off(self, env: WarpVecEnv) -> None:
        lengths = torch.zeros_like(env.episode_length_buf)
        lengths[::2] = env.max_episode_length - 1
        env.episode_length_buf = lengths
        _, _, _, extras = env.step(torch.zeros(NUM_ENVS, env.num_actions, device=env.device))
        assert torch.equal(extras["time_outs"], lengths > 0)

    def test_actions_of_a_network_in_training_are_taken_as_plain_numbers(self, env: WarpVecEnv) -> None:
        actions = torch.zeros(NUM_ENVS, env.num_actions, device=env.device, requires_grad=True)
        _, rewards, _, _ = env.step(actions)
        assert not rewards.requires_grad

    def test_stepping_works_in_inference_mode_and_outside_in_turn(self, env: WarpVecEnv) -> None:
        actions = random_actions(env, 4)
        with torch.inference_mode():
            env.step(actions[0])
            env.step(actions[1])
        env.step(actions[2])
        with torch.inference_mode():
            env.step(actions[3])
        assert (env.episode_length_buf == 4).all()

    def test_actions_of_another_shape_are_refused(self, env: WarpVecEnv) -> None:
        with pytest.raises(ShoalError, match=rf"shape \({NUM_ENVS},\), but {NUM_ENVS} environments"):
            env.step(torch.zeros(NUM_ENVS, device=env.device))


Step = tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]


def random_actions(env: WarpVecEnv, steps: int) -> list[torch.Tensor]:
    """Return the same actions for every environment of the same size."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(steps, env.num_envs, env.num_actions, generator=generator) * 2 - 1
    return list(drawn.to(env.device))


def rollout(env: WarpVecEnv, actions: list[torch.Tensor]) -> Iterator[Step]:
    """Step through `actions`."""
    for chosen in actions:
        yield env.step(chosen)  # pyright: ignore[reportReturnType] - a TensorDict is read like a dict
