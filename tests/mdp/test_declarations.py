"""Declarations that would do nothing, or something else than they say, are refused; numbers are numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import warp as wp
from support.arm_task import Arm

from shoal.config.plain import from_plain
from shoal.errors import ShoalError, UsageError
from shoal.mdp.actions import joint_position
from shoal.mdp.annotations import JointId
from shoal.mdp.contact_rewards import feet_air_time
from shoal.mdp.functions import values_of
from shoal.mdp.terms import Command, Curriculum, Done, Event, Metric, Obs, Reward

CONFIG = Arm.config


@wp.func
def kick(state: Any, env: int, joint: JointId, speed: wp.vec2) -> None:
    """Set the speed of a joint."""
    state.qvel[env, joint] = speed[0]


@wp.func
def longer_than(state: Any, env: int, steps: int) -> bool:
    """Whether the episode is in its step `steps` at least."""
    return state.age[env] >= steps


def near(state: Any, width: torch.Tensor, count: int) -> torch.Tensor:
    """Return a number for each environment."""
    return state.qpos[:, 0] / width + count


@pytest.mark.parametrize(
    ("mode", "params", "said"),
    [
        ("rest", {}, "The event 'kick' has the mode 'rest', but must be one of .* Did you mean 'reset'"),
        ("interval", {}, "The event 'kick' of mode 'interval' has no interval, and would never happen: "),
        ("step", {}, "The event 'kick' of mode 'step' has no interval, and would never happen: "),
        ("reset", {"interval": (1.0, 2.0)}, "The event 'kick' of mode 'reset' has an interval, which nothing reads: "),
    ],
)
def test_an_event_that_would_never_happen_is_refused(mode: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        Event(kick, mode, joint="elbow", speed=(0.0, 1.0), **params)


def test_a_declared_interval_may_be_turned_off() -> None:
    event = Event(kick, "interval", interval=(1, 2), joint="elbow", speed=(0.0, 1.0))
    changed = from_plain(CONFIG.change(events={"kick": event}), {"events": {"kick": {"interval": [0.0, 0.0]}}})
    assert changed.terms("events")["kick"].interval == (0.0, 0.0)


def test_a_whole_number_is_a_number_like_any_other() -> None:
    config = CONFIG.change(
        rewards={"x": Reward("track_linear_velocity", 1, command="twist", std=1)},
        metrics={"y": Metric(near, width=2, count=3)},
    )
    plain = {"rewards": {"x": {"std": 0.5}}, "metrics": {"y": {"width": 0.25}}}
    changed = from_plain(config, plain)
    assert (changed.terms("rewards")["x"].std, changed.terms("metrics")["y"].width) == (0.5, 0.25)
    with pytest.raises(UsageError, match=r"^env\.rewards\.x\.std is 0\.0, but must be above 0"):
        CONFIG.change(rewards={"x": Reward("track_linear_velocity", 1, command="twist", std=0)})


def test_a_parameter_is_left_out_again_by_none() -> None:
    given = CONFIG.change(actions={"targets": {"offset": 0.5, "scale": 0.25}})
    none = given.change(actions={"targets": {"offset": None}}).change(actions={"targets": {"offset": None}})
    (action,) = none.terms("actions").values()
    values = values_of("targets", action, joint_position, ("state", "env", "i", "action"))
    assert (values["offset"], values["scale"]) == (None, 0.25)
    air_time = Reward("feet_air_time", 1.0, contact="feet", command="twist", threshold_min=None)
    assert values_of("x", air_time, feet_air_time, ("state", "env"))["threshold_min"] == 0.05


def test_declarations_that_differ_by_values_alone_share_a_class_and_others_do_not() -> None:
    alike = [Curriculum("f", when=metric, x=x, above=(0.0,)) for metric, x in (("a", (1.0,)), ("b", (2.0,)))]
    assert type(alike[0]) is type(alike[1])
    assert (alike[0].when, alike[1].when) == ("a", "b")
    scored = [Curriculum("f", when=when, x=(1.0,), above=(0.0,)) for when in (min, max)]
    assert [each.score for each in scored] == [min, max]
    columns = [Obs("f", columns=names).columns for names in (("a",), ("b",))]
    assert columns == [("a",), ("b",)]
    assert type(Event("f", "reset")) is not type(Event("f", "startup"))
    assert type(Reward("f", weight=1.0, p=1.0)) is not type(Reward("f", weight=1.0, p=True))


def test_what_a_function_counts_stays_a_whole_number() -> None:
    config = CONFIG.change(
        terminations={"x": Done(longer_than, steps=3)}, metrics={"y": Metric(near, width=2, count=3)}
    )
    assert [type(config.terms("terminations")["x"].steps), type(config.terms("metrics")["y"].count)] == [int, int]
    for change in ({"terminations": {"x": {"steps": 2.5}}}, {"metrics": {"y": {"count": 2.5}}}):
        with pytest.raises(UsageError, match=r"2\.5"):
            from_plain(config, change)


TWIST: dict[str, Any] = {"columns": dict.fromkeys(("lin_vel_x", "lin_vel_y", "ang_vel_z"), "1")}
TWIST |= {"resampling_time": (1, 2), "lin_vel_y": (0, 0), "ang_vel_z": (0, 0), "rel_standing_envs": 0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"commands": {"twist": Command("uniform_velocity", **TWIST, lin_vel_x=(2, 1))}},
            r"env\.commands\.twist\.lin_vel_x is \(2\.0, 1\.0\), but must be finite, the smaller number first",
        ),
        (
            {"events": {"kick": Event(kick, "reset", joint="elbow", speed=(1, 0))}},
            r"env\.events\.kick\.speed is \(1\.0, 0\.0\), but must be finite, the smaller number first",
        ),
        (
            {
                "commands": {"twist": Command("uniform_velocity", **TWIST, lin_vel_x=(1, 2))},
                "curricula": {
                    "x": Curriculum("commands_vel", command_name="twist", steps=(0, 5), lin_vel_x=((1, 2), (4, 3)))
                },
            },
            r"env\.curricula\.x\.lin_vel_x is \(4\.0, 3\.0\), but must be finite, the smaller number first",
        ),
        (
            {"curricula": {"reach": Curriculum("reward_curriculum", reward_name="reach", steps=(0,), std=(0,))}},
            r"env\.curricula\.reach\.std is 0\.0, but must be above 0",
        ),
        (
            {"curricula": {"reach": Curriculum("reward_curriculum", reward_name="reach", steps=(0,), target=(1,))}},
            r"env\.curricula\.reach\.target is 1\.0 at a step, but rewards\.reach\.target is \(0\.3, 0\.8\): give",
        ),
    ],
)
def test_ranges_and_what_curricula_make_of_them_are_checked(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        CONFIG.change(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"metrics": {"won": Metric("zzz")}},
            "metrics.won is 'zzz', which is no function of shoal.mdp.metrics. It has: ",
        ),
        (
            {"observations": {"policy": {"x": Obs("joint_pos_re")}}},
            "which is no function of shoal.mdp.observations. Did you mean 'joint_pos_rel'? It has: ",
        ),
    ],
)
def test_a_function_that_does_not_exist_is_answered_with_those_that_do(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        Arm.build_once(CONFIG.change(**changes))
    assert said in str(refused.value)
    listed = str(refused.value).partition("It has: ")[2]
    assert ("error_lin_vel" in listed) == ("metrics" in changes)


def test_a_best_metric_that_is_no_metric_is_refused_with_those_there_are() -> None:
    class Misspelt(Arm):
        """The same, judged by what it does not measure."""

        best_metric = "reech"

    with pytest.raises(ShoalError, match=r"names 'reech' as its best_metric, which is none of its metrics \(reached\)"):
        Misspelt.build_once(CONFIG)
