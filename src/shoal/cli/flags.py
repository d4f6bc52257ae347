"""What tyro makes flags of beside the fields of a configuration: positional arguments, and numbers by pattern."""

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import tyro

from shoal.config.commands import AgentKind, ConvertConfig, MotionConfig, PlayConfig, ReplayConfig
from shoal.config.evaluate import CompareConfig, ComparePoliciesConfig, EvaluateConfig
from shoal.config.sweep import SweepConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayFlags(PlayConfig):
    """Flags of `play`. `--agent` selects the source of actions, while the field `agent` is the learner."""

    agent_kind: Annotated[AgentKind, tyro.conf.arg(name="agent")] = "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateFlags(EvaluateConfig):
    """Flags of `evaluate`. `--agent` selects the source of actions, while the field `agent` is the learner."""

    agent_kind: Annotated[AgentKind, tyro.conf.arg(name="agent")] = "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePoliciesFlags(ComparePoliciesConfig):
    """Arguments of `shoal compare TASK A B`: both policies are positional."""

    a: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="A", help_behavior_hint="(required)")] = ""
    b: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="B", help_behavior_hint="(required)")] = ""


def _positional(kind: type[T], **metavars: str) -> type[T]:
    """Return a configuration some of whose fields are positional arguments, with these names in its help."""
    config, hints = cast("Any", kind), get_type_hints(kind)
    made = [
        (
            each.name,
            Annotated[tyro.conf.Positional[hints[each.name]], tyro.conf.arg(metavar=metavar)],
            field(default=each.default),
        )
        for each in fields(config)
        if (metavar := metavars.get(each.name))
    ]
    return make_dataclass(kind.__name__, made, bases=(kind,), frozen=True, slots=True, kw_only=True)


CompareFlags = _positional(CompareConfig, a="A", b="B")
ReplayFlags = _positional(ReplayConfig, file="FILE")
MotionFlags = _positional(MotionConfig, file="FILE")
SweepFlags = _positional(SweepConfig, file="FILE")
ConvertFlags = _positional(ConvertConfig, file="FILE")


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
