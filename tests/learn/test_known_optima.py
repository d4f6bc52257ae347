"""Every learner finds policies that are known from a closed form, in seconds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.learners import ALONE, train
from support.optima import KnownOptimum, Regulator, Remember, StayOrLeave
from tensordict import TensorDict

from shoal.config import (
    AgentConfig,
    DistributionConfig,
    FastSacConfig,
    GrpoConfig,
    ModelConfig,
    PpoConfig,
    RlGamesConfig,
    RslRlConfig,
    SkrlConfig,
    SkrlJaxConfig,
    TrainConfig,
)
from shoal.config.learners import resolve_learner
from shoal.config.skrl import SkrlPpoConfig, SkrlSacConfig, SkrlTd3Config
from shoal.learn.learners import build_learner
from shoal.learn.loop import TrainingLoop

OWN = str(Path(__file__).parents[2] / "docs" / "examples" / "actor_critic.py:ActorCritic")
"""A user's own learner."""
ACTOR = ModelConfig(
    hidden_dims=(32,),
    obs_normalization=True,
    distribution=DistributionConfig(class_name="GaussianDistribution", learn_std=False),
)
CRITIC = ModelConfig(hidden_dims=(32,), obs_normalization=True)


def agents(gamma: float) -> dict[str, AgentConfig]:
    """Return a small configuration of every learner, with this discount."""
    own: Any = resolve_learner(OWN).load_builder()
    on_policy: dict[str, Any] = {"num_steps_per_env": 16, "hidden_dims": (32,)}
    ppo = SkrlPpoConfig(discount_factor=gamma, learning_rate=3e-3, adaptive_kl=None)
    off_policy: dict[str, Any] = {"num_steps_per_env": 8, "hidden_dims": (32,)}
    off: dict[str, Any] = {"batch_size": 256, "memory_size": 256, "discount_factor": gamma, "polyak": 0.05}
    off |= {"learning_rate": 3e-3, "gradient_steps": 4}
    return {
        "rsl_rl": RslRlConfig(
            num_steps_per_env=16,
            actor=ACTOR,
            critic=CRITIC,
            obs_groups={"actor": ("policy",), "critic": ("policy",)},
            algorithm=PpoConfig(gamma=gamma, learning_rate=2e-3, schedule="fixed"),
        ),
        "grpo": GrpoConfig(
            num_steps_per_env=8, actor=ACTOR, group_size=8, gamma=gamma, learning_rate=3e-3, kl_coef=0.0
        ),
        "fast_sac": FastSacConfig(
            num_steps_per_env=8,
            batch_size=256,
            replay_steps=256,
            gamma=gamma,
            learning_rate=1e-3,
            actor_hidden_dims=(32,),
            critic_hidden_dims=(32,),
            target_entropy=-1.0,
            initial_temperature=0.05,
        ),
        "skrl": SkrlConfig(**on_policy, initial_log_std=-0.7, ppo=ppo),
        "skrl SAC": SkrlConfig(**off_policy, class_name="SAC", sac=SkrlSacConfig(**off)),
        "skrl TD3": SkrlConfig(**off_policy, class_name="TD3", td3=SkrlTd3Config(**off)),
        "skrl_jax": SkrlJaxConfig(**on_policy, initial_log_std=-0.7, ppo=ppo),
        "rl_games": RlGamesConfig(**on_policy, gamma=gamma, learning_rate=3e-3, lr_schedule=None, num_mini_batches=2),
        OWN: replace(own.config, num_steps_per_env=16, gamma=gamma),
    }


ITERATIONS = {"fast_sac": 80, OWN: 200}
"""The others need 40. The example takes one step of its optimizer in each."""


def learned(agent: str, settings: AgentConfig, env: KnownOptimum, iterations: int = 0) -> TrainingLoop:
    """Train on these environments; return the training."""
    learner = agent if agent == OWN else agent.partition(" ")[0]
    config = TrainConfig(
        task="known",
        learner=learner,
        num_envs=env.num_envs,
        max_iterations=iterations or ITERATIONS.get(agent, 40),
        agent=settings,
    )
    torch.manual_seed(0)
    loop = TrainingLoop(env, build_learner(env, config, ALONE), config, ALONE)
    train(loop)
    return loop


def actions_at(loop: TrainingLoop, env: KnownOptimum, states: list[list[float]]) -> list[float]:
    """What the policy does in these states, without noise."""
    observations = env.observe(torch.tensor(states))
    with torch.inference_mode():
        return loop.learner.policy()(TensorDict({"policy": observations}, batch_size=[len(states)]))[:, 0].tolist()


EACH = [pytest.param(agent, marks=[pytest.mark.soak] * (agent == "skrl_jax")) for agent in agents(0.5)]
"""All learners; JAX compiles for ten seconds."""


def all_but(*left_out: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("agent", [each for each in EACH if each.values[0] not in left_out])


@cache
def regulated(agent: str) -> TrainingLoop:
    """Train a regulator with a discount of 0.5."""
    return learned(agent, agents(0.5)[agent], Regulator())


@all_but(OWN)
def test_a_learner_finds_the_gain_of_the_riccati_equation(agent: str) -> None:
    """The example of an own learner normalises no observations."""
    left, middle, right = actions_at(regulated(agent), Regulator(), [[-0.4], [0.0], [0.4]])
    assert Regulator.gain(0.5) == pytest.approx(0.56, abs=0.01)
    assert Regulator.gain(0.99) == pytest.approx(0.99, abs=0.01)  # As it were without the discount.
    assert (left - right) / 0.8 == pytest.approx(Regulator.gain(0.5), abs=0.2)
    assert abs(middle) < 0.15


@all_but("grpo")
def test_the_future_after_a_time_out_counts_and_none_does_after_an_end(agent: str) -> None:
    """GRPO has no critic, and learns from the first episode of an iteration alone."""
    env = StayOrLeave()
    (action,) = actions_at(learned(agent, agents(StayOrLeave.GAMMA)[agent], env), env, [[0.0]])
    assert action < -0.1


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_recurrent_policy_remembers_what_it_saw_at_first(kind: str) -> None:
    settings = agents(0.99)["rsl_rl"]
    assert isinstance(settings, RslRlConfig)
    actor, critic = (
        replace(each, class_name="RNNModel", rnn_type=kind, rnn_hidden_dim=16, obs_normalization=False)
        for each in (settings.actor, settings.critic)
    )
    env = Remember()
    loop = learned("rsl_rl", replace(settings, actor=actor, critic=critic), env)
    policy = loop.learner.policy()
    cues, actions = torch.tensor([-1.0, 1.0]), torch.empty(2, 1)
    with torch.inference_mode():
        policy.reset()
        for step in range(3):
            observations = env.observe(torch.stack([cues, torch.full_like(cues, step)], dim=1))
            actions = policy(TensorDict({"policy": observations}, batch_size=[2]))
    assert actions[:, 0].tolist() == pytest.approx([-0.5, 0.5], abs=0.2)


def test_a_penalty_on_the_divergence_keeps_grpo_near_its_reference() -> None:
    settings: Any = replace(agents(0.5)["grpo"], reference="start", kl_coef=100.0)
    states, env = [[-0.4], [0.0], [0.4]], Regulator()
    loop: Any = learned("grpo", settings, env)
    with torch.inference_mode():
        observations = TensorDict({"policy": env.observe(torch.tensor(states))}, batch_size=[3])
        reference = loop.learner.reference(observations)[:, 0].tolist()
    assert actions_at(loop, env, states) == pytest.approx(reference, abs=0.2)


class Nothing(KnownOptimum):
    """Whatever one does earns nothing."""

    def advance(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pay nothing."""
        return torch.zeros_like(action), torch.ones_like(action, dtype=torch.bool)


@pytest.mark.parametrize(
    "agent", [each for each in EACH if each.values[0] in {"rsl_rl", "grpo", "skrl", "skrl_jax", "rl_games"}]
)
def test_where_nothing_is_earned_rewarded_entropy_spreads_the_actions(agent: str) -> None:
    settings: Any = agents(0.5)[agent]
    free = replace(ACTOR, distribution=replace(ACTOR.distribution, learn_std=True))
    changes: dict[str, dict[str, Any]] = {
        "rsl_rl": {"actor": free, "algorithm": replace(settings.algorithm, entropy_coef=1.0)}
        if agent == "rsl_rl"
        else {},
        "grpo": {"actor": free, "entropy_coef": 1.0},
        "rl_games": {"entropy_coef": 1.0},
    }
    if agent not in changes:
        changes[agent] = {"ppo": replace(settings.ppo, entropy_loss_scale=1.0)}
    settings = replace(settings, **changes[agent])
    loop = learned(agent, settings, Nothing(), iterations=10)
    first = 0.5 if agent.startswith("skrl") else 1.0
    assert loop.learner.metrics()["Policy/mean_std"] > 1.1 * first


def test_the_temperature_of_fast_sac_keeps_its_target_entropy() -> None:
    learner: Any = regulated("fast_sac").learner
    with torch.inference_mode():
        _, log_probs = learner.actor.sample(50 + 10 * (2 * torch.rand(1000, 1) - 1))
    assert -float(log_probs.mean()) == pytest.approx(-1.0, abs=0.5)  # With the wrong sign it is 0.69.
