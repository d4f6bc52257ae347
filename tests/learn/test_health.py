"""NaN and infinity in a rollout, in a loss, in a weight: found, and located where they came first."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from support.learner_agents import AGENTS, new_loop
from support.learners import CountedOperations, tiny_config, train
from tensordict import TensorDict

from shoal.errors import TrainingFailedError
from shoal.learn.groups import World
from shoal.learn.health import refuse_many_diverged, refuse_non_finite_update
from shoal.learn.statistics import Statistics
from shoal.learn.training_env import TrainingEnv, endings

STEPS, ENVS = 3, 12
EACH = [pytest.param(agent, marks=[pytest.mark.soak] * (agent == "skrl_jax")) for agent in AGENTS]
"""All learners; JAX compiles for half a minute."""


@pytest.fixture
def newest() -> TensorDict:
    """Observations of two groups, one of them pictures in whole numbers."""
    groups = {
        "policy": torch.zeros(ENVS, 2),
        "height": torch.zeros(ENVS, 1, 3, 3),
        "camera": torch.zeros(ENVS, 1, 2, 2, dtype=torch.uint8),
    }
    return TensorDict(groups, batch_size=[ENVS])


@pytest.fixture
def storage(newest: TensorDict) -> RolloutStorage:
    """A rollout full of zeros."""
    return RolloutStorage("rl", ENVS, STEPS, newest, [1])


class Recorded(VecEnv):
    """Environments that return a rollout: the rows of a storage, and the observations after the last step."""

    def __init__(self, storage: RolloutStorage, newest: TensorDict) -> None:
        self.device, self.num_envs, self.num_actions, self.cfg, self.max_episode_length = "cpu", ENVS, 1, {}, 9
        self.storage, self.newest, self.steps = storage, newest, 0

    def get_observations(self) -> TensorDict:
        """Return what is seen before the next step."""
        return self.newest if self.steps == STEPS else self.storage.observations[self.steps]

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Return the next row."""
        del actions
        rewards = self.storage.rewards[self.steps].squeeze(1)
        self.steps += 1
        return self.get_observations(), rewards, torch.zeros(ENVS), {}


def refuse(
    storage: RolloutStorage,
    newest: TensorDict,
    *,
    rank: int,
    iteration: int,
    dump_diverged: Callable[[int], str | None] | None = None,
) -> None:
    """Live through a rollout on this rank, in this iteration."""
    env = TrainingEnv(Recorded(storage, newest), World(rank=rank), Statistics(World(), ENVS), tiny_config())
    env.dump_diverged = dump_diverged
    env.begin_iteration(iteration, STEPS)
    for _ in range(STEPS):
        env.step(torch.zeros(ENVS, 1))
    env.end_rollout()


def error_of(storage: RolloutStorage, newest: TensorDict) -> str:
    """The error of a rollout."""
    with pytest.raises(TrainingFailedError) as caught:
        refuse(storage, newest, rank=3, iteration=5)
    return str(caught.value)


def test_finite_numbers_with_an_infinite_sum_pass(storage: RolloutStorage, newest: TensorDict) -> None:
    storage.rewards.fill_(3e38)
    refuse(storage, newest, rank=0, iteration=1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_group_environments_rank_and_iteration_are_named(
    value: float, storage: RolloutStorage, newest: TensorDict
) -> None:
    storage.observations["height"][1, [2, 5], 0, 2, 1] = value
    assert error_of(storage, newest) == (
        "The observation group 'height' of environments 2, 5 on rank 3 held NaN or infinity in iteration 5, and no "
        "gradient step was taken from it. Look at that task's dynamics, or lower its time step; "
        "--resume goes on from the last checkpoint, if there is one."
    )


def test_a_group_may_have_one_number_for_each_environment(storage: RolloutStorage, newest: TensorDict) -> None:
    newest["age"] = torch.zeros(ENVS)
    storage.observations["age"] = torch.zeros(STEPS, ENVS)
    storage.observations["age"][0, 3] = torch.nan
    assert error_of(storage, newest).startswith("The observation group 'age' of environments 3 on rank 3")


def test_infinities_that_would_cancel_are_found(storage: RolloutStorage, newest: TensorDict) -> None:
    storage.rewards[0, 0], storage.rewards[0, 1] = torch.inf, -torch.inf
    assert error_of(storage, newest).startswith("The rewards of environments 0, 1 on rank 3")


def test_observations_after_the_last_step_are_searched(storage: RolloutStorage, newest: TensorDict) -> None:
    # No action followed them, but the returns begin with what the critic says of them.
    newest["policy"][4, 1] = torch.nan
    assert error_of(storage, newest).startswith("The observation group 'policy' of environments 4 on rank 3")


def test_what_came_first_is_named(storage: RolloutStorage, newest: TensorDict) -> None:
    # The second step returned a bad reward (row 1), and the third bad observations (what is acted on next).
    storage.rewards[1, 7] = torch.nan
    newest["policy"][:] = torch.nan
    assert error_of(storage, newest).startswith("The rewards of environments 7 on")


def test_a_state_is_named_before_the_reward_that_follows_from_it(storage: RolloutStorage, newest: TensorDict) -> None:
    # Both were returned by the second step.
    storage.rewards[1, 7] = torch.nan
    storage.observations["policy"][2, 7] = torch.nan
    assert error_of(storage, newest).startswith("The observation group 'policy' of environments 7 on")


def test_many_environments_are_not_all_listed(storage: RolloutStorage, newest: TensorDict) -> None:
    storage.rewards.fill_(torch.nan)
    assert "environments 0, 1, 2, 3, 4, 5, 6, 7, ... on rank 3" in error_of(storage, newest)


def test_what_was_kept_is_told_in_the_place_of_advice(storage: RolloutStorage, newest: TensorDict) -> None:
    storage.rewards[2, 7] = torch.nan
    calls: list[int] = []

    def dump_diverged(iteration: int) -> str | None:
        calls.append(iteration)
        return "`shoal replay x` shows how environment 7 was lost" if len(calls) > 1 else None

    for remedy in (
        "Look at that task's dynamics, or lower its time step",
        "`shoal replay x` shows how environment 7 was",
    ):
        with pytest.raises(
            TrainingFailedError, match=rf"no gradient step was taken from it\. {remedy}.*; --resume goes on"
        ):
            refuse(storage, newest, rank=0, iteration=5, dump_diverged=dump_diverged)
    assert calls == [5, 5]


def test_of_a_finite_rollout_nothing_is_kept(storage: RolloutStorage, newest: TensorDict) -> None:
    def dump_diverged(iteration: int) -> str | None:
        raise AssertionError(iteration)

    refuse(storage, newest, rank=0, iteration=1, dump_diverged=dump_diverged)


@pytest.mark.parametrize(
    ("lost", "num_envs", "limit", "ends"),
    [
        (40, 4096, 0.01, False),
        (41, 4096, 0.01, True),
        # Few environments: one is more than a hundredth of them all.
        (3, 4, 0.01, False),
        (4, 4, 0.01, True),
        (3, 100, 0.01, False),
        (3, 300, 0.01, False),
        (4, 300, 0.01, True),
        (4, 400, 0.01, False),
        # Who allows none means none.
        (0, 4, 0.0, False),
        (1, 4, 0.0, True),
        (1, 4096, 0.0, True),
    ],
)
def test_losses_end_the_training_when_they_are_many_and_more_than_a_few(
    lost: int, num_envs: int, limit: float, *, ends: bool
) -> None:
    if not ends:
        refuse_many_diverged(lost, num_envs, limit, iteration=5)
        return
    with pytest.raises(TrainingFailedError, match=rf"^{lost} of [\d,]+ environments diverged .* {limit:g} allows"):
        refuse_many_diverged(lost, num_envs, limit, iteration=5)


@pytest.mark.parametrize("agent", EACH)
def test_no_learner_learns_from_a_reward_that_is_not_a_number(agent: str) -> None:
    loop = new_loop(agent)
    finite, steps = loop.env.step, itertools.count()

    def step(actions: torch.Tensor) -> Any:
        observations, rewards, dones, extras = finite(actions)
        if next(steps) == 7:
            rewards = rewards.index_fill(0, torch.tensor([3]), torch.nan)
        return observations, rewards, dones, extras

    loop.env.step = step
    with pytest.raises(TrainingFailedError, match=r"^The rewards of environments 3 on rank 0 held NaN or"):
        train(loop)
    assert next(steps) <= 8 + loop.learner.steps_per_iteration
    # Normalisers of returns may have seen it; they are saved no more.
    learned = {name: each for name, each in loop.learner.replicated() if "value_mean_std" not in name}
    assert not [name for name, each in learned.items() if not each.double().isfinite().all()]


@pytest.mark.parametrize("agent", ["fast_sac", "skrl SAC", "skrl TD3"])
def test_off_policy_learners_survive_an_environment_that_diverged(agent: str) -> None:
    loop = new_loop(agent)
    finite = loop.env.step

    def step(actions: torch.Tensor) -> Any:
        observations, rewards, dones, extras = finite(actions)
        dones, cut = dones.clone(), extras["time_outs"].clone()
        dones[3], cut[3] = 1, 0
        final = dict(observations.clone().items())
        final["policy"][3] = torch.nan
        return observations, rewards, dones, extras | {"time_outs": cut, "final_observation": final}

    loop.env.step = step
    assert len(train(loop).rows) == 4


def test_a_last_observation_from_which_an_episode_would_go_on_is_searched() -> None:
    loop = new_loop("fast_sac")
    finite = loop.env.step

    def step(actions: torch.Tensor) -> Any:
        observations, rewards, dones, extras = finite(actions)
        dones, cut = dones.clone(), extras["time_outs"].clone()
        dones[3] = cut[3] = 1
        final = dict(observations.clone().items())
        final["policy"][[3, 5]] = torch.inf
        return observations, rewards, dones, extras | {"time_outs": cut, "final_observation": final}

    loop.env.step = step
    with pytest.raises(TrainingFailedError, match=r"^The observation group 'policy' of environments 3 on rank"):
        train(loop)


def test_the_check_reads_one_number_for_a_whole_rollout(storage: RolloutStorage, newest: TensorDict) -> None:
    with CountedOperations() as operations:
        refuse(storage, newest, rank=0, iteration=1)
    assert operations.counts["aten._local_scalar_dense.default"] == 1


@pytest.fixture
def weights() -> list[torch.Tensor]:
    """Two of a network."""
    return [torch.zeros(2, requires_grad=True), torch.zeros(3, requires_grad=True)]


def test_finite_weights_and_losses_pass(weights: list[torch.Tensor]) -> None:
    refuse_non_finite_update(weights, {"value": 1.0}, iteration=1, flag=None)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_spoiled_weight_is_told_with_the_losses(value: float, weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        weights[1][2] = value
    expected = (
        r"Learning diverged in iteration 5: the weights are NaN or infinite \(value 1\.5, surrogate -0\.25\)\. "
        r"Lower --agent\.algorithm\.learning-rate"
    )
    flag = "--agent.algorithm.learning-rate"
    with pytest.raises(TrainingFailedError, match=expected):
        refuse_non_finite_update(weights, {"value": 1.5, "surrogate": -0.25}, iteration=5, flag=flag)


def test_a_loss_alone_is_told(weights: list[torch.Tensor]) -> None:
    with pytest.raises(TrainingFailedError, match=r"iteration 5: a loss is NaN or infinite \(value inf\)"):
        refuse_non_finite_update(weights, {"value": float("inf")}, iteration=5, flag=None)


@pytest.mark.parametrize("agent", EACH)
def test_the_flag_that_a_message_names_is_one_of_the_learner(agent: str) -> None:
    loop = new_loop(agent)
    with pytest.raises(TrainingFailedError, match="a loss is NaN") as caught:
        loop.learner.refuse_non_finite({"value": torch.nan}, iteration=5)
    flag = str(caught.value).partition("Lower ")[2].partition(",")[0]
    value: Any = loop.config
    for name in flag.removeprefix("--").replace("-", "_").split("."):
        value = getattr(value, name)
    assert isinstance(value, float)


def test_environments_that_do_not_tell_of_time_outs_have_none() -> None:
    dones = torch.tensor([1, 0])
    assert [each.tolist() for each in endings(dones, {})] == [[True, False], [False, False]]
    told = {"time_outs": torch.tensor([1, 1])}
    assert [each.tolist() for each in endings(dones, told)] == [[True, False], [True, False]]
