"""Patterns of names. Needs no Warp."""

import re
from collections.abc import Collection, Iterable, Mapping

from shoal.errors import UsageError


def matches(pattern: str, name: str, path: str) -> bool:
    """Whether a pattern, given at `path`, matches a name.

    Raises:
        UsageError: It is no pattern.
    """
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise UsageError(f"{path} is '{pattern}', which is no pattern that Python understands: {error}.") from error


def is_of(name: str, objects: Collection[str]) -> bool:
    """Whether a name is of one of the objects of a scene, such as ``cube/body`` of `cube`."""
    of, slash, _ = name.partition("/")
    return bool(slash) and of in objects


def numbers_by_pattern(path: str, numbers: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Return the number of each name that a pattern matches, by name, as mjlab and Isaac Lab resolve them.

    Raises:
        UsageError: A name matches several patterns, or a pattern no name, or it is none.
    """
    names = tuple(dict.fromkeys(names))
    found: dict[str, tuple[str, float]] = {}
    for pattern, number in numbers.items():
        those = [name for name in names if matches(pattern, name, f"A key of {path}")]
        if not those:
            raise UsageError(
                f"{path} has the pattern '{pattern}', which matches none of {', '.join(filter(None, names))}."
            )
        for name in those:
            if name in found:
                raise UsageError(
                    f"{path} has two patterns for '{name}', '{found[name][0]}' and '{pattern}': each name must match "
                    "one."
                )
            found[name] = pattern, float(number)
    return {name: number for name, (_, number) in found.items()}
