"""GRPO's advantages and losses, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.learner_agents import new_loop
from support.learners import train
from tensordict import TensorDict

from shoal.learn import grpo
from shoal.learn.grpo import group_advantages


def test_an_advantage_is_the_return_to_go_beside_those_of_the_running_members_of_the_group() -> None:
    rewards = torch.tensor([[1.0, 3.0, 4.0, 2.0], [2.0, 0.0, 6.0, 100.0]])
    is_running = torch.tensor([[True] * 4, [True, True, True, False]])
    # Returns with a discount of 1/2: 2 and 3 of the first group, 7 and 2 of the second, then 2 and 0, 6 and none.
    found = group_advantages(rewards, is_running, gamma=0.5, group_size=2)
    assert found.tolist() == [
        pytest.approx([-1.0, 1.0, 1.0, -1.0], abs=1e-4),
        pytest.approx([1.0, -1.0, 0.0, 0.0], abs=1e-4),
    ]


def test_only_the_first_episode_of_an_iteration_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def watched(rewards: torch.Tensor, is_running: torch.Tensor, gamma: float, size: int) -> torch.Tensor:
        seen.append(is_running)
        return group_advantages(rewards, is_running, gamma, size)

    monkeypatch.setattr(grpo, "group_advantages", watched)
    loop: Any = new_loop("grpo")
    train(loop)
    rollout = loop.learner._rollout.data.clone()
    ended = torch.zeros_like(rollout["ended"])
    ended[1, 0], ended[3, 0], ended[-1, 1] = True, True, True
    loop.learner._update(rollout.set("ended", ended))
    assert seen[-1][:, 0].tolist() == [True, True] + [False] * (len(ended) - 2)
    assert seen[-1][:, 1:].all()


@pytest.fixture
def learner() -> Any:
    """A learner with a reference, whose networks have learned nothing."""
    return new_loop("grpo").learner


def samples_of(learner: Any, ratios: list[float]) -> TensorDict:
    """Samples whose actions have become so many times as likely. They are the means of the present policy."""
    observations: Any = new_loop("grpo").env.get_observations()
    observations = observations.select(*learner.actor.obs_groups)[: len(ratios)].clone()
    with torch.no_grad():
        learner.actor(observations, stochastic_output=True)
        actions = learner.actor.output_mean.clone()
        log_probs = learner.actor.get_output_log_prob(actions) - torch.tensor(ratios).log()
    named: Any = {"observations": observations, "actions": actions, "log_probs": log_probs}
    return TensorDict(named, batch_size=[len(ratios)])


def test_what_a_ratio_gains_beyond_the_clipping_range_does_not_count(learner: Any) -> None:
    samples = samples_of(learner, [2.0, 2.0, 0.5, 0.5])
    advantages, weights = torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([1.0, 1.0, 1.0, 2.0])
    losses = learner._losses(samples, advantages, weights)
    # min(2, 1.2), min(-2, -1.2), min(0.5, 0.8), and twice min(-0.5, -0.8)
    assert float(losses["surrogate"].detach()) == pytest.approx(-(1.2 - 2 + 0.5 - 2 * 0.8) / 4, abs=1e-5)


def test_the_divergence_from_the_reference_is_the_estimator_k3(learner: Any) -> None:
    samples = samples_of(learner, [1.0, 1.0])
    last = [module for module in learner.reference.modules() if isinstance(module, torch.nn.Linear)][-1]
    with torch.no_grad():
        last.bias.add_(0.5)
    losses = learner._losses(samples, torch.zeros(2), torch.ones(2))
    deviation = float(learner.actor.output_std.mean())
    difference = -(0.5**2) / (2 * deviation**2)  # Of the logarithms of two normal densities at the mean of one.
    assert float(losses["reference_kl"].detach()) == pytest.approx(math.exp(difference) - 1 - difference, rel=1e-4)
