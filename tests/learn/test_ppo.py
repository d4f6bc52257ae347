"""Shoal's PPO against rsl_rl's own, and its learning rate against divergences worked by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from rsl_rl import algorithms
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.modules import distribution as library
from rsl_rl.storage import RolloutStorage
from support import tiny_env
from tensordict import TensorDict

from shoal.learn.normalisers import update_normalisers
from shoal.learn.returns import discounted_sums
from shoal.learn.rsl_rl import gaussian
from shoal.learn.rsl_rl.ppo import PPO

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_ENVS, NUM_STEPS, NUM_ACTIONS = 20, 6, 2
GROUPS = {"actor": ["policy"], "critic": ["policy", "privileged"], "rnd_state": ["policy"]}
MIRRORED = {"env": None, "data_augmentation_func": tiny_env.mirror, "mirror_loss_coeff": 0.5}


@pytest.fixture
def in_double_precision() -> Iterator[None]:
    """Rounding is far below what two algorithms differ by, after 50 iterations, too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def observations(generator: torch.Generator) -> TensorDict:
    """What the networks see."""
    widths = {"policy": 5, "privileged": 3}
    groups = {name: torch.randn(NUM_ENVS, width, generator=generator) for name, width in widths.items()}
    return TensorDict(groups, batch_size=[NUM_ENVS])


def algorithm(
    kind: type, *, recurrent: bool = False, distribution: str = "GaussianDistribution", **options: Any
) -> Any:
    """An algorithm with the same first weights as any other."""
    torch.manual_seed(0)
    seen = observations(torch.Generator())
    make: Any = RNNModel if recurrent else MLPModel
    memory = {"rnn_type": "gru", "rnn_hidden_dim": 8, "rnn_num_layers": 1} if recurrent else {}
    drawn = {"class_name": getattr(gaussian if kind is PPO else library, distribution)}
    shared = {"hidden_dims": [16, 8], "obs_normalization": True, **memory}
    actor = make(seen, GROUPS, "actor", NUM_ACTIONS, distribution_cfg=drawn, **shared)
    critic = make(seen, GROUPS, "critic", 1, **shared)
    storage = RolloutStorage("rl", NUM_ENVS, NUM_STEPS, seen, (NUM_ACTIONS,))
    if rnd := options.get("rnd_cfg"):
        layers = {"predictor_hidden_dims": [8], "target_hidden_dims": [8]}
        options["rnd_cfg"] = {"num_states": 5, "obs_groups": GROUPS, "num_outputs": 2, **layers, **rnd}
    # The library's returns are sums of 32-bit discounts, which these are without rounding.
    made = kind(actor, critic, storage, num_learning_epochs=2, gamma=127 / 128, lam=15 / 16, **options)
    made.train_mode()
    return made


def learn(made: Any, iteration: int) -> dict[str, float]:
    """Collect a rollout whose rewards are higher for actions near the first observations, and learn from it."""
    generator = torch.Generator().manual_seed(iteration)
    with torch.inference_mode():
        torch.manual_seed(2 * iteration)
        for _ in range(NUM_STEPS):
            seen = observations(generator)
            actions = made.act(seen)
            rewards = -(actions - seen["policy"][:, :NUM_ACTIONS]).square().sum(dim=-1)
            chances = torch.rand(2, NUM_ENVS, generator=generator)
            dones, time_outs = chances[0] < 0.1, (chances < 0.05).all(dim=0) | (chances[0] < 0.05)
            made.process_env_step(observations(generator), rewards, dones, {"time_outs": time_outs})
        made.compute_returns(observations(generator))
    torch.manual_seed(2 * iteration + 1)
    return made.update()


LIKE_RSL_RL: dict[str, dict[str, Any]] = {
    "defaults": {},
    "other numbers": {"desired_kl": 0.002, "entropy_coef": 0.1, "num_mini_batches": 5},
    "fixed rate": {"schedule": "fixed", "use_clipped_value_loss": False},
    "advantages of each mini-batch": {"normalize_advantage_per_mini_batch": True, "optimizer": "adamw"},
    "sgd": {"optimizer": "sgd", "max_grad_norm": 0.1},
    "rmsprop": {"optimizer": "rmsprop"},
    "rnd": {
        "rnd_cfg": {"weight": 1.0, "state_normalization": True, "reward_normalization": True},
        "max_grad_norm": 0.02,
    },
    "mirrored samples": {"symmetry_cfg": {**MIRRORED, "use_data_augmentation": True, "use_mirror_loss": True}},
    "mirror loss": {"symmetry_cfg": {**MIRRORED, "use_data_augmentation": False, "use_mirror_loss": True}},
    "mirror loss that is only logged": {"symmetry_cfg": MIRRORED},
    # Adaptive, the sign of a divergence of some 1e-17 decides about the first rate of an update.
    "heteroscedastic": {"distribution": "HeteroscedasticGaussianDistribution", "schedule": "fixed"},
    "recurrent": {"recurrent": True},
}


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize("name", LIKE_RSL_RL)
def test_50_iterations_end_with_the_weights_and_losses_of_rsl_rls_own(name: str) -> None:
    theirs, ours = (algorithm(kind, **LIKE_RSL_RL[name]) for kind in (algorithms.PPO, PPO))
    begins = {name: each.clone() for name, each in theirs.actor.state_dict().items()}
    for iteration in range(50):
        expected, found = learn(theirs, iteration), learn(ours, iteration)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert ours.learning_rate == pytest.approx(theirs.learning_rate, rel=1e-9)
    for network in ("actor", "critic", "rnd"):
        if getattr(theirs, network):
            others = getattr(theirs, network).state_dict()
            for key, each in getattr(ours, network).state_dict().items():
                torch.testing.assert_close(
                    each, others[key], rtol=0, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}"
                )
    assert max(float((each - theirs.actor.state_dict()[name]).abs().max()) for name, each in begins.items()) > 0.01


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "rmsprop"])
def test_a_state_goes_from_rsl_rl_here_and_back(optimizer: str) -> None:
    straight, first, here, back = (
        algorithm(kind, optimizer=optimizer, rnd_cfg={"weight": 1.0})
        for kind in (algorithms.PPO, algorithms.PPO, PPO, algorithms.PPO)
    )
    for iteration in range(6):
        learn(straight, iteration)
    learners = [first, here, back]
    for at, made in enumerate(learners):
        if at:
            made.load(learners[at - 1].save(), None, strict=True)
            made.rnd.update_counter = learners[at - 1].rnd.update_counter
        for iteration in (2 * at, 2 * at + 1):
            learn(made, iteration)
    assert back.learning_rate == pytest.approx(straight.learning_rate)
    assert (
        back.save()["optimizer_state_dict"]["param_groups"] == straight.save()["optimizer_state_dict"]["param_groups"]
    )
    for name, each in back.actor.state_dict().items():
        torch.testing.assert_close(each, straight.actor.state_dict()[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("divergence", "factor"),
    [
        (0.0201, 1 / 1.5),  # Beyond twice the desired divergence.
        (0.0199, 1.0),
        (0.0051, 1.0),
        (0.0049, 1.5),  # Below half of it.
        (0.0, 1.0),  # None is no reason to learn faster.
        (math.nan, 1.0),
    ],
)
def test_the_rate_follows_the_divergence(divergence: float, factor: float) -> None:
    made = algorithm(PPO, desired_kl=0.01)
    made._divergence.fill_(divergence)
    made._descend()
    assert float(made._rate) == pytest.approx(1e-3 * factor)
    assert made.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * factor)


@pytest.mark.parametrize(("divergence", "limit"), [(1.0, 1e-5), (1e-6, 1e-2)])
def test_the_rate_stays_in_rsl_rls_range(divergence: float, limit: float) -> None:
    made = algorithm(PPO, desired_kl=0.01)
    for _ in range(20):
        made._divergence.fill_(divergence)
        made._descend()
    assert float(made._rate) == pytest.approx(limit)


def test_the_divergence_is_that_of_the_rollout_from_the_present_policy() -> None:
    made = algorithm(PPO)
    with torch.inference_mode():
        for _ in range(NUM_STEPS):
            made.act(observations(torch.Generator().manual_seed(0)))
            made.storage.step += 1
    mean, std = made.storage.distribution_params
    shift, widening = 0.5, 2.0
    mean += shift * std
    std *= widening
    made._rows.copy_(torch.arange(len(made._rows)))
    made._compute_gradients()
    # KL(old || new) of Gaussians, each in deviations of the new one.
    expected = NUM_ACTIONS * (-math.log(widening) + (widening**2 + shift**2) / 2 - 1 / 2)
    assert float(made._divergence) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 8, 24, 64])
def test_discounted_sums_are_those_of_the_recursion(num_steps: int) -> None:
    values, factors = torch.rand(2, num_steps, 5, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factors[:, 0] = 0.0
    factors[:, 1] = 1.0
    expected = torch.zeros_like(values)
    after = torch.zeros_like(values[0])
    for step in reversed(range(num_steps)):
        expected[step] = after = values[step] + factors[step] * after
    torch.testing.assert_close(discounted_sums(values, factors), expected)


def test_a_column_that_never_changes_has_no_deviation_though_ranks_round_its_mean_differently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean of both is between two numbers of 32 bits, and the variance about it may be rounded below zero."""
    constants = torch.rand(500, generator=torch.Generator().manual_seed(1))
    mine, theirs = (each.expand(64, -1) for each in (constants, torch.nextafter(constants, torch.tensor(2.0))))
    mean = theirs[0].double()
    sums = 64 * torch.cat([mean, mean.square(), torch.ones(1)])
    group = SimpleNamespace(is_initialized=lambda: True, all_reduce=lambda total: total.add_(sums))
    monkeypatch.setattr("shoal.learn.normalisers.dist", group)
    normaliser = EmpiricalNormalization(500)
    for _ in range(3):
        update_normalisers([(normaliser, mine)])
        assert normaliser.get_buffer("_std").isfinite().all()
        assert normaliser.get_buffer("_var").abs().max() < 1e-6
    assert normaliser(mine).abs().max() < 1e-3


def test_normalisers_learn_what_the_library_lets_them_learn() -> None:
    theirs, ours, full = (EmpiricalNormalization(3, until=300) for _ in range(3))
    full.eval()
    std = ours.get_buffer("_std")
    for seed in range(5):
        rows = 3.0 + 2.0 * torch.randn(100, 3, generator=torch.Generator().manual_seed(seed))
        theirs.update(rows)
        update_normalisers([(ours, rows), (full, rows)])
        for name, each in ours.state_dict().items():
            torch.testing.assert_close(each, theirs.state_dict()[name])
    assert int(ours.get_buffer("count")) == 300
    assert int(full.get_buffer("count")) == 0
    assert ours.get_buffer("_std") is std  # A graph reads it where it is.
    update_normalisers([])
