"""Networks of older layouts act in Shoal as they did before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.learners import tiny_agent, tiny_config, tiny_loop
from support.old_networks import MEMORY, OBSERVATIONS, PRIVILEGED, OldActorCritic, OldNormaliser
from tensordict import TensorDict

from shoal.config import DistributionConfig, ModelConfig
from shoal.errors import UsageError
from shoal.learn.foreign_checkpoints import RenamedCheckpoint, rename_to_current_layout

if TYPE_CHECKING:
    from support.learners import RslRlLoop

FILE = Path("model_1499.pt")
STEPS, ENVS = 3, 7
SAME: Any = {"rtol": 0.0, "atol": 1e-6}
"""The same numbers, but for the order in which a matrix product adds them up."""
LEFT_OUT = "optimizer_state_dict was left out: it belongs to the order of parameters in the older layout."


def loop_with(*, std_type: Any = "scalar", normalised: bool = False, recurrent: bool = False) -> RslRlLoop:
    """A learner of Shoal's with networks of the same sizes, and with weights of its own."""
    rnn: dict[str, Any] = {"class_name": "RNNModel", "rnn_hidden_dim": MEMORY} if recurrent else {}
    common = {"hidden_dims": (8,), "obs_normalization": normalised, **rnn}
    distribution = (
        DistributionConfig(class_name="HeteroscedasticGaussianDistribution")
        if std_type is None
        else DistributionConfig(class_name="GaussianDistribution", std_type=std_type)
    )
    agent = tiny_agent(actor=ModelConfig(**common, distribution=distribution), critic=ModelConfig(**common))
    return tiny_loop(tiny_config(agent=agent), seed=9)


def acts_as(loop: RslRlLoop, old: OldActorCritic, normalisers: dict[str, OldNormaliser] | None = None) -> bool:
    """Whether a learner's means and values are those of the older networks, over a few steps."""
    seen = {"policy": torch.randn(STEPS, ENVS, OBSERVATIONS), "privileged": torch.randn(STEPS, ENVS, PRIVILEGED)}
    steps = [TensorDict({name: each[step] for name, each in seen.items()}, batch_size=[ENVS]) for step in range(STEPS)]
    with torch.inference_mode():
        means = torch.stack([loop.learner.alg.actor(step) for step in steps])
        values = torch.stack([loop.learner.alg.critic(step) for step in steps])
        given = {name: normalisers[name](each) for name, each in seen.items()} if normalisers else seen
        torch.testing.assert_close(means, old.means(given["policy"]), **SAME)
        torch.testing.assert_close(values, old.values(given["privileged"]), **SAME)
    return True


def take_up(loop: RslRlLoop, saved: dict[str, Any]) -> RenamedCheckpoint:
    """Give a learner what an older layout holds."""
    renamed = rename_to_current_layout(saved, FILE)
    loop.restore(renamed.state, weights_only=True)
    return renamed


@pytest.mark.parametrize(("deviation", "normalised"), [("std", False), ("log_std", True)])
def test_networks_of_one_state_dict_act_as_before(deviation: str, *, normalised: bool) -> None:
    old = OldActorCritic(deviation=deviation, normalised=normalised)
    loop = loop_with(std_type={"std": "scalar", "log_std": "log"}[deviation], normalised=normalised)
    renamed = take_up(loop, old.saved())
    assert acts_as(loop, old)
    parameter = getattr(old, deviation)
    loop.learner.alg.actor(loop.env.get_observations(), stochastic_output=True)
    std = loop.learner.alg.actor.output_std[0]
    torch.testing.assert_close(std, parameter if deviation == "std" else parameter.exp(), **SAME)
    assert (renamed.layout, renamed.notes) == ("the layout of rsl_rl 1 to 3", (LEFT_OUT,))
    assert (renamed.state["iter"], renamed.state["infos"]) == (1499, None)


@pytest.mark.parametrize("name", ["privileged_obs_norm_state_dict", "critic_obs_norm_state_dict"])
def test_normalisers_beside_the_networks_come_along(name: str) -> None:
    old = OldActorCritic()
    normalisers = {"policy": OldNormaliser(OBSERVATIONS), "privileged": OldNormaliser(PRIVILEGED)}
    beside = {"obs_norm_state_dict": normalisers["policy"].state_dict(), name: normalisers["privileged"].state_dict()}
    loop = loop_with(normalised=True)
    assert take_up(loop, old.saved(**beside)).notes == (LEFT_OUT,)
    assert acts_as(loop, old, normalisers)
    for network in (loop.learner.alg.actor, loop.learner.alg.critic):
        assert network.state_dict()["obs_normalizer.count"] == 4321


def test_a_normaliser_without_a_count_gets_one() -> None:
    old = OldActorCritic()
    normalisers = {
        "policy": OldNormaliser(OBSERVATIONS, with_count=False),
        "privileged": OldNormaliser(PRIVILEGED, with_count=False),
    }
    beside = {
        "obs_norm_state_dict": normalisers["policy"].state_dict(),
        "critic_obs_norm_state_dict": normalisers["privileged"].state_dict(),
    }
    loop = loop_with(normalised=True)
    renamed = take_up(loop, old.saved(**beside))
    assert acts_as(loop, old, normalisers)
    assert renamed.notes[1:] == tuple(
        f"The {name}'s normaliser does not say how many observations it has seen: 1,000,000 are assumed."
        for name in ("actor", "critic")
    )
    # What it has learned is not thrown away by the first observations of a training.
    normaliser: Any = loop.learner.alg.actor.obs_normalizer.train()
    before = normaliser.mean
    normaliser.update(torch.full((100, OBSERVATIONS), 1000.0))
    assert (normaliser.mean - before).abs().max() < 0.2


def test_recurrent_networks_remember_as_before() -> None:
    old = OldActorCritic(normalised=True, recurrent=True)
    loop = loop_with(normalised=True, recurrent=True)
    take_up(loop, old.saved())
    assert acts_as(loop, old)


def test_a_deviation_that_the_actor_gives_stays_with_it() -> None:
    old = OldActorCritic(deviation="actor")
    loop = loop_with(std_type=None)
    take_up(loop, old.saved())
    assert acts_as(loop, old)


@pytest.mark.parametrize(("std_type", "name"), [("scalar", "std"), ("log", "log_std")])
def test_the_actors_own_deviation_is_renamed(std_type: str, name: str) -> None:
    before = loop_with(std_type=std_type, normalised=True)
    saved = before.state()
    actor = dict(saved["actor_state_dict"])
    actor[name] = actor.pop(f"distribution.{name}_param") * 2
    loop = loop_with(std_type=std_type, normalised=True)
    renamed = take_up(loop, saved | {"actor_state_dict": actor})
    assert (renamed.layout, renamed.notes) == ("the layout of rsl_rl 4", (LEFT_OUT,))
    taken = loop.learner.alg.actor.state_dict()
    assert torch.equal(taken[f"distribution.{name}_param"], actor[name])
    assert torch.equal(taken["mlp.0.weight"], actor["mlp.0.weight"])


def test_the_current_layout_stays_as_it_is() -> None:
    saved = loop_with(normalised=True).state()
    renamed = rename_to_current_layout({**saved, "env_state": 3}, FILE)
    assert renamed.state.keys() == saved.keys()
    assert all(renamed.state[key] == saved[key] for key in ("optimizer_state_dict", "iter", "infos"))
    assert renamed.layout == "the layout of rsl_rl 5"
    assert renamed.notes == ("'env_state' was left out: the layout of rsl_rl 5 has no place for it.",)


@pytest.mark.parametrize(
    ("saved", "holds"),
    [
        ([1, 2], "a list"),
        ({}, "the keys (none)"),
        ({"policy": 1, "a\nb": 2}, r"the keys 'policy', 'a\nb'"),
        (
            {f"layer{index}": 0 for index in range(10)},
            "the keys " + ", ".join(f"'layer{i}'" for i in range(8)) + " and 2 more",
        ),
        ({"actor_state_dict": {}}, "the keys 'actor_state_dict'"),
        ({"actor_state_dict": 1, "critic_state_dict": 2}, "the keys 'actor_state_dict', 'critic_state_dict'"),
        (
            {"model_state_dict": {"student.0.weight": 0, "teacher.0.weight": 0, "std": 0}},
            "a model_state_dict with the keys 'student.0.weight', 'teacher.0.weight'",
        ),
        ({"model_state_dict": {"actor.0.weight": 0}}, "a model_state_dict with the keys 'actor.0.weight'"),
        (
            {"model_state_dict": {"actor.0.weight": 0, "critic.0.weight": 0, "encoder.0.weight": 0}},
            "a model_state_dict with the keys 'encoder.0.weight'",
        ),
    ],
)
def test_what_is_in_no_layout_is_refused_with_what_it_is(saved: Any, holds: str) -> None:
    with pytest.raises(UsageError) as refusal:
        rename_to_current_layout(saved, FILE)
    assert str(refusal.value) == (
        f"The file model_1499.pt is no checkpoint that can be converted: it holds {holds}. Pass one that has "
        "actor_state_dict and critic_state_dict, or a model_state_dict with an actor and a critic."
    )
