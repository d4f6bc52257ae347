"""Changes of another library's configuration name what is there, and keep its kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from shoal.envs.library_settings import change_all
from shoal.errors import UsageError


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
    changes = {
        "rewards.pose.weight": "2",
        "rewards.pose.params.range": "[1, 3]",
        "rewards.pose.params.name": "hand",
        "rewards.pose.episodes": "7",
        "decimation": "2",
    }
    change_all(cfg, changes)
    pose = Term(weight=2.0, params={"std": 0.5, "range": (1, 3), "name": "hand"}, episodes=7)
    assert cfg == Cfg(rewards={"pose": pose}, decimation=2)


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("rewards.pose.weight", ".nan", "--env.set rewards.pose.weight is .nan, but must be finite: the task has 1.0"),
        (
            "rewards.pose.params.range",
            "[0, .inf]",
            "--env.set rewards.pose.params.range is [0, .inf], but must be finite",
        ),
        ("rewards.pos.weight", "2", "--env.set rewards.pos.weight: there is no 'pos'. Did you mean 'pose'?"),
        ("rewards.pose.weighs", "2", "there is no 'weighs'. Did you mean 'weight'?"),
        ("decimation.x", "2", "there is no 'x'. There is none"),
        ("decimation", "two", "--env.set decimation is two, but the task has 4 there: pass a int."),
    ],
)
def test_changes_that_name_nothing_are_refused(path: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        change_all(Cfg(), {path: text})
