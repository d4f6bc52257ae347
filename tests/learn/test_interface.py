"""Inputs and outputs of a policy, as checkpoints record them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import arm_task
from support.tiny_env import TinyEnv

from shoal.config import TrainConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.learn.interface import interface_of, refuse_other_terms
from shoal.plan.resume import Start

if TYPE_CHECKING:
    from typing import Literal

ARM = {"policy/tip": 6, "policy/speeds": 2, "actions": 2}


@pytest.fixture(scope="module")
def arm() -> WarpVecEnv:
    return WarpVecEnv(arm_task.Arm(arm_task.Arm.config, num_envs=1, device="cpu", seed=0))


def test_terms_have_columns_with_their_history(arm: WarpVecEnv) -> None:
    assert interface_of(arm) == ARM


def test_environments_without_terms_have_groups() -> None:
    env = TinyEnv(num_envs=1)
    sizes = {name: values.shape[1] for name, values in env.get_observations().items()}
    assert interface_of(env) == sizes | {"actions": env.num_actions}


def refuse(saved: Any, env: WarpVecEnv, where: Path, mode: Literal["continue", "weights"] = "continue") -> None:
    """Start from a checkpoint whose manifest says what it was trained with."""
    (where / "manifest.json").write_text(json.dumps({"interface": saved}), encoding="utf-8")
    refuse_other_terms(TrainConfig(task="Arm"), Start(model="c/model.pt", mode=mode), where / "model.pt", env)


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (
            {"policy/tip": 6, "actions": 2},
            r"\(policy/speeds is new\): undo that, or train a new run from the beginning",
        ),
        ({**ARM, "policy/a": 1}, r"\(policy/a is gone\): undo that, or train"),
        ({**ARM, "actions": 3}, r"\(actions has 2 columns, not 3\): undo that, or train"),
        ({**ARM, "actions": "three"}, r"\(actions is new\)"),
        ({}, r"\(policy/tip is new; policy/speeds is new; actions is new\)"),
    ],
)
@pytest.mark.parametrize("mode", ["continue", "weights"])
def test_other_columns_are_named(saved: Any, said: str, mode: Any, arm: WarpVecEnv, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="^The terms of Arm are not those that the checkpoint c/model.pt .*" + said):
        refuse(saved, arm, tmp_path, mode)


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({"policy/tip": 6, "policy/a": 2, "actions": 2}, "policy/speeds is new; policy/a is gone"),
        ({"policy/speeds": 2, "policy/tip": 6, "actions": 2}, "their order changed"),
    ],
)
def test_as_many_columns_of_other_terms_are_enough_for_a_new_run(
    saved: Any, said: str, arm: WarpVecEnv, tmp_path: Path
) -> None:
    refuse(saved, arm, tmp_path, "weights")
    with pytest.raises(UsageError, match=rf"\({said}\): undo that, or start a new run from its weights: train Arm --c"):
        refuse(saved, arm, tmp_path)


@pytest.mark.parametrize("saved", [None, "a word", ["a"], ARM])
def test_a_manifest_that_does_not_tell_is_no_obstacle(saved: Any, arm: WarpVecEnv, tmp_path: Path) -> None:
    refuse(saved, arm, tmp_path)
