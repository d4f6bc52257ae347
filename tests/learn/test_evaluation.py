"""Episodes of a trained policy: the first one of each environment, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.learners import ALONE, loop_on, tiny_loop
from support.saved import write_checkpoint
from support.tiny_env import TinyEnv

from shoal.config import PlayConfig
from shoal.envs.capabilities import Capabilities
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.learn import evaluation
from shoal.learn.episodes import Episode, run_episodes
from shoal.learn.evaluation import evaluate_learner, open_policy, play_episodes
from shoal.tasks import registry

if TYPE_CHECKING:
    from shoal.plan.rundir import RunDir

NAN = float("nan")


class Scripted(TinyEnv):
    """Rewards and ends as written: a row a step, an entry an environment."""

    def __init__(self, rewards: list[list[float]], dones: list[list[int]]) -> None:
        super().__init__(num_envs=len(rewards[0]), max_episode_length=len(rewards))
        self.script = iter(zip(rewards, dones, strict=True))
        self.actions: list[list[list[float]]] = []

    def step(self, actions: torch.Tensor) -> Any:
        """Step as ever, but for what is written."""
        self.actions.append(actions.tolist())
        observations, *_, extras = super().step(actions)
        rewards, dones = next(self.script)
        return observations, torch.tensor(rewards), torch.tensor(dones, dtype=torch.bool), extras


class Rewound(Capabilities, TinyEnv):
    """A user's environments, whose restart writes in place what a step has made."""

    can_restart = True

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Place all points in the middle, and begin to count."""
        del seed, first
        self._position.zero_()
        self._action.zero_()
        self.episode_length_buf.zero_()


def first_episodes(env: Scripted, noise_seed: int = 0) -> tuple[list[float], list[int]]:
    """Run a new policy in `env`."""
    loop = tiny_loop(env=env)
    policy = loop.learner.policy()
    torch.manual_seed(noise_seed)
    return returns_and_lengths(evaluation.first_episodes(env, policy))  # pyright: ignore[reportArgumentType]  Any VecEnv does.


def returns_and_lengths(episodes: list[Episode]) -> tuple[list[float], list[int]]:
    return [each["return"] for each in episodes], [each["length"] for each in episodes]


def test_only_the_first_episode_of_each_environment_counts() -> None:
    # Environment 0 ends after each step, 1 after the second, 2 when its time is up.
    rewards = [[1.0, 10.0, 100.0], [2.0, 20.0, 200.0], [4.0, 40.0, 400.0], [8.0, 80.0, 800.0]]
    dones = [[1, 0, 0], [1, 1, 0], [1, 0, 0], [1, 0, 1]]
    returns, lengths = first_episodes(Scripted(rewards, dones))
    assert returns == [1, 10 + 20, 100 + 200 + 400 + 800]
    assert lengths == [1, 2, 4]


def test_nan_after_the_first_episode_does_not_count() -> None:
    returns, lengths = first_episodes(Scripted([[1, 1], [NAN, 1]], [[1, 0], [0, 1]]))
    assert returns == [1, 2]
    assert lengths == [1, 2]


def test_no_step_is_taken_long_after_the_last_episode() -> None:
    env = Scripted([[1.0, 1.0]] * 400, [[1, 0], *[[0, 1]] * 399])
    assert first_episodes(env) == ([1, 2], [1, 2])
    assert len(env.actions) < 20


def test_an_episode_succeeds_where_its_last_step_does() -> None:
    # The second environment loses what it had; the third has it in its second episode alone.
    script = [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    env = Scripted([[0.0] * 3] * 2, [[0, 0, 1], [1, 1, 1]])
    step, values = env.step, iter(script)

    def with_success(actions: torch.Tensor) -> Any:
        *rest, extras = step(actions)
        return *rest, {**extras, "log": {"Metrics/success": torch.tensor(next(values))}}

    env.step = with_success  # pyright: ignore[reportAttributeAccessIssue]
    policy = tiny_loop(env=env).learner.policy()
    episodes = evaluation.first_episodes(env, policy)  # pyright: ignore[reportArgumentType]
    assert [each["success"] for each in episodes] == [True, False, False]


@pytest.mark.parametrize(("met", "rate"), [([True, False, False], 0.5), ([True] * 3, None)])
def test_the_success_rate_of_an_evaluation_leaves_out_what_began_with_success(
    met: list[bool], rate: float | None
) -> None:
    successes = [True, True, False]
    episodes = [
        {"return": 1.0, "length": 5, "success": success, "met_at_reset": begun}
        for success, begun in zip(successes, met, strict=True)
    ]
    assert evaluation._means(episodes).get("Eval/success") == rate


def episodes_within(env: Scripted, steps: int) -> list[Episode]:
    """Run a new policy in the first environment."""
    found: list[Episode] = []
    policy = tiny_loop(env=env).learner.policy()
    any_env: Any = env
    run_episodes(any_env, policy, 1, lambda _, episode: found.append(episode), within=steps)
    return found


def test_an_episode_that_begins_after_the_last_step_does_not_count() -> None:
    episodes = episodes_within(Scripted([[1.0]] * 8, [[0], [1]] * 4), steps=4)
    assert [(each["number"], each["length"]) for each in episodes] == [(0, 2), (1, 2)]


def test_an_episode_is_not_diverged_because_an_earlier_one_was() -> None:
    env = Scripted([[1.0]] * 6, [[0], [1]] * 3)
    step, counts = env.step, iter([0, 1, 1, 1, 1, 2])

    def with_divergences(actions: torch.Tensor) -> Any:
        *rest, extras = step(actions)
        return *rest, {**extras, "diverged": torch.tensor([next(counts)])}

    env.step = with_divergences  # pyright: ignore[reportAttributeAccessIssue]
    assert [each["ended"] for each in episodes_within(env, steps=5)] == ["diverged", "terminated", "diverged"]


def test_an_evaluation_may_write_in_place_what_the_last_one_made() -> None:
    loop, env = tiny_loop(), Rewound(max_episode_length=10)
    rows = [evaluate_learner(loop.learner, env, ALONE, num_envs=4) for _ in range(2)]
    assert rows[0]["Eval/return"] == rows[1]["Eval/return"]
    assert rows[0]["Eval/length"] == rows[1]["Eval/length"] == 10


def test_small_rewards_are_not_lost_beside_large_ones() -> None:
    returns, _ = first_episodes(Scripted([[2.0**24], [1], [1]], [[0], [0], [1]]))
    assert returns == [2**24 + 2]


def test_actions_have_no_noise() -> None:
    one, other = (Scripted([[1.0, 1.0]] * 5, [[0, 0]] * 4 + [[1, 1]]) for _ in range(2))
    first_episodes(one, noise_seed=1)
    first_episodes(other, noise_seed=2)
    assert one.actions == other.actions


def test_a_saved_policy_plays_the_same_episodes_again(run_dir: RunDir) -> None:
    spec = registry.resolve("Cartpole-Balance")
    config = PlayConfig(task=spec.name, episodes=8, env=spec.env, agent=spec.agent)
    task = spec.load_builder()(spec.env, num_envs=1, device="cpu", seed=0)
    loop = loop_on(WarpVecEnv(task), spec.defaults(), ALONE)
    model = write_checkpoint(run_dir, 1, loop.state(), world_size=1) / "model.pt"
    episodes = play_episodes(config, spec, model, "cpu")
    assert play_episodes(config, spec, model, "cpu") == episodes
    returns, lengths = returns_and_lengths(episodes)
    assert len(set(returns)) == 8  # Each environment begins in a way of its own.
    assert max(lengths) <= task.max_episode_length


def test_a_policy_of_another_shape_is_refused(run_dir: RunDir) -> None:
    spec = registry.resolve("Cartpole-Balance")
    model = write_checkpoint(run_dir, 1, tiny_loop().state(), world_size=1) / "model.pt"
    config = PlayConfig(task=spec.name, episodes=1, env=spec.env, agent=spec.agent)
    said = r"does not fit the network 'actor' of this training: its 'obs_normalizer\._mean' is"
    with pytest.raises(UsageError, match=said):
        play_episodes(config, spec, model, "cpu")


@pytest.mark.parametrize(("kind", "least", "most"), [("zero", 0.0, 0.0), ("random", -1.0, 1.0)])
def test_actions_without_a_policy_need_no_checkpoint(kind: str, least: float, most: float) -> None:
    spec = registry.resolve("Cartpole-Balance")
    config = PlayConfig(task=spec.name, checkpoint=kind, episodes=4, env=spec.env, agent=spec.agent)
    with open_policy(config, spec, None, "cpu", num_envs=4) as (env, policy):
        actions = torch.stack([policy(env.get_observations()).clone() for _ in range(500)])
    assert actions.shape == (500, 4, 1)
    assert actions.min().item() == pytest.approx(least, abs=0.01)
    assert actions.max().item() == pytest.approx(most, abs=0.01)
    assert actions.mean().item() == pytest.approx(0.0, abs=0.1)  # Of 2,000 even numbers: four standard errors are 0.05.
    episodes = play_episodes(config, spec, None, "cpu")
    assert play_episodes(config, spec, None, "cpu") == episodes
