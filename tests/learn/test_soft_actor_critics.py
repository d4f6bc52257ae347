"""Distributions of FastSAC and of SAC for skrl, against torch's own and against sums that are written out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from support.learner_agents import NUM_ENVS, new_loop
from support.learners import ALONE, train

from shoal.config import FastSacConfig, SkrlConfig
from shoal.learn.fast_sac import _Actor, _Critics, _RewardScale
from shoal.learn.replay import Batch
from shoal.learn.skrl.learner import _SquashedPolicy

CONFIG = FastSacConfig(num_atoms=11, max_return=5.0, actor_hidden_dims=(8,), critic_hidden_dims=(8,))


def test_log_probabilities_are_those_of_a_squashed_gaussian() -> None:
    torch.manual_seed(0)
    actor = _Actor(3, 2, CONFIG).eval()
    observations = torch.randn(64, 3)
    actions, log_probs = actor.sample(observations)
    mean, log_std = actor.distribution(observations)
    gaussian = torch.distributions.Normal(mean.double(), log_std.double().exp())
    squashed = torch.distributions.TransformedDistribution(gaussian, torch.distributions.TanhTransform())
    expected = squashed.log_prob(actions.double()).sum(dim=1)
    torch.testing.assert_close(log_probs.double(), expected, atol=1e-3, rtol=1e-4)


def test_log_probabilities_of_skrls_policy_are_those_of_a_squashed_gaussian() -> None:
    torch.manual_seed(0)
    boxes = {f"{name}_space": gymnasium.spaces.Box(-9, 9, (3,), np.float32) for name in ("observation", "state")}
    actions = gymnasium.spaces.Box(-2, 2, (2,), np.float32)
    policy = _SquashedPolicy(SkrlConfig(hidden_dims=(8,), action_limit=2.0), {**boxes, "action_space": actions})
    inputs = {"observations": torch.randn(64, 3)}
    drawn, outputs = policy.act(inputs)
    mean = policy.compute(inputs)[0].double()
    gaussian = torch.distributions.Normal(mean, outputs["log_std"].double().exp())
    transforms = [torch.distributions.TanhTransform(), torch.distributions.AffineTransform(0.0, 2.0)]
    squashed = torch.distributions.TransformedDistribution(gaussian, transforms)
    expected = squashed.log_prob(drawn.double()).sum(dim=1, keepdim=True)
    torch.testing.assert_close(outputs["log_prob"].double(), expected, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(outputs["mean_actions"].double(), 2 * torch.tanh(mean), atol=1e-6, rtol=1e-5)


def test_a_return_is_shared_by_its_two_neighbouring_atoms() -> None:
    torch.manual_seed(0)
    critics = _Critics(3, 2, CONFIG)
    atoms = critics.atoms
    probabilities = torch.rand(32, 11).softmax(dim=1)
    returns = 4 * torch.randn(32, 11)  # Some beyond the support.
    returns[0] = atoms  # Some on an atom.
    projected = critics.projected(probabilities, returns)
    expected = torch.zeros(32, 11)
    for row in range(32):
        for atom in range(11):
            value = float(returns[row, atom].clamp(-5, 5))
            lower = min(int(value + 5), 9)  # Atoms are 1 apart, from -5 on.
            share = value + 5 - lower
            expected[row, lower] += probabilities[row, atom] * (1 - share)
            expected[row, lower + 1] += probabilities[row, atom] * share
    torch.testing.assert_close(projected, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(projected @ atoms, (probabilities * returns.clamp(-5, 5)).sum(dim=1), atol=1e-4, rtol=0)


def test_rewards_are_scaled_by_the_deviation_of_returns_or_to_fit_the_critics() -> None:
    scale = _RewardScale(FastSacConfig(max_return=10.0))
    scale.update(torch.tensor([[3.0], [-1.0]]), ALONE)
    assert float(scale.divisor) == pytest.approx(2.0)  # The mean is 1, and both are 2 away from it.
    assert scale(torch.tensor([4.0])).tolist() == pytest.approx([2.0])
    scale.update(torch.tensor([[50.0]]), ALONE)
    scale.update(torch.zeros(1000, 1), ALONE)
    assert float(scale.divisor) == pytest.approx(5.0)  # A return of 50 is to be 10.


def test_the_scale_is_learned_from_discounted_sums_that_begin_anew_with_each_episode() -> None:
    learner: Any = new_loop("fast_sac").learner
    seen: list[torch.Tensor] = []
    learner.scale.update = lambda sums, *_: seen.append(sums)
    learner.config = replace(learner.config, gamma=0.5)
    observations = {name: torch.zeros(3, NUM_ENVS, size) for name, size in learner._inputs.sizes.items()}
    rewards = torch.ones(3, NUM_ENVS)
    ended = torch.zeros(2, 3, NUM_ENVS, dtype=torch.bool)
    ended[0, 1:, 0] = True
    for each in ended:
        learner._learn_scales(observations, rewards, each)
    first, second = torch.cat([each.view(3, NUM_ENVS)[:, :2] for each in seen]).T.tolist()
    assert first == pytest.approx([1.0, 1.5, 1.0, 1.0, 1.5, 1.75])
    assert second == pytest.approx([1.0, 1.5, 1.75, 1.875, 1.9375, 1.96875])


def batch_of_two(learner: Any) -> Batch:
    """Transitions with a reward of 2 over two steps with the discount 0.9, of which the second ended the episode."""
    observations = {"policy": torch.zeros(2, learner._inputs.sizes["actor"])}
    return Batch(
        observations=observations,
        following=observations,
        actions=torch.zeros(2, learner._num_actions),
        rewards=torch.tensor([2.0, 2.0]),
        discounts=torch.tensor([0.81, 0.81]),
        terminated=torch.tensor([False, True]),
    )


def test_the_target_of_a_critic_is_the_reward_and_the_discounted_future_with_its_entropy() -> None:
    learner: Any = new_loop("fast_sac").learner
    learner.scale.update(torch.tensor([[1.0], [-1.0]]), ALONE)  # Rewards are divided by 1.
    learner.temperature.log_value.data.fill_(math.log(0.5))
    learner.actor.sample = lambda rows: (torch.zeros(len(rows), learner._num_actions), torch.full((len(rows),), -0.7))
    seen: list[torch.Tensor] = []
    learner.targets.projected = lambda probabilities, returns: seen.append(returns) or probabilities
    learner._critic_loss(batch_of_two(learner))
    (goes_on, ended) = seen[0]
    torch.testing.assert_close(goes_on, 2.0 + 0.81 * (learner.targets.atoms + 0.35))
    torch.testing.assert_close(ended, torch.full_like(ended, 2.0))


@pytest.mark.parametrize(("entropy", "falls"), [(3.0, True), (-9.0, False)])
def test_the_temperature_falls_where_the_entropy_is_above_its_target(entropy: float, falls: bool) -> None:
    learner: Any = new_loop("fast_sac").learner
    assert -9.0 < learner.config.target_entropy * learner._num_actions < 3.0
    before, sample = float(learner.temperature().detach()), learner.actor.sample

    def sample_with_entropy(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        actions, log_probs = sample(rows)
        return actions, log_probs - log_probs.detach() - entropy

    learner.actor.sample = sample_with_entropy
    actor_loss, temperature_loss, _ = learner._actor_losses(batch_of_two(learner).observations)
    learner._actor_gradients.compute(actor_loss + temperature_loss)
    learner._descend_actor()
    assert (float(learner.temperature().detach()) < before) is falls


def test_the_actor_is_updated_once_in_as_many_updates_as_the_delay() -> None:
    loop: Any = new_loop("fast_sac", max_iterations=2)
    train(loop)
    learner, updates = loop.learner, []
    learner.config = replace(learner.config, policy_delay=4, updates_per_step=2)
    losses, learner.updates = learner._actor_losses, 0
    learner._actor_losses = lambda rows: updates.append(learner.updates) or losses(rows)
    assert learner._update() == [8, 2, 2]
    assert learner.config.num_steps_per_env == 4
    assert updates == [0, 4]


def test_an_episode_that_was_cut_off_goes_on_with_its_own_last_observation() -> None:
    loop: Any = new_loop("fast_sac")
    begun = loop.env.get_observations().clone().apply(torch.ones_like)
    cut = torch.arange(NUM_ENVS) == 1
    after = loop.learner._inputs.after_step(begun, cut, {"final_observation": begun.apply(lambda rows: 2 * rows)})
    for rows in after.values():
        assert rows.amin(dim=1).tolist() == rows.amax(dim=1).tolist() == [2.0 if each else 1.0 for each in cut]
    assert (loop.learner._inputs.after_step(begun, cut, {})["actor"] == 1).all()
