"""The base class of kernel tasks: its arrays, its two observation sets, and exact restoration."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import warp as wp
from support.counting_task import CountingConfig, CountingTask

from shoal.errors import ShoalError, UsageError


def counting(device: str, *, num_envs: int = 4, seed: int = 3, **changes: float) -> CountingTask:
    config = dataclasses.replace(CountingConfig(), **changes)
    return CountingTask(config, num_envs=num_envs, device=device, seed=seed)


def test_every_array_is_known_by_name(device: str) -> None:
    task = counting(device)
    assert set(task.arrays) == {
        "actions",
        "terms",
        "terminated",
        "truncated",
        "diverged",
        "divergences",
        "bad_terms",
        "done",
        "time_out",
        "reward",
        "episode_length",
        "episode_sums",
        "finished_sums",
        "rng",
        "observations/policy",
        "steps",
        "start",
    }
    assert all(array.shape[0] == 4 for array in task.arrays.values())


def test_a_step_is_recorded(device: str) -> None:
    assert counting(device).graph.is_captured


@pytest.mark.parametrize(("seconds", "steps"), [(2.0, 4), (2.2, 4), (2.3, 5), (0.1, 1)])
def test_episode_length_is_rounded_to_whole_steps_of_half_a_second(seconds: float, steps: int, device: str) -> None:
    assert counting(device, episode_length_s=seconds).max_episode_length == steps


def test_rewards_are_rates_unless_a_task_says_that_they_are_not(device: str) -> None:
    class PerStep(CountingTask):
        reward_per_step = True

    rewards = []
    for task in (CountingTask, PerStep):
        built = task(CountingConfig(), num_envs=2, device=device, seed=3)
        built.step()
        rewards.append(built.reward.numpy().tolist())
    # Twice 1, less the index: for half a second, and for a step.
    assert rewards == [[1.0, 0.5], [2.0, 1.0]]


def test_validation_leaves_no_trace(device: str) -> None:
    task = counting(device)
    zero = {name for name, array in task.arrays.items() if not array.numpy().any()}
    assert set(task.arrays) - zero == {"rng", "start", "observations/policy"}
    assert np.isfinite(task.obs["policy"].numpy()).all()


def test_a_task_whose_arrays_are_restored_goes_on_exactly(device: str) -> None:
    task, other = counting(device, seed=3), counting(device, seed=4)
    for _ in range(3):
        task.step()
    for name, array in task.arrays.items():
        wp.copy(other.arrays[name], array)
    for _ in range(9):  # Two ends of episodes, which draw random numbers.
        task.step()
        other.step()
    assert (task.start.numpy() == other.start.numpy()).all()
    assert (task.rng.numpy() == other.rng.numpy()).all()
    mine, theirs = (each.obs["policy"].numpy() for each in (task, other))
    assert (mine == theirs).all()


def test_only_environments_that_are_done_draw_random_numbers(device: str) -> None:
    task = counting(device)
    before = task.rng.numpy().copy()
    task.actions.assign(np.array([[1.0], [0.0], [1.0], [0.0]], dtype=np.float32))
    task.step()
    assert (task.rng.numpy() != before).tolist() == [True, False, True, False]


def test_seeds_beyond_32_bits_are_taken(device: str) -> None:
    counting(device, seed=2**40 + 5)


def test_no_environment_at_all_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match="0 environments were asked for: pass --num-envs 1 or more"):
        counting(device, num_envs=0)


def test_one_environment_is_enough(device: str) -> None:
    task = counting(device, num_envs=1)
    task.step()
    assert task.reward.numpy().tolist() == [1.0]


class NamesTwice(CountingTask):
    def allocate(self) -> None:
        super().allocate()
        self.array("steps")


def test_two_arrays_of_one_name_are_refused(device: str) -> None:
    with pytest.raises(ShoalError, match="NamesTwice asked for a second array named 'steps'"):
        NamesTwice(CountingConfig(), num_envs=1, device=device, seed=0)


def test_a_truncated_episode_ends_as_if_its_time_were_up(device: str) -> None:
    task = counting(device)
    task.truncated.assign([True, False, True, False])
    task.terminated.assign([False, False, True, False])
    task.step()
    assert task.done.numpy().tolist() == [True, False, True, False]
    assert task.time_out.numpy().tolist() == [True, False, False, False]
    assert not task.truncated.numpy().any()
    task.step()
    assert not task.done.numpy().any()


def test_nothing_has_failed_where_all_begin_anew(device: str) -> None:
    class Asking(CountingTask):
        def allocate(self) -> None:
            super().allocate()
            self.failed = self.array("failed", dtype=wp.bool)

        def reset(self) -> None:
            super().reset()
            wp.copy(self.failed, self.time_out)

    task = Asking(CountingConfig(), num_envs=2, device=device, seed=3)
    task.restart()
    assert task.failed.numpy().all()
    assert not task.time_out.numpy().any()
