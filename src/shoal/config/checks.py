"""Range checks of configurations: rules, and functions that raise a UsageError for a broken one.

A rule stands in the annotation of its field, ``Annotated[int, at_least(1)]``. Types are not checked here: the command
line and `shoal.config.plain` do that, where values come from text.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, cast, get_args, get_origin, get_type_hints

from shoal.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Config:
    """Base of all configurations: dataclasses that check the rules of their fields when they are made."""

    __slots__ = ()
    prefix: ClassVar[str] = ""
    """Written before the name of a field in errors, such as ``"env."``; ``"--"`` makes the name a flag."""
    classes: ClassVar[Mapping[str, Collection[str]]] = MappingProxyType({})
    """Where there is a `class_name`: rsl_rl's classes, each with the fields that not all of them take."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and a `class_name` that does not exist, or does not take the fields given."""
        config = cast("DataclassInstance", self)
        check(config, self.prefix, rules_of(type(config)))
        if self.classes:
            _check_class(config, self.prefix, self.classes)


class FlagsConfig(Config):
    """Base of configurations whose fields are flags of a command."""

    __slots__ = ()
    prefix = "--"


@cache
def rules_of(cls: type[DataclassInstance]) -> dict[str, Rule]:
    """Return the rules in the annotations of a configuration; a Literal is one too.

    A subclass that declares a field again, with another default, keeps the rule of its base. Without a rule, numbers
    must be finite, or where the default is infinite no NaN.
    """
    bases = [base for base in reversed(cls.__bases__) if is_dataclass(base)]
    rules = {name: rule for base in bases for name, rule in rules_of(base).items()}
    for name, kind in get_type_hints(cls, include_extras=True).items():
        members = get_args(kind) if get_origin(kind) in (Annotated, Union, types.UnionType) else (kind,)
        for part in members:
            if isinstance(part, Rule) or get_origin(part) is Literal:
                rules[name] = part if isinstance(part, Rule) else one_of(part)
    for field in fields(cls):
        if rules.setdefault(field.name, FINITE) is FINITE and not FINITE.holds(field.default):
            rules[field.name] = NOT_NAN
    return rules


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on a value, in words and as a test."""

    must: str
    """End of the sentence `<field> is <value>, but must ...`."""
    holds: Callable[[Any], bool]
    """Whether a value obeys; never called with None, which stands for a default."""


def _all_numbers(value: object, holds: Callable[[float], bool]) -> bool:
    """Whether all floating-point numbers in a value obey."""
    if isinstance(value, Mapping):
        value = tuple(cast("Mapping[object, object]", value).values())
    if isinstance(value, (tuple, list)):
        return all(_all_numbers(each, holds) for each in cast("Sequence[object]", value))
    return not isinstance(value, float) or holds(value)


FINITE = Rule("be finite", lambda value: _all_numbers(value, math.isfinite))
NOT_NAN = Rule("be a number or infinity", lambda value: _all_numbers(value, lambda number: not math.isnan(number)))


class Source(Enum):
    """The files that may supply a field of a training, besides its flag. It stands in the annotation of the field."""

    RUN = "a run's own params/train.yaml, and files that --config names"
    CONFIG = "files that --config names: what is written or contacted, and where"
    FLAG = "none: what programs are started, on which nodes, and what they load"


@cache
def sources_of(cls: type[DataclassInstance]) -> dict[str, Source]:
    """Return the source of each field of a configuration that says it."""
    hints = get_type_hints(cls, include_extras=True).items()
    return {name: part for name, kind in hints for part in get_args(kind) if isinstance(part, Source)}


def within(low: float, high: float) -> Rule:
    """Require a number of the closed interval from `low` to `high`."""
    return Rule(f"lie in [{low}, {high}]", lambda value: low <= value <= high)


def above(low: float) -> Rule:
    """Require a number greater than `low`."""
    return Rule(f"be above {low}", lambda value: value > low)


def at_least(low: float) -> Rule:
    """Require a number not less than `low`."""
    return Rule(f"be at least {low}", lambda value: value >= low)


WIDTH = within(1, 2**16)
"""Units of a layer. A typing error, or another's file, that asks for more ends here, and not for want of memory."""
SEED = within(0, 2**31 - 1)
"""A seed that every library takes, and none reduces to another one: Warp's kernels take signed numbers of 32 bits."""
RANGE = Rule("be finite, the smaller number first", lambda values: -math.inf < values[0] <= values[-1] < math.inf)


def one_of(literal: object) -> Rule:
    """Require one of the values of a `Literal`."""
    values = get_args(literal)
    return Rule(f"be one of {listed(values)}", lambda value: value in values)


def each(rule: Rule) -> Rule:
    """Require one or more entries that all obey `rule`."""
    return Rule(
        f"have one or more entries, of which each must {rule.must}",
        lambda values: len(values) > 0 and all(rule.holds(value) for value in values),
    )


def file_like(example: str) -> Rule:
    """Require a path with the suffix of an example."""
    suffix = PurePath(example).suffix
    return Rule(f"end with {suffix}, such as {example}", lambda path: path.endswith(suffix))


VIDEO_SIZE = each(Rule("be even and lie in [16, 4096]", lambda value: value % 2 == 0 and 16 <= value <= 4096))  # noqa: PLR2004
"""Width and height of a video [pixels]: even, for subsampled colours, and at most what every H.264 decoder takes."""

HIGHEST_PORT = 65535


def check(config: DataclassInstance, prefix: str, rules: Mapping[str, Rule]) -> None:
    """Check every field that `rules` names; None always passes, NaN never does, and infinity only with `NOT_NAN`.

    Errors have `prefix`, such as ``"env."``, before the name of a field; with ``"--"`` the name is written as a flag.
    """
    for name, rule in rules.items():
        value = getattr(config, name)
        finite = not isinstance(value, float) or rule is NOT_NAN or math.isfinite(value)
        if value is not None and not (finite and rule.holds(value)):
            must = rule.must if finite else "be finite"
            usual = next((field.default for field in fields(config) if field.name == name), MISSING)
            remedy = "" if usual is MISSING or usual is None else f" The default is {usual!r}."
            shown = name.replace("_", "-") if prefix == "--" else name
            raise UsageError(f"{prefix}{shown} is {value!r}, but must {must}.{remedy}")


def _check_class(config: DataclassInstance, prefix: str, takes: Mapping[str, Collection[str]]) -> None:
    """Refuse a `class_name` that rsl_rl does not have, and fields that the named class does not take.

    A class of the user's own, written ``module:Class``, may take any field; None is no class at all. `takes` has the
    class-specific fields of each of rsl_rl's classes, and errors have `prefix` before the name of a field.
    """
    chosen: str | None = getattr(config, "class_name")  # noqa: B009  Of the configurations that have classes.
    if chosen is not None and is_custom(chosen):
        return
    if chosen is not None and chosen not in takes:
        raise UsageError(
            f"{prefix}class_name is {chosen!r}, but rsl_rl has {listed(takes)}.{did_you_mean(chosen, takes)}"
            " A class of your own is written 'module:Class'."
        )
    for name in sorted({name for names in takes.values() for name in names}):
        value = getattr(config, name)
        if is_given(value) and (chosen is None or name not in takes[chosen]):
            takers = listed(cls for cls, names in takes.items() if name in names)
            shown, instead = ("given", "leave it out") if is_dataclass(value) else (repr(value), f"{name} to None")
            raise UsageError(
                f"{prefix}{name} is {shown}, but class_name is {chosen!r}, which does not take it:"
                f" set class_name to {takers}, or {instead}."
            )


def is_custom(class_name: str) -> bool:
    """Whether a class name contains a module, and so is none of rsl_rl's own classes."""
    return ":" in class_name or "." in class_name


def foreign_code(own: Sequence[Mapping[str, object]], other: Sequence[Mapping[str, object]]) -> tuple[str, str] | None:
    """Return field and name of code that the configurations `other` import and `own` do not, if there is any."""
    known = {name for each in own for name in _names_of_code(each, "")}
    return next((name for each in other for name in _names_of_code(each, "") if name not in known), None)


def _names_of_code(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield field and value of each string that may be a name to import: the task, and those that may contain a module.

    Strings of unknown fields count, too. In the environment, where files and patterns have dots, only a colon counts.
    """
    if isinstance(value, Mapping):
        for name, each in cast("Mapping[str, object]", value).items():
            yield from _names_of_code(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from _names_of_code(each, path)
    elif isinstance(value, str):
        section = path.partition(".")[0]
        if section == "task" or ":" in value or (section != "env" and is_custom(value)):
            yield path, value


def is_given(value: object) -> bool:
    """Whether a field has a value: it is neither None nor a section that is off."""
    return value is not None and bool(getattr(value, "enabled", True))


def listed(values: Iterable[object]) -> str:
    """Return values as ``'a', 'b' or 'c'``."""
    words = [repr(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
