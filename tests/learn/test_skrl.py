"""skrl's agents: the policy without noise, replay buffers after a resume, and the time of updates."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import skrl.agents.torch.ppo.ppo as ppo_module
import torch
from support.learner_agents import AGENTS, OFF_POLICY, new_loop
from support.learners import train

from shoal.learn.groups import World
from shoal.learn.skrl.learner import pooled_moments
from shoal.learn.skrl.rollout import pooled_advantages

if TYPE_CHECKING:
    from collections.abc import Callable

OFF_POLICY_AGENTS = ["skrl SAC", "skrl TD3"]


def steps_at_updates(loop: Any) -> list[int]:
    """Train, and return how many steps were in the replay buffer at each update."""
    memory, found = loop.learner.agent.memory, []
    sample = memory.sample

    def counted(*arguments: Any, **named: Any) -> Any:
        found.append(memory.memory_index)
        return sample(*arguments, **named)

    memory.sample = counted
    train(loop)
    return found


@pytest.mark.parametrize("agent", OFF_POLICY_AGENTS)
def test_a_replay_buffer_that_a_resume_has_emptied_is_filled_before_the_first_update(agent: str) -> None:
    first = new_loop(agent, max_iterations=2)
    # Learning starts at the third step, with that in the buffer, and there are two iterations of four steps.
    assert OFF_POLICY["learning_starts"] == 2
    assert steps_at_updates(first) == [3, 4, 5, 6, 7, 8]
    second = new_loop(agent, max_iterations=4)
    second.restore(copy.deepcopy(first.state()))
    assert steps_at_updates(second) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("agent", ["skrl", *OFF_POLICY_AGENTS])
def test_the_policy_without_noise_is_that_of_skrl_also_where_it_is_clipped(agent: str) -> None:
    loop = new_loop(agent)
    train(loop)
    learner: Any = loop.learner
    for parameter in learner.agent.policy.network.parameters():
        parameter.data.mul_(5)  # So that tanh is far from a line.
    observations = loop.env.get_observations().clone()
    observations["policy"].mul_(torch.linspace(0, 20, loop.env.num_envs).unsqueeze(1))
    rows = learner.agent._observation_preprocessor(learner.inputs(observations)["actor"])
    with torch.no_grad():
        actions, outputs = learner.agent.policy.act({"observations": rows}, role="policy")
        expected = outputs.get("mean_actions", actions)
        torch.testing.assert_close(learner.policy()(observations), expected)
    assert expected.std() > 0.1


def test_pooled_advantages_are_skrls_own_where_all_samples_are_on_one_rank() -> None:
    torch.manual_seed(0)
    settings: Any = {name: torch.randn(8, 4, 1) for name in ("rewards", "values")}
    settings |= {name: torch.rand(8, 4, 1) < 0.2 for name in ("terminated", "truncated")}
    settings["last_values"] = torch.randn(4, 1)
    own = ppo_module.compute_gae(**settings)
    several: Any = SimpleNamespace(is_distributed=True)
    with pooled_advantages(ppo_module, "compute_gae", several, lambda rows: (rows - rows.mean()) / (rows.std() + 1e-8)):
        pooled = ppo_module.compute_gae(**settings)
    torch.testing.assert_close(pooled, own)
    torch.testing.assert_close(ppo_module.compute_gae(**settings), own, atol=0, rtol=0)


@pytest.mark.parametrize("agent", OFF_POLICY_AGENTS)
def test_what_follows_a_step_is_what_the_next_step_begins_with(agent: str) -> None:
    loop: Any = new_loop(agent, max_iterations=2)
    train(loop)
    memory = loop.learner.agent.memory
    rows = {name: memory.get_tensor_by_name(name)[: memory.memory_index] for name in memory.get_tensor_names()}
    for name in ("observations", "states"):
        follows = (rows[f"next_{name}"][:-1] == rows[name][1:]).all(dim=2)
        assert follows.float().mean() > 0.8  # Else an episode ended.


class Clock:
    """A clock that goes on only while environments step and learners update."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        """Return the present time [s]."""
        return self.now

    def taking(self, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that takes so long."""

        def slow(*arguments: Any, **named: Any) -> Any:
            self.now += seconds
            return function(*arguments, **named)

        return slow


UPDATES = {
    "skrl": 1,
    "skrl SAC": 2,  # Of the first four steps, two are before the first update; then there are four.
    "skrl TD3": 2,
    "fast_sac": 4,
    "grpo": 4,
    "rl_games": 10,
}
"""Updates in the first iteration: for each rollout, step, or mini-batch of each epoch."""


@pytest.mark.parametrize("agent", UPDATES)
def test_the_time_of_updates_is_learning_and_that_of_steps_collection(
    agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, loop = Clock(), new_loop(agent, max_iterations=1)
    learner: Any = loop.learner
    for module in ("loop", "training_env"):
        monkeypatch.setattr(f"shoal.learn.{module}.time", clock)
    name = {"fast_sac": "_critic_loss", "grpo": "_losses", "rl_games": "calc_gradients"}.get(agent, "_update")
    owner = learner.agent if agent == "rl_games" else learner
    setattr(owner, name, clock.taking(100.0, getattr(owner, name)))
    loop.env.step = clock.taking(1.0, loop.env.step)
    (row,) = train(loop).rows
    assert row["Perf/collection_time"] == AGENTS[agent].num_steps_per_env
    assert row["Perf/learning_time"] == 100 * UPDATES[agent]


def test_the_pooled_variance_of_constants_is_not_negative() -> None:
    constants = torch.rand(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, variance, number = pooled_moments(constants, constants.square(), 3, World())
    assert variance.min() == 0.0
    assert variance.max() < 1e-15
    assert number == 3
