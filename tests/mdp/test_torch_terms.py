"""Terms that are torch functions: the same task as with functions of Warp, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import warp as wp
from support.arm_task import Arm, TorchArm, reach_torch, speeds_torch

from shoal.errors import ShoalError
from shoal.mdp.terms import Event, Obs, Reward


def build(cls: type[Arm], num_envs: int = 32, **changes: Any) -> Arm:
    return cls(cls.config.change(**changes), num_envs=num_envs, device="cpu", seed=3)


@pytest.mark.parametrize("step_graph", [True, False])
def test_a_task_of_torch_functions_is_the_task_of_the_same_functions_of_warp(step_graph: bool) -> None:
    ours, theirs = build(TorchArm, step_graph=step_graph), build(Arm)
    rng, dones = np.random.default_rng(0), 0
    np.testing.assert_allclose(ours.obs["policy"].numpy(), theirs.obs["policy"].numpy(), rtol=1e-5)
    for _ in range(30):
        actions = rng.standard_normal((32, 2), dtype=np.float32)
        for task in (ours, theirs):
            task.actions.assign(actions)
            task.step()
        for name in ("terms", "metric_values", "reward", "done", "done_terms"):
            one, other = getattr(ours, name).numpy(), getattr(theirs, name).numpy()
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(ours.obs["policy"].numpy(), theirs.obs["policy"].numpy(), rtol=1e-5, atol=1e-6)
        dones += int(theirs.done_terms.numpy().sum())
    assert dones > 10


def test_what_torch_functions_cost_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        build(TorchArm)
    (line,) = [each.getMessage() for each in caplog.records if "Torch" in each.getMessage()]
    assert re.fullmatch(
        r"Torch functions that run outside of the captured step: .*rewards\.reach.*\. They take \d+\.\d\d ms of each "
        r"step; a wp\.func of the same term would be part of it\.",
        line,
    )


def test_a_controller_is_told_the_name_of_a_torch_function() -> None:
    tip, speeds = build(TorchArm).deployment()["observations"]["policy"]
    assert (tip["function"], tip["columns"], tip["parameters"]) == ("tip_torch", ["x", "y", "z"], {"site": "tip"})
    assert (speeds["function"], speeds["columns"], speeds["clip"]) == (
        "speeds_torch",
        ["shoulder", "elbow"],
        [-3.0, 3.0],
    )


def failed_torch(state: Any) -> torch.Tensor:
    """Return 1 where the episode has failed in this step."""
    return state.terminated.float()


@wp.func
def failed(state: Any, env: int) -> float:
    """Return the same for one environment."""
    return wp.where(state.terminated[env], 1.0, 0.0)


@pytest.mark.parametrize("cls", [Arm, TorchArm])
def test_a_torch_reward_knows_whether_a_termination_holds(cls: type[Arm]) -> None:
    task = build(cls, rewards={"torch": Reward(failed_torch, 1.0), "warp": Reward(failed, 1.0)})
    rng, names, ends = np.random.default_rng(0), task.reward_terms, 0
    for _ in range(30):
        task.actions.assign(rng.standard_normal((32, 2), dtype=np.float32))
        task.step()
        terms, ended = task.terms.numpy(), task.done_terms.numpy()[:, 0]
        for name in ("torch", "warp"):
            np.testing.assert_array_equal(terms[:, names.index(name)], ended)
        ends += int(ended.sum())
    assert ends > 10


def forgotten(state: Any, env: int) -> float:
    """Be a function of Warp without its decorator."""
    return state.qpos[env, 0]


def too_many(state: Any) -> torch.Tensor:
    """Return two columns."""
    return state.qpos


def no_tensor(state: Any) -> float:
    """Return a number."""
    return state.step_dt


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rewards": {"x": Reward(forgotten, 1.0)}},
            "rewards.x.env is missing: forgotten() needs it, or decorate it with @wp.func.",
        ),
        (
            {"rewards": {"x": Reward(reach_torch, 1.0, sight="tip")}},
            "rewards.x.sight is given, but reach_torch() has no such parameter. Did you mean 'site'?",
        ),
        (
            {"rewards": {"x": Reward(too_many, 1.0)}},
            "rewards.x returns a tensor of shape (32, 2), but must return a tensor of shape (32,).",
        ),
        (
            {"observations": {"policy": {"x": Obs(too_many)}}},
            "(32,). An observation of several columns names them: Obs(..., columns=(...)).",
        ),
        (
            {"rewards": {"x": Reward(no_tensor, 1.0)}},
            "rewards.x returns 0.01, but must return a tensor of shape (32,).",
        ),
        ({"events": {"x": Event(speeds_torch, "reset", joints=".*")}}, ", but must be a wp.func."),
    ],
)
def test_what_cannot_be_a_torch_function_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ShoalError) as refused:
        build(TorchArm, **changes)
    assert said in str(refused.value)
