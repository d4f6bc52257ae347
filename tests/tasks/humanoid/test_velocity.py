"""The schedule of the G1 that walks: help that goes, and pushes that come."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.mdp.config import RobotConfig
from shoal.tasks.humanoid.velocity import (
    G1_FLAT,
    G1_MJLAB,
    G1_ROUGH,
    climbs_alone,
    walks,
    walks_alone,
    walks_on_rough_ground,
    withstands,
)

ERROR, LENGTH = "Metrics/error_linear_velocity", "Train/mean_episode_length"
HELP, LEVEL = "Curriculum/assistance/strength", "Metrics/terrain_level"


@pytest.mark.parametrize(
    ("metrics", "goes_on"),
    [
        ({ERROR: 0.43, LENGTH: 880.0}, True),
        ({ERROR: 0.44, LENGTH: 1000.0}, False),
        ({ERROR: 0.1, LENGTH: 879.0}, False),
        ({LENGTH: 1000.0}, False),
        ({ERROR: 0.1}, False),
    ],
)
def test_help_becomes_weaker_where_the_robot_walks_long_and_as_commanded(
    metrics: dict[str, float], *, goes_on: bool
) -> None:
    assert (walks(metrics) >= 1.0) == goes_on


@pytest.mark.parametrize(
    ("metrics", "goes_on"),
    [
        ({ERROR: 0.36, HELP: 0.0}, True),
        ({ERROR: 0.37, HELP: 0.0}, False),
        ({ERROR: 0.1, HELP: 0.0125}, False),
        ({ERROR: 0.1}, False),
    ],
)
def test_following_closely_counts_once_the_robot_walks_without_help(
    metrics: dict[str, float], *, goes_on: bool
) -> None:
    assert (walks_alone(metrics) >= 1.0) == goes_on


@pytest.mark.parametrize(
    ("metrics", "goes_on"),
    [
        ({ERROR: 0.44, LENGTH: 900.0, HELP: 0.0}, True),
        ({ERROR: 0.46, LENGTH: 1000.0, HELP: 0.0}, False),
        ({ERROR: 0.1, LENGTH: 899.0, HELP: 0.0}, False),
        ({ERROR: 0.1, LENGTH: 1000.0, HELP: 0.0125}, False),
        ({ERROR: 0.1, HELP: 0.0}, False),
    ],
)
def test_pushes_grow_as_far_as_the_robot_withstands_them_without_help(
    metrics: dict[str, float], *, goes_on: bool
) -> None:
    assert (withstands(metrics) >= 1.0) == goes_on


@pytest.mark.parametrize(
    ("metrics", "goes_on"),
    [({ERROR: 0.5, LENGTH: 800.0}, True), ({ERROR: 0.51, LENGTH: 1000.0}, False), ({ERROR: 0.1, LENGTH: 799.0}, False)],
)
def test_on_rough_ground_less_is_asked_for(metrics: dict[str, float], *, goes_on: bool) -> None:
    assert (walks_on_rough_ground(metrics) >= 1.0) == goes_on


@pytest.mark.parametrize(
    ("metrics", "goes_on"),
    [
        ({ERROR: 0.44, HELP: 0.0, LEVEL: 3.0}, True),
        ({ERROR: 0.46, HELP: 0.0, LEVEL: 3.0}, False),
        ({ERROR: 0.1, HELP: 0.0, LEVEL: 2.9}, False),
        ({ERROR: 0.1, HELP: 0.1, LEVEL: 9.0}, False),
    ],
)
def test_on_rough_ground_pushes_wait_for_the_fourth_level(metrics: dict[str, float], *, goes_on: bool) -> None:
    assert (climbs_alone(metrics) >= 1.0) == goes_on


@pytest.mark.parametrize(("config", "most_pushes"), [(G1_FLAT, 2.8), (G1_ROUGH, 1.0)], ids=["flat", "rough"])
def test_help_ends_at_nothing_and_pushes_on_flat_ground_beyond_those_of_mjlab(
    config: RobotConfig, most_pushes: float
) -> None:
    curricula, events = config.terms("curricula"), G1_MJLAB.terms("events")
    strengths: Any = curricula["assistance"].strength
    assert strengths[0] == 1.0
    assert strengths[-1] == 0.0
    assert [*strengths] == sorted(strengths, reverse=True)
    assert config.terms("events")["assistance"].strength == 0.0  # In `play` and `evaluate`.
    for name in ("x", "y", "z", "roll", "pitch", "yaw"):
        pushes: Any = getattr(curricula["pushes"], name)
        assert pushes[0] == (0.0, 0.0)
        least, most = getattr(events["push"], name)
        assert pushes[4] == (least, most)
        most_of_this = 1.0 if name == "yaw" else most_pushes
        assert pushes[-1] == (most_of_this * least, most_of_this * most)
    assert curricula["pushes"].above == (-1.0, *(1.0 for _ in curricula["pushes"].x[1:]))


def test_following_closely_counts_in_training_alone() -> None:
    reward, curricula = G1_FLAT.terms("rewards")["track_linear_velocity_precise"], G1_FLAT.terms("curricula")
    assert reward.weight == 0.0
    assert curricula["precision"].reward_name == "track_linear_velocity_precise"
    assert (curricula["precision"].weight, curricula["precision"].above) == ((2.0,), (1.0,))
    assert curricula["precision"].when == walks_alone.__name__
    assert curricula["pushes"].when == withstands.__name__


@pytest.mark.parametrize("config", [G1_FLAT, G1_ROUGH], ids=["flat", "rough"])
def test_no_stage_depends_on_the_number_of_environments(config: RobotConfig) -> None:
    """Stages are counted in iterations and follow means; `steps` would be reached earlier by a smaller batch."""
    assert all(term.steps == () and term.when for term in config.terms("curricula").values())
