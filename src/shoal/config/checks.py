"""Range checks for configurations: a table of rules, and functions that turn a broken rule into a sentence.

Tasks of your own may use them in their `__post_init__`. Whether a value has the type that its annotation says
is not checked here: the command line and `shoal.config.plain` do that, where values come from text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast, get_args

from shoal.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be, in words and as a test."""

    must: str
    """How the sentence `<field> is <value>, but must ...` ends."""
    holds: Callable[[Any], bool]
    """Whether a value obeys; never asked about None, which stands for a default."""


def within(low: float, high: float) -> Rule:
    """Ask for a number of the closed interval from `low` to `high`."""
    return Rule(f"lie in [{low}, {high}]", lambda value: low <= value <= high)


def above(low: float) -> Rule:
    """Ask for a number that is greater than `low`."""
    return Rule(f"be above {low}", lambda value: value > low)


def at_least(low: float) -> Rule:
    """Ask for a number that is not less than `low`."""
    return Rule(f"be at least {low}", lambda value: value >= low)


def even_within(low: int, high: int) -> Rule:
    """Ask for an even number of the closed interval from `low` to `high`."""
    return Rule(f"be even and lie in [{low}, {high}]", lambda value: value % 2 == 0 and low <= value <= high)


def one_of(literal: object) -> Rule:
    """Ask for one of the values of a `Literal`."""
    values = get_args(literal)
    return Rule(f"be one of {listed(values)}", lambda value: value in values)


def each(rule: Rule) -> Rule:
    """Ask for one or more entries that all obey `rule`."""
    return Rule(
        f"have one or more entries, of which each must {rule.must}",
        lambda values: len(values) > 0 and all(rule.holds(value) for value in values),
    )


FILM_SIZE = each(even_within(16, 4096))
"""Of a film [pixels]: colours are stored for squares of two by two, and H.264 goes no further everywhere."""


def refuse_no_mp4(video: str | None) -> None:
    """Refuse a film that is called something else.

    Raises:
        UsageError: It has another suffix.
    """
    if video is not None and not video.endswith(".mp4"):
        message = f"--video is {video}, but a film is an mp4: pass --video film.mp4."
        raise UsageError(message)


def check(config: DataclassInstance, prefix: str, rules: Mapping[str, Rule]) -> None:
    """Hold every field that `rules` names against its rule; None always passes, infinity and NaN never do.

    Args:
        config: The configuration, normally `self` in its own `__post_init__`.
        prefix: What to write before the name of a field, such as ``"env."``.
        rules: The rule of each field.

    Raises:
        UsageError: If a rule is broken.
    """
    for name, rule in rules.items():
        value = getattr(config, name)
        finite = not isinstance(value, float) or math.isfinite(value)
        if value is not None and not (finite and rule.holds(value)):
            must = rule.must if finite else "be finite"
            usual = next((field.default for field in fields(config) if field.name == name), MISSING)
            remedy = "" if usual is MISSING or usual is None else f" The default is {usual!r}."
            message = f"{prefix}{name} is {value!r}, but must {must}.{remedy}"
            raise UsageError(message)


def check_class(
    config: DataclassInstance, chosen: str | None, prefix: str, takes: Mapping[str, Collection[str]]
) -> None:
    """Refuse a `class_name` that rsl_rl does not have, and fields that the named class does not take.

    A class of the user's own, written ``module:Class``, is taken to know what to do with every field.

    Args:
        config: A configuration with a field `class_name`.
        chosen: What that field holds; None stands for no class at all.
        prefix: What to write before the name of a field.
        takes: The class-specific fields of each of rsl_rl's classes.

    Raises:
        UsageError: If the class is unknown, or does not take a field that is given.
    """
    if chosen is not None and is_custom(chosen):
        return
    if chosen is not None and chosen not in takes:
        message = (
            f"{prefix}class_name is {chosen!r}, but rsl_rl has {listed(takes)}.{did_you_mean(chosen, takes)}"
            " A class of your own is written 'module:Class'."
        )
        raise UsageError(message)
    for name in sorted({name for names in takes.values() for name in names}):
        value = getattr(config, name)
        if is_given(value) and (chosen is None or name not in takes[chosen]):
            takers = listed(cls for cls, names in takes.items() if name in names)
            is_section = is_dataclass(value) or isinstance(value, dict)
            asked, remedy = ("given", f"leave {name} out") if is_section else (f"{value!r}", f"{name} to None")
            message = (
                f"{prefix}{name} is {asked}, but class_name is {chosen!r}, which does not take it:"
                f" set class_name to {takers}, or {remedy}."
            )
            raise UsageError(message)


def is_custom(class_name: str) -> bool:
    """Whether a class name points into a module, and so does not name one of rsl_rl's own classes."""
    return ":" in class_name or "." in class_name


def other_code(own: Mapping[str, object], other: Mapping[str, object]) -> tuple[str, str] | None:
    """Return field and name of something that `other` would import and `own` would not, if there is any.

    Args:
        own: A configuration of plain values.
        other: The same from elsewhere.
    """
    known = set(_names_of_code(own, ""))
    return next((each for each in _names_of_code(other, "") if each not in known), None)


def _names_of_code(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield field and value of each name that is imported: the task, and what points into a module."""
    if isinstance(value, Mapping):
        for name, each in cast("Mapping[str, object]", value).items():
            yield from _names_of_code(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from _names_of_code(each, path)
    elif isinstance(value, str):
        section = path.partition(".")[0]
        if section == "task" or (section == "agent" and is_custom(value)) or (section == "env" and ":" in value):
            yield path, value


def is_given(value: object) -> bool:
    """Whether a field says anything: it is not None, not an empty dict, and not a section that is off."""
    return value is not None and value != {} and bool(getattr(value, "enabled", True))


def listed(values: Iterable[object]) -> str:
    """Return values as ``'a', 'b' or 'c'``."""
    words = [repr(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
