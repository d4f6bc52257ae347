"""`shoal check-env` finds each way in which environments of others may be wrong, and nothing in those that are not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensordict import TensorDict

from shoal.config import BaseEnvConfig, CheckEnvConfig, RslRlConfig
from shoal.envs.contract import EnvReport, check_env
from shoal.errors import UsageError
from shoal.tasks.registry import TaskSpec, resolve
from shoal.user_code import load

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = f"{Path(__file__).parents[2] / 'docs' / 'examples' / 'points_env.py'}:Points"
Points: Any = load(POINTS)


class NoTimeOuts(Points):
    """Says nothing of the time."""

    def step(self, actions: torch.Tensor) -> Any:
        *returned, _ = super().step(actions)
        return *returned, {}


class TimeOutsWithoutEnds(Points):
    """Is always out of time."""

    def step(self, actions: torch.Tensor) -> Any:
        *returned, extras = super().step(actions)
        return *returned, {**extras, "time_outs": torch.ones_like(extras["time_outs"])}


class DoublePrecision(Points):
    """Has observations of 64 bits."""

    def get_observations(self) -> TensorDict:
        return super().get_observations().to(torch.float64)


class OverwrittenObservations(Points):
    """Returns one buffer in every step."""

    def get_observations(self) -> TensorDict:
        if not hasattr(self, "buffer"):
            self.buffer = self.position.clone()
        self.buffer.copy_(self.position)
        return TensorDict({"policy": self.buffer}, batch_size=[self.num_envs])


class Unseeded(Points):
    """Draws from torch's global state."""

    def draw(self) -> torch.Tensor:
        return torch.rand(self.num_envs, 2, generator=torch.Generator().manual_seed(torch.seed() % 2**31))


class SameSeed(Points):
    """Does not know of its seed."""

    def __init__(self, num_envs: int, device: str, seed: int) -> None:
        del seed
        super().__init__(num_envs, device, 0)


class CountsOn(Points):
    """Does not begin to count again with an episode."""

    def step(self, actions: torch.Tensor) -> Any:
        before = self.episode_length_buf
        returned = super().step(actions)
        self.episode_length_buf = before + 1
        return returned


class NotFinite(Points):
    """Divides by zero."""

    def step(self, actions: torch.Tensor) -> Any:
        observations, rewards, dones, extras = super().step(actions)
        return observations, rewards / torch.where(dones, 0.0, 1.0), dones, extras


class Column(Points):
    """Has rewards in a column."""

    def step(self, actions: torch.Tensor) -> Any:
        observations, rewards, dones, extras = super().step(actions)
        return observations, rewards[:, None], dones, extras


class Raises(Points):
    """Fails in a step."""

    def step(self, actions: torch.Tensor) -> Any:
        message = f"no {actions.shape[0]} points"
        raise RuntimeError(message)


def spec_of(builder: Callable[..., Any]) -> TaskSpec:
    """The task of a builder of this file."""
    return TaskSpec(
        name="points",
        summary="",
        env=BaseEnvConfig(),
        agent=RslRlConfig(),
        builder=f"{builder.__module__}:{builder.__name__}",
    )


def check(spec: TaskSpec, **more: Any) -> EnvReport:
    """Check the environments of a task, for two episodes."""
    return check_env(CheckEnvConfig(task=spec.name, env=spec.env, **{"num_envs": 6, "steps": 210, **more}), spec, "cpu")


def test_an_environment_that_knows_nothing_of_shoal_passes() -> None:
    checked = check(resolve(POINTS))
    assert checked.failed == []
    assert checked.episodes >= 12
    assert [each.check[:10] for each in checked.findings if not each.offered] == [
        '`extras["e',
        "`restart(s",
        "`rows()` h",
    ]
    assert "a resumed run begins new episodes" in checked.missing


@pytest.mark.parametrize("task", ["Cartpole-Swingup", "InvertedPendulum-v5"])
def test_the_environments_of_shoal_offer_everything(task: str) -> None:
    checked = check(resolve(task), steps=1100)
    assert (checked.failed, checked.missing) == ([], [])
    assert all(each.offered for each in checked.findings)


@pytest.mark.parametrize(
    ("builder", "fault"),
    [
        (NoTimeOuts, r'extras\["time_outs"\] is missing'),
        (TimeOutsWithoutEnds, "after step 1 an episode is said to be out of time that has not ended"),
        (DoublePrecision, "the observations 'policy' are float64 of 6 rows, not float32"),
        (OverwrittenObservations, r"step\(\) wrote 'policy' of the step before again"),
        (Unseeded, "two builds with the same seed differ"),
        (SameSeed, "another seed gives the same episodes"),
        (CountsOn, "an episode has lasted 210 steps, but `max_episode_length` is 100"),
        (NotFinite, "rewards are not finite after step"),
        (Column, r"rewards have the shape \(6, 1\), not \(6,\)"),
        (Raises, "it raised RuntimeError: no 6 points"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_is_wrong_is_named(builder: type, fault: str) -> None:
    failed = check(spec_of(builder)).failed
    assert any(re.search(fault, each.fault or "") for each in failed), failed


def test_a_builder_that_returns_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match=r"returned a dict for the task points: return a subclass of rsl_rl"):
        check(spec_of(returns_a_dict))


def test_a_builder_with_another_number_of_environments_is_refused() -> None:
    with pytest.raises(UsageError, match=r"was asked for 6 environments, and returned 3 for the task points"):
        check(spec_of(returns_three))


def returns_a_dict(num_envs: int, device: str, seed: int) -> dict[str, Any]:
    """No environments."""
    return {"num_envs": num_envs, "device": device, "seed": seed}


def returns_three(num_envs: int, device: str, seed: int) -> Any:
    """Too few environments."""
    return Points(num_envs // 2, device, seed)
