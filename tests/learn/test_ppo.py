"""The learning rate of rsl_rl's PPO among several ranks, against the divergence of two Gaussians worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.optima import Regulator
from support.optimum_agents import agents, learned

from shoal.learn.rsl_rl import ppo


@pytest.mark.parametrize(
    ("shift", "widening", "factor"),
    [
        (0.5, 2.0, 1 / 1.5),  # Far beyond twice the desired divergence.
        (0.15, 1.0, 1.0),  # Between half and twice of it: 0.15² / 2 = 0.01.
        (0.05, 1.0, 1.5),  # Below half of it.
        (0.0, 1.0, 1.0),  # None is no reason to learn faster.
    ],
)
def test_the_rate_follows_the_divergence_of_the_policy_from_that_of_the_rollout(
    shift: float, widening: float, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Regulator()
    learner: Any = learned("rsl_rl", agents(0.5)["rsl_rl"], env, iterations=1).learner
    algorithm = learner.alg
    monkeypatch.setattr(ppo, "reduce_gradients_in_buckets", lambda *_: None)
    with torch.no_grad():
        algorithm.actor(env.get_observations(), stochastic_output=True)
        mean, std = (each.clone() for each in algorithm.actor.output_distribution_params)
    algorithm._old_params = (mean + shift * std, widening * std)
    algorithm.desired_kl, algorithm.learning_rate = 0.01, 1e-3
    algorithm.reduce_parameters()
    # KL(old || new) of Gaussians, each in deviations of the new one.
    divergence = -math.log(widening) + (widening**2 + shift**2) / 2 - 1 / 2
    assert float(algorithm._kl_carrier.grad) == pytest.approx(divergence, abs=1e-6)
    assert algorithm.learning_rate == pytest.approx(1e-3 * factor)
    assert algorithm.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * factor)
