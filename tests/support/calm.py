"""Configurations of the velocity tasks with what is random left out, for tests that look at the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.config.plain import from_plain

if TYPE_CHECKING:
    from shoal.mdp.config import RobotConfig

ConfigT = TypeVar("ConfigT", bound="RobotConfig")

CALM: dict[str, Any] = {
    "events": {
        "push": {"interval": [0, 0]},
        "added_mass": {"ranges": [0, 0]},
        "gains": {"kp": [1, 1], "kd": [1, 1]},
    }
}
"""No pushes, no added mass, the motors' own gains."""
NEVER_FALLS: dict[str, Any] = {"terminations": {"fell_over": {"limit_angle": 3.2}, "too_low": {"minimum_height": -10}}}


def changed(config: ConfigT, *changes: Mapping[str, Any], **fields: Any) -> ConfigT:
    """Return a configuration with nested changes, as a YAML file has them."""
    for each in (*changes, fields):
        config = from_plain(config, each)
    return config
