"""Every learner that can be configured is one that rsl_rl builds and trains."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.modules import BetaDistribution
from rsl_rl.runners import OnPolicyRunner
from support.tiny_env import TinyEnv

from shoal.config import (
    DistributionConfig,
    ModelConfig,
    PpoConfig,
    RndConfig,
    RndWeightScheduleConfig,
    RslRlConfig,
    SymmetryConfig,
)
from shoal.config.rsl_rl import to_rsl_rl
from shoal.learn.rsl_rl.gaussian import GaussianDistribution, HeteroscedasticGaussianDistribution

GAUSSIAN = DistributionConfig(class_name="GaussianDistribution")
SMALL = {"hidden_dims": (8,), "distribution": GAUSSIAN}


def agent(actor: ModelConfig, critic: ModelConfig | None = None, **changes: Any) -> RslRlConfig:
    """A learner with a short rollout."""
    return RslRlConfig(num_steps_per_env=4, actor=actor, critic=critic or ModelConfig(hidden_dims=(8,)), **changes)


def recurrent(kind: Any) -> RslRlConfig:
    """A learner whose networks remember."""
    options = {"class_name": "RNNModel", "rnn_type": kind, "rnn_hidden_dim": 6, "rnn_num_layers": 2}
    return agent(ModelConfig(**SMALL, **options), ModelConfig(hidden_dims=(8,), **options))


def drawing(**distribution: Any) -> RslRlConfig:
    """A learner whose actions come from the given distribution."""
    return agent(ModelConfig(hidden_dims=(8,), distribution=DistributionConfig(**distribution)))


def curious(**schedule: Any) -> RslRlConfig:
    """A learner with a reward for what is new."""
    rnd = RndConfig(
        enabled=True,
        num_outputs=3,
        predictor_hidden_dims=(8, -1),
        state_normalization=True,
        reward_normalization=True,
        weight=0.5,
        weight_schedule=RndWeightScheduleConfig(**schedule),
    )
    groups = {"actor": ("policy",), "critic": ("policy", "privileged"), "rnd_state": ("privileged",)}
    return agent(ModelConfig(**SMALL), obs_groups=groups, algorithm=PpoConfig(rnd=rnd))


def mirrored(**use: Any) -> RslRlConfig:
    """A learner that knows that left is like right."""
    symmetry = SymmetryConfig(enabled=True, data_augmentation_func="support.tiny_env:mirror", **use)
    return agent(ModelConfig(**SMALL), algorithm=PpoConfig(symmetry=symmetry))


STD = {"init_std": 0.5, "std_range": (0.1, 2.0), "std_type": "log"}
LEARNERS = {
    "defaults": RslRlConfig(num_steps_per_env=4),
    "mlp": agent(ModelConfig(**SMALL, activation="tanh", obs_normalization=True)),
    "gru": recurrent("gru"),
    "lstm": recurrent("lstm"),
    "gaussian": drawing(class_name="GaussianDistribution", learn_std=False, **STD),
    "heteroscedastic": drawing(class_name="HeteroscedasticGaussianDistribution", **STD),
    "beta": drawing(class_name="BetaDistribution", action_range=(-2.0, 2.0)),
    "rnd": curious(),
    "rnd, constant weight": curious(mode="constant"),
    "rnd, stepped weight": curious(mode="step", final_step=2, final_value=0.0),
    "rnd, linear weight": curious(mode="linear", initial_step=1, final_step=3, final_value=0.0),
    "symmetry, logged": mirrored(),
    "symmetry, learned": mirrored(use_data_augmentation=True, use_mirror_loss=True, mirror_loss_coeff=0.5),
    "own classes": agent(
        ModelConfig(class_name="rsl_rl.models:RNNModel", rnn_type="gru", **SMALL),
        algorithm=PpoConfig(class_name="rsl_rl.algorithms:PPO"),
    ),
}
"""Everything that can be switched, one learner for each switch."""


def build(config: RslRlConfig) -> OnPolicyRunner:
    """Build plain rsl_rl's own runner from a configuration."""
    torch.manual_seed(0)
    return OnPolicyRunner(TinyEnv(), to_rsl_rl(config), log_dir=None)


@pytest.mark.parametrize("name", LEARNERS)
def test_rsl_rl_builds_and_trains_it(name: str) -> None:
    runner = build(LEARNERS[name])
    before = copy.deepcopy(runner.alg.get_policy().state_dict())
    runner.learn(1)
    after = runner.alg.get_policy().state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert all(torch.isfinite(value).all() for value in after.values())


def test_the_network_is_the_one_that_was_asked_for() -> None:
    policy: Any = build(LEARNERS["gru"]).alg.get_policy()
    assert isinstance(policy, RNNModel)
    assert isinstance(policy.rnn.rnn, torch.nn.GRU)
    assert (policy.rnn.rnn.hidden_size, policy.rnn.rnn.num_layers) == (6, 2)
    plain = build(LEARNERS["mlp"]).alg.get_policy()
    assert type(plain) is MLPModel
    assert isinstance(plain.mlp[1], torch.nn.Tanh)


def test_the_distribution_is_the_one_that_was_asked_for() -> None:
    gaussian: Any = build(LEARNERS["gaussian"]).alg.actor.distribution
    assert type(gaussian) is GaussianDistribution
    assert (gaussian.std_range, gaussian.log_std_param.requires_grad) == ([0.1, 2.0], False)
    assert gaussian.log_std_param.exp().tolist() == pytest.approx([0.5, 0.5])
    other: Any = build(LEARNERS["heteroscedastic"]).alg.actor.distribution
    assert type(other) is HeteroscedasticGaussianDistribution
    beta: Any = build(LEARNERS["beta"]).alg.actor.distribution
    assert type(beta) is BetaDistribution
    assert list(beta.action_range) == [-2.0, 2.0]
    assert build(LEARNERS["beta"]).alg.critic.distribution is None


def test_rnd_scales_its_weight_by_the_length_of_a_step_but_not_the_final_value() -> None:
    # The docstrings of `RndConfig` say so; rsl_rl does it in `resolve_rnd_config`.
    rnd: Any = build(LEARNERS["rnd, linear weight"]).alg.rnd
    assert rnd.initial_weight == pytest.approx(0.5 * 0.02)
    assert rnd.weight_scheduler_params["final_value"] == 0.0
    schedule: dict[str, Any] = {"initial_step": 0, "final_step": 10, "final_value": 3.0}
    assert rnd._linear_weight_schedule(step=10, **schedule) == pytest.approx(3.0)


@pytest.mark.parametrize("name", ["defaults", "rnd, linear weight", "symmetry, logged"])
def test_dicts_are_fresh_so_that_the_runner_may_edit_them(name: str) -> None:
    config = LEARNERS[name]
    untouched = copy.deepcopy(to_rsl_rl(config))
    build(config)
    spoil(to_rsl_rl(config))
    assert to_rsl_rl(config) == untouched


def spoil(made: dict[str, Any]) -> None:
    """Empty every dict and list inside a dict."""
    for value in list(made.values()):
        if isinstance(value, dict):
            spoil(value)
        elif isinstance(value, list):
            value.clear()
    made.clear()


def test_what_is_off_is_none_for_an_algorithm_and_absent_for_a_model() -> None:
    made = to_rsl_rl(RslRlConfig())
    assert made["algorithm"]["rnd_cfg"] is None
    assert made["algorithm"]["symmetry_cfg"] is None
    assert set(made["critic"]) == {"class_name", "hidden_dims", "activation", "obs_normalization"}
    assert made["actor"]["distribution_cfg"] == {"class_name": "shoal.learn.rsl_rl.gaussian:GaussianDistribution"}
    assert "torch_compile_mode" not in made


def test_a_class_of_ones_own_is_given_everything_that_is_not_none() -> None:
    model = ModelConfig(class_name="my_package:Model", rnn_hidden_dim=7, distribution=GAUSSIAN)
    made = to_rsl_rl(RslRlConfig(actor=model))["actor"]
    assert made["rnn_hidden_dim"] == 7
    assert "rnn_type" not in made
