"""Every learner finds policies that are known from a closed form, in seconds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.optima import KnownOptimum, Leave, Regulator, Remember, StayOrLeave
from support.optimum_agents import ACTOR, OWN, actions_at, agents, learned
from tensordict import TensorDict

from shoal.config import DistillationConfig, ModelConfig, RslRlConfig
from shoal.config.rsl_rl import DistillationAlgorithmConfig

if TYPE_CHECKING:
    from shoal.learn.loop import TrainingLoop

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


def test_a_student_learns_the_gain_of_its_teacher() -> None:
    gain = Regulator.gain(0.5)

    def teach(loop: TrainingLoop) -> None:
        learner: Any = loop.learner
        first, last = (each for each in learner.modules["teacher"].modules() if isinstance(each, torch.nn.Linear))
        # The observation 50 + 10 x is positive, where ELU changes nothing.
        for part, value in ((first.weight, 1.0), (first.bias, 0.0), (last.weight, -gain / 10), (last.bias, 5 * gain)):
            torch.nn.init.constant_(part, value)

    settings = DistillationConfig(
        num_steps_per_env=16,
        student=ACTOR,
        teacher=ModelConfig(hidden_dims=(1,)),
        algorithm=DistillationAlgorithmConfig(gradient_length=4, learning_rate=3e-3),
    )
    loop = learned("distillation", settings, Regulator(), prepare=teach)
    actions = actions_at(loop, Regulator(), [[-0.4], [0.0], [0.4]])
    assert actions == pytest.approx([0.4 * gain, 0.0, -0.4 * gain], abs=0.05)


def test_a_recurrent_teacher_remembers_its_episodes_over_an_update() -> None:
    settings = DistillationConfig(
        num_steps_per_env=16,
        student=ACTOR,
        teacher=replace(ACTOR, class_name="RNNModel", rnn_hidden_dim=4),
        algorithm=DistillationAlgorithmConfig(gradient_length=4),
    )
    loop: Any = learned("distillation", settings, Regulator(), iterations=1)
    memory = loop.learner.alg.teacher.get_hidden_state()
    assert (memory[0] if isinstance(memory, tuple) else memory).abs().max() > 0


@all_but("grpo")
def test_the_future_after_a_time_out_counts_and_none_does_after_an_end(agent: str) -> None:
    """GRPO has no critic, and learns from the first episode of an iteration alone."""
    env = StayOrLeave()
    (action,) = actions_at(learned(agent, agents(StayOrLeave.GAMMA)[agent], env), env, [[0.0]])
    assert action < -0.1


@pytest.mark.parametrize("agent", ["rsl_rl", OWN])
def test_the_next_episode_is_no_reason_to_put_off_the_end_of_this_one(agent: str) -> None:
    env = Leave()
    (action,) = actions_at(learned(agent, agents(Leave.GAMMA)[agent], env), env, [[1.0]])
    assert action > 0.1


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
