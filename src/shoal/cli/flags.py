"""What tyro makes flags of beside the fields of a configuration: positional arguments, and numbers by pattern."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from shoal.config.commands import AgentKind, CheckpointsConfig, ConvertConfig, MotionConfig, PlayConfig, ReplayConfig
from shoal.config.evaluate import CompareConfig, ComparePoliciesConfig, EvaluateConfig
from shoal.config.sweep import SweepConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayFlags(PlayConfig):
    """Flags of `play`. `--agent` selects the source of actions, while the field `agent` is the learner."""

    agent_kind: Annotated[AgentKind, tyro.conf.arg(name="agent")] = "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateFlags(EvaluateConfig):
    """Flags of `evaluate`. `--agent` selects the source of actions, while the field `agent` is the learner."""

    agent_kind: Annotated[AgentKind, tyro.conf.arg(name="agent")] = "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareFlags(CompareConfig):
    """Arguments of `shoal compare A B`: both directories are positional."""

    a: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="A")]
    b: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="B")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePoliciesFlags(ComparePoliciesConfig):
    """Arguments of `shoal compare TASK A B`: both policies are positional."""

    a: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="A", help_behavior_hint="(required)")] = ""
    b: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="B", help_behavior_hint="(required)")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFlags(ReplayConfig):
    """Arguments of `shoal replay`: the file is positional."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MotionFlags(MotionConfig):
    """Arguments of `shoal motion`: the file is positional."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsFlags(CheckpointsConfig):
    """Arguments of `shoal checkpoints`: the run is positional."""

    run: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[RUN]")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFlags(SweepConfig):
    """Arguments of `shoal sweep`: the file is positional."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertFlags(ConvertConfig):
    """Arguments of `shoal convert`: the file is positional."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]


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
