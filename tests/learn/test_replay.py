"""The replay buffer against a plain loop over the same steps."""

from __future__ import annotations

import pytest
import torch

from shoal.learn.replay import Replay

CAPACITY, NUM_ENVS, GAMMA = 7, 3, 0.9


def filled(num_steps: int, ended: dict[tuple[int, int], bool]) -> Replay:
    """Steps whose observation and reward say which they are; `ended` tells of each end whether it was a failure."""
    replay = Replay(CAPACITY)
    for step in range(num_steps):
        name = torch.tensor([[100.0 * env + step] for env in range(NUM_ENVS)])
        ends = torch.tensor([(step, env) in ended for env in range(NUM_ENVS)])
        transition = {"actor": name, "critic": name.expand(-1, 2), "actions": -name, "rewards": name.squeeze(1) + 1}
        transition |= {"next_actor": name + 0.5, "next_critic": name.expand(-1, 2) + 0.5, "ended": ends}
        failed = torch.tensor([ended.get((step, env), False) for env in range(NUM_ENVS)])
        replay.add({**transition, "terminated": failed})
    return replay


@pytest.mark.parametrize("num_returns", [1, 3])
@pytest.mark.parametrize("num_steps", [4, 20])
def test_sampled_returns_end_with_the_episode_and_with_the_newest_step(num_steps: int, num_returns: int) -> None:
    ended = {(2, 0): True, (15, 0): True, (15, 1): False, (17, 2): False}
    replay = filled(num_steps, ended)
    oldest = max(0, num_steps - CAPACITY)
    batch = replay.sample(2000, num_returns, GAMMA)
    seen = set()
    for row in range(2000):
        env, first = divmod(int(batch.actor[row]), 100)
        assert oldest <= first <= num_steps - num_returns
        seen.add((env, first))
        wanted, discount, last = 0.0, 1.0, first
        for last in range(first, first + num_returns):
            wanted += discount * (100 * env + last + 1)
            discount *= GAMMA
            if (last, env) in ended:
                break
        assert batch.rewards[row] == pytest.approx(wanted)
        assert batch.discounts[row] == pytest.approx(discount)
        assert batch.next_actor[row] == 100 * env + last + 0.5
        assert batch.next_critic[row].tolist() == [100 * env + last + 0.5] * 2
        assert batch.actions[row] == -batch.actor[row]
        assert bool(batch.terminated[row]) is ended.get((last, env), False)
    assert len(seen) == NUM_ENVS * (min(num_steps, CAPACITY) - num_returns + 1)
