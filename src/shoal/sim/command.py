"""What a policy is told to follow, as viewers and exports know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A number that a policy is told to follow, such as a speed."""

    low: float
    """The least that makes sense."""
    high: float
    """The most that makes sense."""
    unit: str = ""
    """What it is counted in, such as ``"m/s"``."""
