"""Pooled statistics of one rank, by hand-worked numbers. What two ranks pool is in `test_two_ranks`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.learners import ALONE, CountedOperations

from shoal.learn.groups import World
from shoal.learn.statistics import WINDOW_EPISODES, Seconds, Statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.learn.statistics import Pooled

NAN = float("nan")


def step(
    statistics: Statistics, rewards: list[float], dones: list[int], extras: Mapping[str, Any] | None = None
) -> None:
    """Take in one step."""
    statistics.add_step(torch.tensor(rewards), torch.tensor(dones, dtype=torch.bool), extras or {})


def pool(statistics: Statistics) -> Pooled:
    """Close an iteration about which nothing else is known."""
    return statistics.pool({}, Seconds(0.0, 0.0, 0.0), {})


# Episodes


def test_a_return_is_the_sum_of_an_episodes_rewards() -> None:
    statistics = Statistics(ALONE, num_envs=2)
    step(statistics, [1, 10], [0, 0])
    step(statistics, [2, 20], [1, 0])
    step(statistics, [3, 30], [1, 1])
    pooled = pool(statistics)
    # Returns 1 + 2, 3 and 60, in 2, 1 and 3 steps.
    assert pooled.episodes == 3
    assert pooled.means["Train/mean_reward"] == 22
    assert pooled.means["Train/mean_episode_length"] == 2
    # Mean squares (9 + 9 + 3600) / 3 = 1206 and (4 + 1 + 9) / 3 = 14 / 3.
    assert pooled.means["Train/std_reward"] == pytest.approx(math.sqrt(1206 - 22**2))
    assert pooled.means["Train/std_episode_length"] == pytest.approx(math.sqrt(14 / 3 - 2**2))


def test_a_whole_episode_is_one_that_was_seen_from_its_beginning() -> None:
    statistics = Statistics(ALONE, num_envs=2)
    statistics.set_ages(torch.tensor([0, 7]))
    step(statistics, [1, 10], [0, 1])
    assert "Train/mean_whole_reward" not in pool(statistics).means
    step(statistics, [2, 20], [1, 1])
    step(statistics, [4, 40], [0, 1])
    pooled = pool(statistics)
    # 10 was cut short; whole are 1 + 2, 20 and 40.
    assert pooled.means["Train/mean_whole_reward"] == 21
    assert pooled.means["Train/mean_reward"] == (10 + 3 + 20 + 40) / 4
    step(statistics, [5, 0], [1, 0])
    assert pool(statistics).means["Train/mean_whole_reward"] == (3 + 20 + 40 + 9) / 4


def test_an_episode_that_runs_is_not_told_yet() -> None:
    statistics = Statistics(ALONE, num_envs=1)
    step(statistics, [1], [0])
    pooled = pool(statistics)
    assert pooled.episodes == 0
    assert not [name for name in pooled.means if name.startswith("Train/")]
    step(statistics, [2], [1])
    assert pool(statistics).means["Train/mean_reward"] == 1 + 2


def test_an_iteration_without_a_step_pools_nothing() -> None:
    assert pool(Statistics(ALONE, num_envs=1, episode_terms=("up",))).episodes == 0


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_ends_of_episodes_may_have_any_type(dtype: torch.dtype) -> None:
    statistics = Statistics(ALONE, num_envs=2)
    statistics.add_step(torch.tensor([3.0, 5.0]), torch.tensor([1, 0]).to(dtype), {})
    pooled = pool(statistics)
    assert pooled.episodes == 1
    assert pooled.means["Train/mean_reward"] == 3


def test_what_the_environment_overwrites_was_taken_in_before() -> None:
    statistics = Statistics(ALONE, num_envs=1, episode_terms=("up",))
    rewards, dones, sums = torch.ones(1), torch.ones(1, dtype=torch.bool), torch.ones(1, 1)
    extras = {"episode_sums": sums, "log": {"a/x": rewards}}
    statistics.add_step(rewards, dones, extras)
    for tensor in (rewards, sums):
        tensor.fill_(100)
    dones.fill_(value=False)
    pooled = pool(statistics)
    assert pooled.episodes == 1
    assert [pooled.means[name] for name in ("Train/mean_reward", "Episode_Reward/up", "a/x")] == [1, 1, 1]


def test_small_spreads_of_large_returns_are_seen() -> None:
    # Returns 10000 and 10000.5: their squares differ by 1e-4 of themselves, and single precision keeps 1e-7.
    statistics = Statistics(ALONE, num_envs=2)
    step(statistics, [10_000, 10_000.5], [1, 1])
    assert pool(statistics).means["Train/std_reward"] == pytest.approx(0.25, rel=1e-6)


def test_long_episodes_lose_no_small_reward() -> None:
    # Single precision would not notice 1 beside 2^24.
    statistics = Statistics(ALONE, num_envs=1)
    step(statistics, [2.0**24], [0])
    step(statistics, [1], [0])
    step(statistics, [1], [1])
    assert pool(statistics).means["Train/mean_reward"] == 2**24 + 2


def test_nan_is_forgotten_with_its_episode() -> None:
    statistics = Statistics(ALONE, num_envs=2)
    step(statistics, [NAN, 1], [0, 1])
    assert pool(statistics).means["Train/mean_reward"] == 1  # The episode with NaN in it still runs.
    step(statistics, [0, 0], [1, 0])
    assert math.isnan(pool(statistics).means["Train/mean_reward"])
    step(statistics, [7, 0], [1, 0])
    statistics._window.clear()  # It holds that episode until there are 100 newer ones.
    assert pool(statistics).means["Train/mean_reward"] == 7


def test_terms_count_only_where_an_episode_ended() -> None:
    statistics = Statistics(ALONE, num_envs=2, episode_terms=("up", "slow"))
    step(statistics, [0, 0], [1, 0], {"episode_sums": torch.tensor([[1.0, -1.0], [NAN, NAN]])})
    step(statistics, [0, 0], [0, 1], {"episode_sums": torch.tensor([[NAN, NAN], [3.0, -2.0]])})
    pooled = pool(statistics)
    assert pooled.means["Episode_Reward/up"] == (1 + 3) / 2
    assert pooled.means["Episode_Reward/slow"] == (-1 - 2) / 2


def test_a_term_may_be_called_as_a_measure_is() -> None:
    statistics = Statistics(ALONE, num_envs=1, episode_terms=("length", "return"))
    step(statistics, [4], [1], {"episode_sums": torch.tensor([[3.0, 1.0]])})
    pooled = pool(statistics)
    assert pooled.means["Train/mean_episode_length"] == 1
    assert pooled.means["Train/mean_reward"] == 4
    assert pooled.means["Episode_Reward/length"] == 3


@given(
    st.lists(st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=3, max_size=3), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_episodes_add_up_as_in_plain_python(steps: list[list[tuple[int, bool]]], iteration_length: int) -> None:
    statistics = Statistics(ALONE, num_envs=3)
    episodes, running, ended = 0, [(0, 0)] * 3, []
    for number, envs in enumerate(steps, start=1):
        step(statistics, [float(reward) for reward, _ in envs], [int(done) for _, done in envs])
        for env, (reward, done) in enumerate(envs):
            total, length = running[env]
            running[env] = (total + reward, length + 1)
            if done:
                ended.append(running[env])
                running[env] = (0, 0)
        if number % iteration_length == 0:
            episodes += pool(statistics).episodes
    pooled = pool(statistics)
    assert episodes + pooled.episodes == len(ended)
    if ended:
        assert pooled.means["Train/mean_reward"] == pytest.approx(sum(total for total, _ in ended) / len(ended))
        assert pooled.means["Train/mean_episode_length"] == pytest.approx(
            sum(length for _, length in ended) / len(ended)
        )


# The window


def iterate(statistics: Statistics, returns: float, episodes: int) -> float:
    """An iteration in which so many episodes of one step end; what is told afterwards."""
    dones = [1] * episodes + [0] * (WINDOW_EPISODES - episodes)
    step(statistics, [returns] * WINDOW_EPISODES, dones)
    statistics.running.zero_()  # Those that did not end begin again too, so that each return is known.
    return pool(statistics).means["Train/mean_reward"]


def test_the_newest_iterations_with_a_hundred_episodes_make_the_mean() -> None:
    statistics = Statistics(ALONE, num_envs=WINDOW_EPISODES)
    assert iterate(statistics, 0.0, episodes=60) == 0
    assert iterate(statistics, 1.0, episodes=60) == 0.5  # 120 episodes, but only 60 without the oldest.
    assert iterate(statistics, 2.0, episodes=60) == 1.5  # The oldest is no longer needed.
    assert iterate(statistics, 8.0, episodes=100) == 8.0  # Enough by itself.
    assert iterate(statistics, 0.0, episodes=25) == pytest.approx(8 * 100 / 125)


def test_what_is_told_stays_while_no_episode_ends() -> None:
    statistics = Statistics(ALONE, num_envs=1)
    step(statistics, [3], [1])
    pool(statistics)
    step(statistics, [5], [0])
    pooled = pool(statistics)
    assert pooled.episodes == 0
    assert pooled.means["Train/mean_reward"] == 3


# Logged values


def test_the_mean_is_over_all_values_of_all_steps() -> None:
    statistics = Statistics(ALONE, num_envs=1)
    for value in (1, 2.0, True, torch.tensor(3), torch.tensor([[4.0, 5.0], [6.0, 7.0]]), [8, 9]):
        statistics.add_log({"a/x": value})
    # 1 + 2 + 1 + 3 + (4 + 5 + 6 + 7) + (8 + 9) = 46, over 10 values.
    assert pool(statistics).means["a/x"] == pytest.approx(4.6)


def test_values_of_diverged_environments_are_left_out() -> None:
    statistics = Statistics(ALONE, num_envs=3)
    diverged = torch.tensor([0.0, 2.0, 0.0])
    step(
        statistics, [0, 0, 0], [0, 0, 0], {"log": {"Task/height": torch.tensor([1.0, NAN, 2.0])}, "diverged": diverged}
    )
    assert pool(statistics).means["Task/height"] == pytest.approx(1.5)


def test_a_number_counts_as_often_as_its_weight() -> None:
    statistics = Statistics(ALONE, num_envs=3)
    for value, weight in ((3.0, 2), (6.0, 3), (50.0, 0)):
        step(statistics, [0, 0, 0], [0, 0, 0], {"log": {"Task/height": value}, "log_weight": torch.tensor(weight)})
    # Several numbers are no mean of others: each counts once.
    statistics.add_log({"Task/each": torch.tensor([1.0, 2.0, 6.0])}, weight=torch.tensor(2))
    means = pool(statistics).means
    assert means["Task/height"] == pytest.approx((2 * 3 + 3 * 6) / 5)
    assert means["Task/each"] == 3


def test_a_name_is_told_only_where_something_was_logged() -> None:
    statistics = Statistics(ALONE, num_envs=1)
    statistics.add_log({"a/x": 1, "a/empty": torch.zeros(0)})
    means = pool(statistics).means
    assert means["a/x"] == 1
    assert "a/empty" not in means
    assert "a/x" not in pool(statistics).means
    statistics.add_log({"a/x": 5})
    assert pool(statistics).means["a/x"] == 5


def test_a_name_without_a_slash_belongs_to_the_episode() -> None:
    # rsl_rl's rule; without a group, a name could be taken for one of ours.
    statistics = Statistics(ALONE, num_envs=1)
    statistics.add_log({"iteration": 7, "/height": 1})
    means = pool(statistics).means
    assert means["Episode/iteration"] == 7
    assert means["/height"] == 1


def test_logged_values_do_not_hide_ours() -> None:
    statistics = Statistics(ALONE, num_envs=1)
    step(statistics, [3], [1], {"log": {"Train/mean_reward": 1000, "Loss/value": 1000}})
    means = statistics.pool({"value": 1.0}, Seconds(0.0, 0.0, 0.0), {}).means
    assert means["Train/mean_reward"] == 3
    assert means["Loss/value"] == 1


@pytest.mark.parametrize("key", ["log", "episode"])
def test_an_environment_may_log_under_either_key(key: str) -> None:
    statistics = Statistics(ALONE, num_envs=1)
    step(statistics, [0], [0], {key: {"a/x": 4}})
    assert pool(statistics).means["a/x"] == 4


# Waiting for the device


def all_there_is(device: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """A step with everything in it that `add_step` looks at."""
    extras = {
        "episode_sums": torch.zeros(4, 2, device=device),
        "log": {"a/tensor": torch.zeros(3, device=device), "a/number": 1.0},
    }
    return torch.zeros(4, device=device), torch.zeros(4, dtype=torch.bool, device=device), extras


def test_a_step_reads_nothing_back() -> None:
    # Tensors of the meta device have no values: whatever reads one, by any route, raises.
    statistics = Statistics(World(device="meta"), num_envs=4, episode_terms=("up", "slow"))
    statistics.add_step(*all_there_is("meta"))


def test_a_step_costs_five_small_operations_and_one_for_each_logged_tensor() -> None:
    # On a GPU each of them costs as much as a layer of a small policy.
    statistics = Statistics(ALONE, num_envs=4, episode_terms=("up", "slow"))
    rewards, dones, extras = all_there_is("cpu")
    del extras["log"]["a/number"]
    with CountedOperations() as operations:
        statistics.add_step(rewards, dones, extras)
    assert operations.counts.total() <= 5 + 1, operations.counts


def test_host_numbers_are_sent_to_the_device_in_one_tensor() -> None:
    # Each further tensor made of host numbers would be a copy that waits for the GPU.
    statistics = Statistics(ALONE, num_envs=4, episode_terms=("up", "slow"))
    statistics.add_step(*all_there_is("cpu"))
    pool(statistics)  # From now on the names are known.
    statistics.add_step(*all_there_is("cpu"))
    with CountedOperations() as operations:
        pooled = statistics.pool({"value": 1.0}, Seconds(1.0, 2.0, 3.0), {"signal": 1})
    made = {"aten.lift_fresh.default", "aten.scalar_tensor.default"}  # By `torch.tensor`, and of plain numbers.
    assert sum(operations.counts[name] for name in made) == 1, operations.counts
    assert (pooled.means["a/tensor"], pooled.means["a/number"]) == (0, 1)


@pytest.mark.gpu
def test_a_step_never_waits_for_the_gpu() -> None:
    statistics = Statistics(World(device="cuda:0"), num_envs=4, episode_terms=("up", "slow"))
    step_of_a_gpu = all_there_is("cuda:0")
    statistics.add_step(*step_of_a_gpu)
    torch.cuda.set_sync_debug_mode("error")
    try:
        statistics.add_step(*step_of_a_gpu)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert pool(statistics).means["a/number"] == 1
