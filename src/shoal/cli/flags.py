"""What tyro makes flags of beside the fields of a configuration: positional arguments, and numbers by pattern."""

from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import tyro

from shoal.config.commands import ConvertConfig, MotionConfig, PlayConfig, ReplayConfig
from shoal.config.evaluate import CompareConfig, ComparePoliciesConfig, EvaluateConfig
from shoal.config.sweep import SweepConfig

T = TypeVar("T")


def _flags(kind: type[T], **marks: Any) -> type[T]:  # noqa: ANN401  Whatever `tyro.conf.arg` returns.
    """Return a configuration of which some fields have tyro's marks: a name or, of a positional argument, a metavar."""
    config, hints = cast("Any", kind), get_type_hints(kind)
    made: list[Any] = []
    for each in fields(config):
        mark, hint = marks.get(each.name), hints[each.name]
        if isinstance(mark, str):
            required = "(required)" if each.default == "" else None
            mark = tyro.conf.arg(metavar=mark, help_behavior_hint=required)
            hint = tyro.conf.Positional[hint]
        if mark:
            made.append((each.name, Annotated[hint, mark], field(default=each.default)))
    return make_dataclass(kind.__name__, made, bases=(kind,), frozen=True, slots=True, kw_only=True)


_SOURCE = tyro.conf.arg(name="agent")
"""`--agent` selects the source of actions, while the field `agent` is the learner."""
PlayFlags = _flags(PlayConfig, agent_kind=_SOURCE)
EvaluateFlags = _flags(EvaluateConfig, agent_kind=_SOURCE)
CompareFlags = _flags(CompareConfig, a="A", b="B")
ComparePoliciesFlags = _flags(ComparePoliciesConfig, a="A", b="B")
ReplayFlags = _flags(ReplayConfig, file="FILE")
MotionFlags = _flags(MotionConfig, file="FILE")
SweepFlags = _flags(SweepConfig, file="FILE")
ConvertFlags = _flags(ConvertConfig, file="FILE")


PATTERNS = tyro.constructors.ConstructorRegistry()
"""Makes tyro read a ``dict[str, float]`` from one flag, which replaces all of it: it has one for each key otherwise."""


@PATTERNS.primitive_rule  # pyright: ignore[reportUnknownMemberType]
def _numbers_by_pattern(info: Any) -> tyro.constructors.PrimitiveConstructorSpec[dict[str, float]] | None:  # noqa: ANN401
    if info.type != dict[str, float]:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="[PATTERN FLOAT ...]",
        instance_from_str=_parsed,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [
            word for pattern, number in value.items() for word in (pattern, f"{number:g}")
        ],
    )


def _parsed(words: list[str]) -> dict[str, float]:
    if len(words) % 2:
        raise ValueError(f"{len(words)} words, but patterns and numbers in turn are needed")
    return {pattern: float(number) for pattern, number in zip(words[::2], words[1::2], strict=True)}
