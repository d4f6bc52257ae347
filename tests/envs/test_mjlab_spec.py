"""`mjlab:TASK` is refused where mjlab cannot run, with the command that mends it; changes of its tasks are checked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from shoal.envs import mjlab_spec
from shoal.envs.mjlab_spec import OVERRIDES, _change, problem_of_mjlab
from shoal.errors import UsageError
from shoal.tasks.registry import resolve

WHOLE = {"mjlab": "1.6.0", "rsl-rl-lib": "5.5.1", "mujoco": "4.0.0", "mujoco-warp": "4.0.0", "prettytable": "3.0"}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({"mjlab": None}, "mjlab is not installed: run `uv pip install --override "),
        ({"mjlab": "0.1.0"}, "mjlab's tasks were not tested with mjlab 0.1.0 (not 1.6.0): run"),
        ({"rsl-rl-lib": "5.4.2", "mujoco": "3.11.0"}, "with rsl-rl-lib 5.4.2 (not 5.5.1), mujoco 3.11.0 (not 4.0.0)"),
        ({"prettytable": None}, "mjlab needs prettytable, which are not installed: run"),
    ],
)
def test_what_mjlab_lacks_is_named(
    changed: dict[str, str | None], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mjlab_spec, "_installed", (WHOLE | changed).get)
    monkeypatch.setattr(mjlab_spec, "requires", lambda _: ["mujoco==3.11", "prettytable", "pytest; extra == 'test'"])
    found = problem_of_mjlab() or ""
    assert (problem or "") in found
    assert (str(OVERRIDES) in found) == (problem is not None)
    if problem is not None:
        with pytest.raises(UsageError, match=r"mjlab:Mjlab-Cartpole-Balance was asked for, but " + re.escape(found)):
            resolve("mjlab:Mjlab-Cartpole-Balance")


@dataclass
class Term:
    """A part of a task, as mjlab has it."""

    weight: float = 1.0
    params: dict[str, object] = field(default_factory=lambda: {"std": 0.5, "range": (0, 1), "name": "foot"})
    episodes: int | None = None


@dataclass
class Cfg:
    """A task."""

    rewards: dict[str, Term] = field(default_factory=lambda: {"pose": Term()})
    decimation: int = 4


def test_changes_are_made_by_path() -> None:
    cfg = Cfg()
    for path, text in {
        "rewards.pose.weight": "2",
        "rewards.pose.params.range": "[1, 3]",
        "rewards.pose.params.name": "hand",
        "rewards.pose.episodes": "7",
        "decimation": "2",
    }.items():
        _change(cfg, path, text)
    pose = Term(weight=2.0, params={"std": 0.5, "range": (1, 3), "name": "hand"}, episodes=7)
    assert cfg == Cfg(rewards={"pose": pose}, decimation=2)


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("rewards.pos.weight", "2", "--env.set rewards.pos.weight: there is no 'pos'. Did you mean 'pose'?"),
        ("rewards.pose.weighs", "2", "there is no 'weighs'. Did you mean 'weight'?"),
        ("decimation.x", "2", "there is no 'x'. There is none"),
        ("decimation", "two", "--env.set decimation is two, but the task has 4 there: pass a int."),
    ],
)
def test_changes_that_name_nothing_are_refused(path: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        _change(Cfg(), path, text)
