"""A reward that is not finite is named, by its term and its environments, and is not blamed on the physics."""

# A kernel's body is Warp's language, whose arrays pyright reads as Python's.

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import warp as wp
from support.bouncing_task import BouncingTask
from support.learners import ALONE, loop_on, tiny_agent, tiny_config

from shoal.envs.capabilities import BAD_REWARD
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import TrainingFailedError
from shoal.mdp.terms import Reward
from shoal.worker import _keep_diverged


@wp.func
def spoiled(state: Any, env: int) -> float:
    """Return NaN in odd environments, from the third step on."""
    return wp.where(env % 2 == 1 and state.age[env] >= 3, wp.nan, 0.0)


@wp.func
def infinite(state: Any, env: int) -> float:
    """Return infinity in odd environments, from the third step on."""
    return wp.where(env % 2 == 1 and state.age[env] >= 3, wp.inf, 0.0)


GROUPS = {"actor": ("policy",), "critic": ("policy",)}


class Spoiled(BouncingTask):
    """A task whose author divides by zero."""

    config = BouncingTask.config.change(rewards={"spoiled": Reward(spoiled, weight=1.0)})


class Infinite(BouncingTask):
    """The same with an infinite term."""

    config = BouncingTask.config.change(rewards={"spoiled": Reward(infinite, weight=1.0)})


def environments(task: type[BouncingTask] = Spoiled, **changes: Any) -> WarpVecEnv:
    config = replace(task.config, episode_length_s=60.0, **changes)
    return WarpVecEnv(task(config, num_envs=4, device="cpu", seed=1))


@pytest.mark.parametrize("task", [Spoiled, Infinite])
def test_the_term_and_its_environments_are_named_and_each_environment_is_counted_once(
    task: type[BouncingTask],
) -> None:
    env = environments(task)
    for _ in range(12):  # Odd environments fail in each third step.
        env.step(torch.zeros(4, 1))
    assert env.task.divergences.numpy().tolist() == [0, 4, 0, 4]
    diverged, warnings = env.take_warnings()
    term = env.task.reward_terms[-1]
    assert diverged == 2
    assert warnings[BAD_REWARD].startswith(
        f"the state was finite, but the reward term '{term}' of environments 1, 3 was"
    )
    assert env.take_warnings() == (0, {})


def test_a_state_that_is_not_finite_is_no_fault_of_the_reward() -> None:
    env = environments(BouncingTask)
    task: Any = env.task
    speeds = task.qvel.numpy()
    speeds[1] = np.nan
    task.qvel.assign(speeds)
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    env.step(torch.zeros(4, 1))
    assert env.take_warnings() == (1, {})


@pytest.mark.parametrize("on_nan", ["reset", "stop"])
def test_a_training_ends_with_the_name_of_the_term(on_nan: Any, tmp_path: Path) -> None:
    env = environments(on_nan=on_nan)
    term = env.task.reward_terms[-1]
    config = tiny_config(
        agent=tiny_agent(num_steps_per_env=24, obs_groups=GROUPS), env=replace(env.task.config, diverged_limit=0.0)
    )
    loop = loop_on(env, config)
    job: Any = SimpleNamespace(config=config, run=SimpleNamespace(diverged_npz=lambda _: tmp_path / "diverged.npz"))
    with pytest.raises(TrainingFailedError) as failure:
        loop.train(
            on_row=lambda _: None,
            save=lambda _: None,
            stop_requests=dict,
            dump_diverged=partial(_keep_diverged, job, ALONE, env),
        )
    message = str(failure.value)
    assert f"On rank 0, the state was finite, but the reward term '{term}' of environments 1, 3 was NaN" in message
    assert "masses" not in message
    assert "dynamics" not in message
    assert message.startswith(
        "2 of 4 environments diverged" if on_nan == "reset" else "The rewards of environments 1, 3"
    )
