"""Noise of observations, as values of their fields `noise` and `bias`."""

# ruff: noqa: N802  A declaration reads as a value; the class of each is made for its parameters.

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, cast

from shoal.config.checks import at_least
from shoal.mdp.terms import Term, declare

Numbers = float | tuple[float, ...] | Mapping[str, float]
"""A number for all columns, or one for each, in order or by pattern of their names."""


@dataclass(frozen=True, kw_only=True)
class Noise(Term):
    """Errors that are drawn for each column; each number may be one for all columns, or numbers by pattern."""

    operation: Literal["add", "scale", "abs"] = "add"
    """What becomes of the value: the error is added, a factor, or instead of it."""


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Noise):
    """Errors of a normal distribution."""

    by_column: ClassVar[frozenset[str]] = frozenset({"mean", "std"})
    mean: float = 0.0
    """Mean."""
    std: Annotated[float, at_least(0)] = 1.0
    """Standard deviation."""


@dataclass(frozen=True, kw_only=True)
class UniformNoise(Noise):
    """Errors drawn uniformly between two numbers."""

    by_column: ClassVar[frozenset[str]] = frozenset({"n_min", "n_max"})
    n_min: float = -1.0
    """Least error."""
    n_max: float = 1.0
    """Largest error."""


def Gaussian(std: Numbers, *, mean: Numbers = 0.0, operation: str = "add") -> GaussianNoise:
    """Return errors of a normal distribution, as `noise` or `bias` of an observation."""
    return declare(GaussianNoise, "gaussian", {"mean": mean, "std": std, "operation": operation})


def Uniform(n_min: Numbers, n_max: Numbers, *, operation: str = "add") -> UniformNoise:
    """Return errors between two numbers, as `noise` or `bias` of an observation."""
    return declare(UniformNoise, "uniform", {"n_min": n_min, "n_max": n_max, "operation": operation})


def silenced(noise: Any) -> Any:
    """Return the same noise without errors."""
    if isinstance(noise, Noise):
        zeros = {each.name: silenced(getattr(noise, each.name)) for each in fields(noise)}
        return replace(noise, **zeros | {"operation": "add"})
    if isinstance(noise, Mapping):
        return dict.fromkeys(cast("Mapping[str, float]", noise), 0.0)
    return (0.0,) * len(noise) if isinstance(noise, tuple) else 0.0


def is_noisy(noise: Any) -> bool:
    """Whether there are errors."""
    return noise != silenced(noise)
