"""Patterns of names. Needs no Warp."""

import re

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
