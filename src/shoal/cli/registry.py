"""All commands: the only list of them, from which parsing, help, completion and the reference follow.

Parts of a command are named, not imported, so that help and errors of one command import nothing of the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """One command. Functions and classes are named as `module:attribute`, below `shoal`."""

    name: str
    operands: str
    """What it takes before its flags, as in its usage: `TASK`, `FILE`; in brackets what may be left out."""
    run: str
    """Function that does the work, and whose docstring says what the command does. It returns what is printed, if
    anything: lines, or an object with `lines()`, `to_plain()` for `--json`, and perhaps an `error` to end with."""
    config: str | None = None
    """The configuration, whose fields are the flags. None for a command without flags, whose `run` takes the words, and
    may return lines."""
    parse: str = "cli.parse:parse_simple"
    """Function that makes the arguments of `run` from this command and the words; the configuration comes first."""

    @property
    def program(self) -> str:
        """The command as it is typed."""
        return self.name if self.name in ("train", "play", "evaluate") else f"shoal {self.name}"


def load(name: str) -> Callable[..., Any]:
    """Import what `module:attribute` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"shoal.{module}"), attribute)


_POLICY, _EVALUATION, _COMPARISON = (f"cli.parse:parse_{name}" for name in ("policy", "evaluation", "comparison"))
_ALL = (
    Command("demo", "[TASK]", "cli.launched:demo", "config:DemoConfig"),
    Command("train", "TASK", "cli.launched:train", "config:TrainConfig", "cli.parse:parse_training"),
    Command("play", "TASK", "cli.launched:play", "config:PlayConfig", _POLICY),
    Command("evaluate", "TASK", "cli.launched:evaluate", "config.evaluate:EvaluateConfig", _EVALUATION),
    Command("sweep", "FILE", "cli.launched:sweep", "config.sweep:SweepConfig"),
    Command("compare", "[TASK] A B", "cli.launched:compare", "config.evaluate:ComparePoliciesConfig", _COMPARISON),
    Command("export", "TASK", "commands.export:export", "config:ExportConfig", _POLICY),
    Command("replay", "FILE", "commands.replay:replay", "config:ReplayConfig"),
    Command("motion", "FILE", "commands.motion:inspect_motion", "config:MotionConfig"),
    Command("runs", "[TASK|RUN]", "commands.runs:list_or_verify", "config:RunsConfig"),
    Command("convert", "FILE", "commands.convert:convert", "config:ConvertConfig"),
    Command("tasks", "", "cli.help:print_tasks"),
    Command("new", "NAME", "commands.new:new"),
    Command("doctor", "[TASK]", "cli.launched:doctor", "config:DoctorConfig"),
    Command("check-env", "TASK", "commands.check_env:check", "config:CheckEnvConfig"),
    Command("completion", "{bash,zsh,fish}", "cli.completion:complete"),
    Command("bench", "TASK", "cli.launched:bench", "config:BenchConfig"),
)
COMMANDS = {command.name: command for command in _ALL}
