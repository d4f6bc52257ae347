"""Changes of another library's configuration by path: `--env.set rewards.pose.weight 0.5 episode_length_s 10`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from shoal.config.checks import FINITE
from shoal.errors import UsageError, did_you_mean
from shoal.reading import parse_yaml, refusing


def change_all(config: Any, changes: Mapping[str, str]) -> None:  # noqa: ANN401  Dataclasses and dictionaries.
    """Set fields and keys of `config`, by paths with dots, to values that are read as YAML, of the kind of the old."""
    for path, text in changes.items():
        part = config
        *parents, last = path.replace("-", "_").split(".")
        for name in parents:
            part = _get(part, name, path)
        before = _get(part, last, path)
        with refusing(Path(path), "pass a plain value", "--env.set "):
            value = parse_yaml(text)
        if isinstance(before, tuple) and isinstance(value, list):
            value = tuple(value)
        if isinstance(before, float) and isinstance(value, int):
            value = float(value)
        if before is not None and type(value) is not type(before):
            kind = type(before).__name__
            raise UsageError(f"--env.set {path} is {text}, but the task has {before!r} there: pass a {kind}.")
        if FINITE.holds(before) and not FINITE.holds(value):
            raise UsageError(f"--env.set {path} is {text}, but must be finite: the task has {before!r} there.")
        if isinstance(part, dict):
            part[last] = value
        else:
            setattr(part, last, value)


def _get(part: Any, name: str, path: str) -> Any:  # noqa: ANN401
    """Return a field of a dataclass, or the value of a key."""
    known = list(part) if isinstance(part, dict) else [each.name for each in fields(part)] if is_dataclass(part) else []
    if name not in known:
        raise UsageError(
            f"--env.set {path}: there is no '{name}'.{did_you_mean(name, known)} There is {', '.join(known) or 'none'}."
        )
    return part[name] if isinstance(part, dict) else getattr(part, name)
