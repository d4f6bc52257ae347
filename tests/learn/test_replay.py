"""The replay buffer against one that stores each transition whole, and its size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoal.learn.replay import Replay

NUM_ENVS, GAMMA = 3, 0.9


class Whole:
    """A replay buffer that stores observations and next observations of each step."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows: list[dict[str, torch.Tensor]] = []

    def add(self, row: dict[str, torch.Tensor]) -> None:
        """Store a step."""
        self.rows = [*self.rows, row][-self.capacity :]

    def sample(self, size: int, num_steps: int, gamma: float) -> dict[str, torch.Tensor]:
        """Draw starts and environments as `Replay` does, and walk on from each start."""
        starts = torch.randint(max(1, len(self.rows) - num_steps + 1), (1, size))[0]
        envs = torch.randint(NUM_ENVS, (1, size))[0]
        sampled: dict[str, list[torch.Tensor]] = {}
        for start, env in zip(starts.tolist(), envs.tolist(), strict=True):
            reward, discount, last = self.rows[start]["rewards"][env], gamma, start
            while last + 1 < min(start + num_steps, len(self.rows)) and not self.rows[last]["ended"][env]:
                last += 1
                reward = reward + discount * self.rows[last]["rewards"][env]
                discount *= gamma
            row = {name: self.rows[start][name][env] for name in ("policy", "critic", "actions")}
            row |= {name: self.rows[last][name][env] for name in ("next_policy", "next_critic", "terminated")}
            for name, each in (row | {"rewards": reward, "discounts": torch.tensor(discount)}).items():
                sampled.setdefault(name, []).append(each)
        return {name: torch.stack(each) for name, each in sampled.items()}


class Both:
    """Both replay buffers, with the same random steps."""

    def __init__(self, capacity: int, chance: float, *, steps_per_iteration: int = 2, length: int = 100) -> None:
        self.chance, self.steps_per_iteration = chance, steps_per_iteration
        self.random = torch.Generator().manual_seed(0)
        self.observations = self.draw()
        sizes: dict[str, Any] = {
            "capacity": capacity,
            "steps_per_iteration": steps_per_iteration,
            "max_episode_length": length,
        }
        self.replay, self.whole = Replay(self.observations, 2, **sizes), Whole(capacity)
        self.enlarged, self.share = 0, 0.7
        """How often there was no room; which part of all ends are time-outs."""

    def uniform(self, *columns: int) -> torch.Tensor:
        """Return random numbers, which are others in each step."""
        return torch.rand(NUM_ENVS, *columns, generator=self.random)

    def draw(self) -> dict[str, torch.Tensor]:
        """Return random observations."""
        return {"policy": self.uniform(4), "critic": self.uniform(2)}

    def iterate(self) -> None:
        """Step as in an iteration. Observations of an environment are in the same memory in each step."""
        self.replay.begin(self.observations)
        for _ in range(self.steps_per_iteration):
            new, final, actions, rewards = self.draw(), self.draw(), self.uniform(2), self.uniform()
            ended = self.uniform() < self.chance
            cut = ended & (self.uniform() < self.share)
            row = {name: each.clone() for name, each in self.observations.items()}
            for name, each in self.observations.items():
                row[f"next_{name}"] = torch.where(cut.unsqueeze(1), final[name], new[name])
                each.copy_(new[name])
            extras = {"time_outs": cut.long(), "final_observation": final}
            self.replay.add(actions, self.observations, rewards, ended.long(), extras)
            self.whole.add(row | {"actions": actions, "rewards": rewards, "ended": ended, "terminated": ended & ~cut})
        self.enlarged += self.replay.reserve(int(self.replay.finals_in_use))

    def compare(self, num_returns: int, *, size: int = 200) -> None:
        """Compare what both sample."""
        torch.manual_seed(7)
        expected = self.whole.sample(size, num_returns, GAMMA)
        torch.manual_seed(7)
        batch: Any = self.replay.batch(self.replay.draw(1, size, num_returns)[0], num_returns, GAMMA)
        found = {f"next_{name}": each for name, each in batch.following.items()} | batch.observations
        found |= {name: each for name, each in vars(batch).items() if isinstance(each, torch.Tensor)}
        assert found.keys() == expected.keys()
        for name in ("rewards", "discounts"):  # Of which sums and products are rounded.
            torch.testing.assert_close(found.pop(name), expected[name])
        assert [name for name, each in found.items() if not torch.equal(each, expected[name])] == []


@pytest.mark.parametrize("num_returns", [1, 3])
@pytest.mark.parametrize("chance", [0.0, 0.2, 1.0])
def test_samples_are_those_of_whole_transitions_also_when_steps_are_overwritten(
    chance: float, num_returns: int
) -> None:
    both = Both(7, chance)
    for _ in range(20):
        both.iterate()
        both.compare(num_returns)


def test_room_for_final_observations_grows_where_more_is_cut_off_than_times_out() -> None:
    both = Both(20, 0.0)
    for chance in (0.0,) * 15 + (0.3,) * 15 + (1.0,) * 15 + (0.1,) * 15:
        both.chance = chance
        both.iterate()
        both.compare(2)
    assert 1 <= both.enlarged <= 4


def test_time_outs_alone_need_no_more_room() -> None:
    both = Both(20, 1.0, steps_per_iteration=1, length=1)
    both.share = 1.0
    for _ in range(50):
        both.iterate()
        both.compare(1, size=20)
    assert both.enlarged == 0


def test_every_step_is_drawn_that_has_as_many_after_it() -> None:
    both = Both(7, 0.0)
    for _ in range(6):
        both.iterate()
    rows = both.replay.draw(4, 500, 3)
    slots = (rows // NUM_ENVS).unique().tolist()
    assert slots == [0, 1, 5, 6, 7]  # Of eight, 12 % 8 is empty, and the newest two are 2 and 3.
    assert (rows % NUM_ENVS).unique().tolist() == [0, 1, 2]


def test_the_newest_steps_are_returned_in_order() -> None:
    both = Both(7, 0.5)
    for _ in range(5):
        both.iterate()
    observations, steps = both.replay.newest(2)
    for name, each in {**observations, **steps}.items():
        assert torch.equal(each, torch.stack([row[name] for row in both.whole.rows[-2:]])), name


def test_an_episode_without_its_last_observation_goes_on_with_the_next_one() -> None:
    observations = {"policy": torch.zeros(2, 1)}
    replay = Replay(observations, 1, capacity=2, steps_per_iteration=1, max_episode_length=10)
    replay.begin(observations)
    cut = torch.ones(2, dtype=torch.bool)
    replay.add(torch.zeros(2, 1), {"policy": torch.ones(2, 1)}, torch.zeros(2), cut, {"time_outs": cut})
    assert replay.batch(torch.tensor([0, 1]), 1, GAMMA).following["policy"].tolist() == [[1.0], [1.0]]


def tensors_of(value: object) -> list[torch.Tensor]:
    """All tensors of an object."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value.values() for tensor in tensors_of(each)] if isinstance(value, dict) else []


def test_235_columns_of_4096_environments_and_1024_steps_take_less_than_4_5_gb() -> None:
    """A buffer that stored actor's and critic's columns twice, and both as next ones too, took 15.8 GB."""
    observations = {"policy": torch.empty(4096, 235, device="meta")}
    replay = Replay(observations, 12, capacity=1024, steps_per_iteration=24, max_episode_length=1000)
    assert 4.0e9 < sum(each.nbytes for each in tensors_of(vars(replay))) <= 4.5e9
