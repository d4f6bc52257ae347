"""Patterns of names. Needs no Warp."""

import re
from collections.abc import Collection

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
