"""Playback of a policy: returns and lengths of episodes, commands by hand, and pacing by the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.bouncing_task import BouncingTask
from support.commanded_task import Sliding
from support.learners import ALONE, loop_on
from support.saved import write_checkpoint

from shoal.config import PlayConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.evaluation import TrainedPolicy, UntrainedPolicy, open_policy
from shoal.sim.bridge import to_torch
from shoal.tasks import registry
from shoal.viewer.playback import MAX_CATCH_UP_S, Pacer, Playback

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.rundir import RunDir


@pytest.fixture
def playback(device: str) -> Playback:
    """Three sliding balls, and a policy that does nothing."""
    task = Sliding(Sliding.config, num_envs=3, device=device, seed=1)
    return Playback(WarpVecEnv(task), UntrainedPolicy((3, 1), device, spread=0.0))


def test_the_task_draws_its_commands_unless_told(playback: Playback) -> None:
    drawn = playback.status(1).commands
    assert 0 < drawn[0] < 1
    playback.step()
    assert playback.status(1).commands == drawn
    assert playback.status(1).reward == pytest.approx(drawn[0])  # A weight of 10 for 0.1 s.
    assert playback.positions()[1].tolist() == pytest.approx([0.1 * drawn[0]])


def test_all_environments_follow_what_they_are_told(playback: Playback) -> None:
    playback.step([-1.5])
    assert [playback.status(env).commands for env in range(3)] == [[-1.5]] * 3
    assert playback.positions().ravel().tolist() == pytest.approx([-0.15] * 3)


def test_a_new_episode_follows_too(playback: Playback) -> None:
    for _ in range(101):  # An episode is a hundred steps.
        playback.step([2.0])
    status = playback.status(2)
    assert (status.length, status.reward, status.episode_return) == (1, 2.0, 2.0)
    assert status.last_return == pytest.approx(200.0)
    assert playback.positions()[2].tolist() == pytest.approx([0.2])


def test_the_first_episode_has_none_before_it(playback: Playback) -> None:
    playback.step([1.0])
    playback.step([1.0])
    status = playback.status(0)
    assert (status.length, status.episode_return, status.last_return) == (2, 2.0, None)


def test_a_restart_begins_everywhere_anew(playback: Playback) -> None:
    for _ in range(101):
        playback.step([2.0])
    playback.restart()
    status = playback.status(0)
    assert (status.length, status.reward, status.episode_return, status.last_return) == (0, 0.0, 0.0, None)
    assert playback.positions().ravel().tolist() == [0.0] * 3


def test_a_push_changes_the_horizontal_velocity_of_what_moves_freely_by_1_m_per_s(device: str) -> None:
    task = BouncingTask(BouncingTask.config, num_envs=3, device=device, seed=1)
    playback = Playback(WarpVecEnv(task), UntrainedPolicy((3, 1), device, spread=0.0))
    velocities = to_torch(task.qvel)
    before = velocities.clone()
    playback.push()
    change = (velocities - before).cpu()
    ball = slice(1, 3)  # Behind the cart's joint.
    assert change[:, ball].norm(dim=1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
    assert change[0, ball].tolist() != change[1, ball].tolist()
    assert change.norm(dim=1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)  # Nothing else.
    x = playback.positions()[:, 1].copy()
    playback.step()
    moved = playback.positions()[:, 1] - x
    assert moved.tolist() == pytest.approx((task.step_dt * velocities[:, 1]).tolist(), abs=1e-3)


def test_a_task_without_physics_of_mujoco_cannot_be_pushed(playback: Playback) -> None:
    assert not playback.can_push


def test_weights_are_exchanged_while_a_policy_plays(run_dir: RunDir) -> None:
    spec = registry.resolve("Cartpole-Balance")
    config = PlayConfig(task=spec.name, episodes=2, env=spec.env, agent=spec.agent)

    def new_model(iteration: int) -> Path:
        task = spec.load_builder()(spec.env, num_envs=1, device="cpu", seed=0)
        loop = loop_on(WarpVecEnv(task), spec.defaults(), ALONE, seed=iteration)
        return write_checkpoint(run_dir, iteration, loop.state(), 1)

    one, other = new_model(1) / "model.pt", new_model(2) / "model.pt"
    with open_policy(config, spec, one, "cpu", num_envs=1) as (env, policy):
        first = policy(env.get_observations()).tolist()
        assert isinstance(policy, TrainedPolicy)
        policy.load(other)
        second = policy(env.get_observations()).tolist()
    with open_policy(config, spec, other, "cpu", num_envs=1) as (env, policy):
        assert policy(env.get_observations()).tolist() == second
    assert first != second


def steps_in(pacer: Pacer, seconds: float, *, start: float = 100.0, look_every_s: float = 1 / 60) -> int:
    """How many steps are due in some time, looked at again and again."""
    looks = round(seconds / look_every_s)
    return sum(pacer.due(start + look * look_every_s) for look in range(looks + 1))


@pytest.mark.parametrize(("speed", "steps"), [(0.1, 10), (0.5, 50), (1.0, 100), (4.0, 400)])
def test_steps_come_as_fast_as_asked(speed: float, steps: int) -> None:
    pacer = Pacer(0.02)
    pacer.speed = speed
    assert steps_in(pacer, 2.0) == steps


def test_long_steps_are_waited_for() -> None:
    pacer = Pacer(0.5)
    assert [pacer.due(100 + 0.1 * tenth) for tenth in range(11)] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_nothing_is_due_at_the_first_look() -> None:
    assert Pacer(0.001).due(1e6) == 0


def test_a_pause_is_not_made_up_for() -> None:
    pacer = Pacer(0.02)
    steps_in(pacer, 0.5)
    pacer.paused = True
    assert steps_in(pacer, 5.0, start=100.5) == 0
    pacer.paused = False
    assert pacer.due(105.51) == 0
    assert pacer.due(105.53) == 1


def test_a_machine_that_is_too_slow_does_not_fall_behind_for_ever() -> None:
    pacer = Pacer(0.01)
    pacer.due(100.0)
    assert pacer.due(160.0) == round(MAX_CATCH_UP_S / 0.01)
    assert pacer.due(160.0) == 0


def test_rewards_of_each_term_are_kept_by_name_the_oldest_first(playback: Playback) -> None:
    for speed in (1.0, -0.5):
        playback.step([speed])
    assert [*playback.rewards.names] == ["Reward", "speed"]
    assert playback.rewards.of(2).tolist() == [[1.0, 1.0], [-0.5, -0.5]]  # A weight of 10 for 0.1 s.
    for _ in range(100):  # More than ten seconds.
        playback.step([2.0])
    assert playback.rewards.of(2).tolist() == [[2.0, 2.0]] * 100
    playback.restart()
    assert playback.rewards.of(2).shape == (0, 2)


def test_the_same_seed_begins_the_same_episodes(playback: Playback) -> None:
    begun = []
    for seed in (7, 8, 7):
        playback.restart(seed)
        begun.append([playback.status(env).commands for env in range(3)])
    assert begun[0] == begun[2] != begun[1]
