"""Shell completion: the scripts for bash, zsh and fish, and the candidates that they ask for.

The scripts call `shoal completion candidates`, which reads the configurations alone: neither tyro nor a simulator is
imported, and no file of a user's own task.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from shoal import config as configs
from shoal.cli.help import HELP_FLAGS, group_names
from shoal.config.evaluate import ComparePoliciesConfig, EvaluateConfig
from shoal.config.learners import LEARNERS
from shoal.config.sweep import SweepConfig
from shoal.tasks import registry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_BASH = """\
_shoal_complete() {
    local shoal=shoal IFS=$'\\n'
    [[ $1 == */* ]] && shoal=${1%/*}/shoal
    COMPREPLY=($("$shoal" completion candidates "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null))
}
complete -o default -F _shoal_complete shoal train play evaluate
"""

_ZSH = """\
#compdef shoal train play evaluate
_shoal_complete() {
    local shoal=shoal
    [[ $words[1] == */* ]] && shoal=${words[1]:h}/shoal
    local -a found=("${(@f)$("$shoal" completion candidates "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    [[ -n $found ]] && compadd -a found || _files
}
compdef _shoal_complete shoal train play evaluate
"""

_FISH = """\
function __shoal_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l shoal shoal
    string match -q '*/*' -- $words[1]; and set shoal (dirname $words[1])/shoal
    $shoal completion candidates $words 2>/dev/null
end
for name in shoal train play evaluate
    complete -c $name -a '(__shoal_complete)'
end
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

_VALUES = {
    "--gpu-ids": ("all", "None"),
    "--checkpoint": ("latest", "best", "best-of-runs"),
    "--hosts": ("slurm",),
    "--learner": tuple(LEARNERS),
}
"""Values of flags that take others too."""
_CONFIGS: dict[str, type[DataclassInstance]] = {
    "train": configs.TrainConfig,
    "play": configs.PlayConfig,
    "evaluate": EvaluateConfig,
    "compare": ComparePoliciesConfig,
    "export": configs.ExportConfig,
    "bench": configs.BenchConfig,
    "check-env": configs.CheckEnvConfig,
    "doctor": configs.DoctorConfig,
    "sweep": SweepConfig,
    "replay": configs.ReplayConfig,
    "motion": configs.MotionConfig,
    "runs": configs.RunsConfig,
    "convert": configs.ConvertConfig,
}
_WITHOUT_A_TASK = {"sweep", "replay", "motion", "convert", "tasks", "completion"}
_POSITIONAL = {"--file", "--a", "--b"}


def candidates(words: Sequence[str], commands: Collection[str]) -> list[str]:
    """Return what can replace the last of `words`, the command line up to the cursor; it may be empty."""
    words = [word for word in words if word != "="]  # bash splits --flag=value.
    command, before, current = Path(words[0]).name, words[1:-1], words[-1]
    if command == "shoal":
        if not before:
            return _starting(current, commands)
        command, before = before[0], before[1:]
    if command == "completion":
        return _starting(current, SCRIPTS)
    tasks = registry.registered()
    task = next((word for word in before if word in tasks), None)
    learner = next((word for flag, word in pairwise(before) if flag == "--learner" and word in LEARNERS), None)
    flags = _flags_of_command(command, task, learner)
    last = before[-1] if before else ""
    if last in HELP_FLAGS:
        return _starting(current, group_names(list(flags)))
    if last == "--task" or (not before and not current.startswith("-") and command not in _WITHOUT_A_TASK):
        return _starting(current, tasks)
    return _starting(current, [*flags, "--help"] if current.startswith("-") else flags.get(last, ()))


def _starting(start: str, words: Collection[str]) -> list[str]:
    return [word for word in words if word.startswith(start)]


def _flags_of_command(command: str, task: str | None, learner: str | None) -> dict[str, tuple[str, ...]]:
    """Return the flags of a command, each with the values that are known."""
    kind = _CONFIGS.get(command)
    if kind is None:
        return {}
    names = [item.name for item in fields(kind)]
    given: dict[str, Any] = {name: "" for name in ("task", "file") if name in names}
    if task is not None and "env" in names:
        spec = registry.resolve(task)
        given |= {"env": spec.env, "agent": spec.agent_of(learner or spec.learner)}
    flags = dict(_flags_of(kind(**given), "--"))
    if "--agent-kind" in flags:
        flags["--agent"] = flags.pop("--agent-kind")
    if kind is configs.TrainConfig:
        flags |= {"--config": (), "--save-interval": ()}
    return {flag: values for flag, values in flags.items() if flag not in _POSITIONAL}


def _flags_of(config: DataclassInstance, prefix: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the flags of a configuration, as tyro names them, and their values."""
    hints = get_type_hints(type(config))
    for item in fields(config):
        name, value = item.name.replace("_", "-"), getattr(config, item.name)
        if is_dataclass(value) and not isinstance(value, type):
            yield from _flags_of(value, f"{prefix}{name}.")
        elif isinstance(value, dict) and hints[item.name] != dict[str, float]:
            yield from ((f"{prefix}{name}.{key}", ()) for key in cast("dict[str, Any]", value))
        else:
            yield prefix + name, _VALUES.get(prefix + name, _choices(hints[item.name]))
            if hints[item.name] is bool:
                yield f"{prefix}no-{name}", ()


def _choices(kind: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Return the values of a Literal, or of the Literals of a union."""
    if get_origin(kind) is Literal:
        return tuple(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(choice for member in get_args(kind) for choice in _choices(member))
    return ()
