"""What every learner does for the training loop, on a small cart-pole.

Launch modes are in `tests/launch/test_learners.py`.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.learner_agents import AGENTS, config_of, new_loop, tensors_of
from support.learners import ALONE, tiny_agent, tiny_config, train
from support.tiny_env import TinyEnv

from shoal.config.learners import LEARNERS
from shoal.errors import UsageError
from shoal.learn.export import exportable_policy
from shoal.learn.learner import build_learner
from shoal.learn.loop import TrainingLoop
from shoal.learn.replicas import compare_replicas

EACH = [pytest.param(agent, marks=[pytest.mark.soak] * (agent == "skrl_jax")) for agent in AGENTS]
"""All learners; JAX compiles for seconds in each test, so that CI has but two of them."""


def digest_of(loop: TrainingLoop) -> str:
    return compare_replicas(loop.learner, ALONE, when="in a test")


def test_every_learner_is_tested_here() -> None:
    assert {agent.partition(" ")[0] for agent in AGENTS} | {"rsl_rl"} == set(LEARNERS)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_learner_changes_all_its_networks_and_reports_finite_losses(agent: str) -> None:
    loop = new_loop(agent)
    before = {name: tensor.clone() for name, tensor in loop.learner.replicated()}
    story = train(loop)
    after = dict(loop.learner.replicated())
    frozen = {name for name in before if name.startswith(("reference.", "teacher.")) or name.endswith(".atoms")}
    frozen |= {"central_value.model.a2c_network.mu.weight"}  # rl_games builds it, for actions that a critic has not.
    same = {name for name, tensor in before.items() if torch.equal(tensor, after[name])} - frozen
    assert not {name for name in same if "weight" in name}, "weights that nothing has changed"
    last = story.rows[-1]
    assert all(torch.isfinite(torch.tensor(value)) for value in last.values())
    assert {"Loss/learning_rate", "Perf/total_fps", "Perf/learning_time"} <= last.keys()
    assert last["Perf/learning_time"] > 0
    assert any(name.startswith("Loss/") and name != "Loss/learning_rate" for name in last)


def test_an_observation_group_that_the_environments_do_not_have_is_refused() -> None:
    agent = tiny_agent(obs_groups={"actor": ("polcy",), "critic": ("privileged",)})
    said = r"^--agent\.obs-groups\.actor names 'polcy', but the environment observes policy, privileged\."
    with pytest.raises(UsageError, match=said):
        build_learner(TinyEnv(num_envs=2), tiny_config(agent=agent), ALONE)


@pytest.mark.parametrize("agent", EACH)
def test_the_same_seed_learns_the_same(agent: str) -> None:
    first = new_loop(agent, seed=3)
    train(first)
    second = new_loop(agent, seed=3)
    train(second)
    assert digest_of(first) == digest_of(second)


@pytest.mark.parametrize("agent", EACH)
def test_a_restored_learner_is_the_one_that_was_saved(agent: str) -> None:
    loop = new_loop(agent)
    train(loop)
    saved = copy.deepcopy(loop.state())
    other = new_loop(agent, seed=9)
    assert digest_of(other) != digest_of(loop)
    other.restore(saved)
    assert digest_of(other) == digest_of(loop)
    assert other.iteration == 4


@pytest.mark.parametrize("agent", EACH)
def test_weights_alone_give_the_same_policy(agent: str) -> None:
    loop = new_loop(agent)
    train(loop)
    other = new_loop(agent, seed=9)
    other.restore(copy.deepcopy(loop.state()), weights_only=True)
    observations = loop.env.get_observations()
    loop.learner.policy().reset()  # A recurrent one remembers its environments.
    with torch.inference_mode():
        assert torch.equal(other.learner.policy()(observations), loop.learner.policy()(observations))
    assert other.iteration == 0


@pytest.mark.parametrize("agent", EACH)
def test_a_policy_is_exported_with_the_same_actions(agent: str) -> None:
    loop = new_loop(agent)
    train(loop)
    env: Any = loop.env
    policy = exportable_policy(loop.learner, env, name="x", checkpoint="y", iteration=1)  # Compares actions.
    assert policy.metadata["observation_groups"] == '["policy"]'
    # The policy is a view: exporting stops nothing from learning.
    loop.config = config_of(agent, max_iterations=6)
    assert train(loop).iterations == [5.0, 6.0]


@pytest.mark.parametrize("agent", AGENTS)
def test_each_changed_tensor_of_a_state_changes_the_fingerprint(agent: str) -> None:
    loop = new_loop(agent)
    train(loop)
    clean, state = digest_of(loop), copy.deepcopy(loop.learner.state())
    count = len(tensors_of(state))
    for index in range(count):
        changed = copy.deepcopy(state)
        tensors_of(changed)[index].add_(1e-3)
        loop.learner.restore(changed, weights_only=False)
        assert digest_of(loop) != clean, f"{index} of {count}: {tensors_of(state)[index]}"
    loop.learner.restore(state, weights_only=False)
    assert digest_of(loop) == clean
    assert count >= 6, "networks and moments"


def test_the_checkpoint_of_another_learner_is_refused() -> None:
    state = new_loop("grpo").state()
    with pytest.raises(UsageError, match="is of the learner grpo, and not of skrl: pass --learner grpo"):
        new_loop("skrl").restore(state)
