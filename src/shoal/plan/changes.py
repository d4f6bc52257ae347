"""What a training changes: the fields that differ from its task's defaults, and the flags that set them."""

import re
from collections.abc import Collection, Mapping
from functools import reduce
from typing import Any, cast

from shoal.config import BaseEnvConfig, TrainConfig
from shoal.config.plain import to_plain
from shoal.config.train import NOT_REPEATED
from shoal.errors import UsageError
from shoal.shell import join_command
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec

_LEFT_OUT = {*NOT_REPEATED, "task", "run_name", "log_root"}
"""Fields that belong to one command, or that the path of the run shows."""
_OF_THE_RETURN = re.compile(r"env\.(rewards\..+|.+_weight|episode_length_s|decimation|physics_dt)")


def flatten(plain: Mapping[str, Any], path: str = "", left_out: Collection[str] = _LEFT_OUT) -> dict[str, Any]:
    """Return the fields of a configuration of plain values by their dotted names, such as ``env.decimation``."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, dict) and value:
            flat |= flatten(cast("dict[str, Any]", value), f"{path}{name}.")
        elif path or name not in left_out:
            flat[path + name] = value
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted names as nested dicts."""
    made: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        reduce(lambda inner, section: inner.setdefault(section, {}), sections, made)[last] = value
    return made


def defaults_of(spec: TaskSpec, learner: str) -> dict[str, Any]:
    """Return the defaults of a task by dotted names: those of a learner, but the task's own `learner`."""
    return flatten(to_plain(spec.defaults(None, learner)) | {"learner": spec.learner})


def changed_fields(flat: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from the defaults. Those without a default are of another version of the task."""
    return {name: value for name, value in flat.items() if name in defaults and value != defaults[name]}


def changes_of(config: TrainConfig) -> dict[str, Any]:
    """Return the fields of a training that differ from its task's defaults. None of a task that is not found."""
    try:
        spec = registry.resolve(config.task)
        return changed_fields(flatten(to_plain(config)), defaults_of(spec, config.learner))
    except UsageError:  # A configuration made by a program, whose task no command could name.
        return {}


def decides_return(field: str) -> bool:
    """Whether a field decides what a return counts: a reward, its weight, or how long rewards are summed."""
    return _OF_THE_RETURN.fullmatch(field) is not None


def counted_in_return(env: BaseEnvConfig) -> dict[str, Any]:
    """Return the fields that decide what a return counts: returns can be compared where these are equal."""
    return {name: value for name, value in flatten({"env": to_plain(env)}).items() if decides_return(name)}


def flag_words(changed: Mapping[str, Any]) -> str:
    """Return the flags that set these fields, as one would type them."""
    return " ".join(_flag(name.replace("_", "-"), value) for name, value in changed.items())


def _flag(name: str, value: object) -> str:
    if isinstance(value, bool):
        section, dot, last = name.rpartition(".")
        return f"--{name}" if value else f"--{section}{dot}no-{last}"
    return " ".join([f"--{name}", *map(_word, cast("list[object]", value) if isinstance(value, list) else [value])])


def _word(value: object) -> str:
    """Return one value; of a text of several lines, such as rl_games' file, three dots."""
    return "..." if "\n" in str(value) else join_command([str(value)])
