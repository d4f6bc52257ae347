"""A policy that acts step by step: what is counted, and who gives the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.commanded_task import Sliding
from support.learners import ALONE
from support.saved import write_checkpoint

from shoal.config import PlayConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.evaluation import UntrainedPolicy, load_weights, open_policy
from shoal.learn.runner import Runner
from shoal.tasks import registry
from shoal.viewer.player import Player

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.rundir import RunDir


@pytest.fixture
def player(device: str) -> Player:
    """Three sliding balls, and a policy that does nothing."""
    task = Sliding(Sliding.config, num_envs=3, device=device, seed=1)
    return Player(WarpVecEnv(task), UntrainedPolicy((3, 1), device, spread=0.0))


def test_the_task_draws_its_commands_unless_told(player: Player) -> None:
    drawn = player.facts(1).commands
    assert 0 < drawn[0] < 1
    player.step()
    assert player.facts(1).commands == drawn
    assert player.facts(1).reward == pytest.approx(drawn[0])  # A weight of 10 for 0.1 s.
    assert player.positions()[1].tolist() == pytest.approx([0.1 * drawn[0]])


def test_all_environments_follow_what_they_are_told(player: Player) -> None:
    player.step([-1.5])
    assert [player.facts(env).commands for env in range(3)] == [[-1.5]] * 3
    assert player.positions().ravel().tolist() == pytest.approx([-0.15] * 3)


def test_a_new_episode_follows_too(player: Player) -> None:
    for _ in range(101):  # An episode is a hundred steps.
        player.step([2.0])
    facts = player.facts(2)
    assert (facts.length, facts.reward, facts.episode_return) == (1, 2.0, 2.0)
    assert facts.last_return == pytest.approx(200.0)
    assert player.positions()[2].tolist() == pytest.approx([0.2])


def test_the_first_episode_has_none_before_it(player: Player) -> None:
    player.step([1.0])
    player.step([1.0])
    facts = player.facts(0)
    assert (facts.length, facts.episode_return, facts.last_return) == (2, 2.0, None)


def test_a_restart_begins_everywhere_anew(player: Player) -> None:
    for _ in range(101):
        player.step([2.0])
    player.restart()
    facts = player.facts(0)
    assert (facts.length, facts.reward, facts.episode_return, facts.last_return) == (0, 0.0, 0.0, None)
    assert player.positions().ravel().tolist() == [0.0] * 3


def test_weights_are_exchanged_while_a_policy_plays(run_dir: RunDir) -> None:
    spec = registry.resolve("Cartpole-Balance")
    config = PlayConfig(task=spec.name, episodes=2, env=spec.env, agent=spec.agent)

    def new_model(iteration: int) -> Path:
        task = spec.load_builder()(spec.env, num_envs=1, device="cpu", seed=0)
        return write_checkpoint(run_dir, iteration, Runner(WarpVecEnv(task), spec.defaults(), ALONE).state(), 1)

    one, other = new_model(1) / "model.pt", new_model(2) / "model.pt"
    with open_policy(config, spec, one, "cpu") as (env, policy):
        first = policy(env.get_observations()).tolist()
        load_weights(policy, other)
        second = policy(env.get_observations()).tolist()
    with open_policy(config, spec, other, "cpu") as (env, policy):
        assert policy(env.get_observations()).tolist() == second
    assert first != second
