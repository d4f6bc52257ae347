"""Shell completion: the scripts for bash, zsh and fish, and the candidates that they ask for.

The scripts call `shoal completion candidates`, which reads the configurations alone: neither tyro nor a simulator is
imported, and no file of a user's own task.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

from shoal.cli.help import HELP_FLAGS, flags_of_command, group_names
from shoal.cli.registry import COMMANDS
from shoal.config.checks import listed
from shoal.config.commands import UNTRAINED
from shoal.config.learners import LEARNERS
from shoal.errors import UsageError
from shoal.tasks import registry

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
    "--checkpoint": ("latest", "best", "best-of-runs", "shipped"),
    "--policy": ("latest", "best", "best-of-runs", "shipped", *UNTRAINED),
    "--hosts": ("slurm",),
    "--learner": tuple(LEARNERS),
    "--resume": ("latest",),
}
"""Values of flags that take others too."""


def complete(words: Sequence[str]) -> None:
    """Print the completion script of a shell."""
    if words[:1] == ["candidates"]:  # What the scripts ask for.
        sys.stdout.write("".join(f"{word}\n" for word in candidates(words[1:])))
    elif len(words) == 1 and words[0] in SCRIPTS:
        sys.stdout.write(SCRIPTS[words[0]])
    else:
        raise UsageError(f"`shoal completion` has no script for '{' '.join(words)}': pass {listed(SCRIPTS)}.")


def candidates(words: Sequence[str]) -> list[str]:
    """Return what can replace the last of `words`, the command line up to the cursor; it may be empty."""
    words = [word for word in words if word != "="]  # bash splits --flag=value.
    name, before, current = Path(words[0]).name, words[1:-1], words[-1]
    if name == "shoal":
        if not before:
            return _starting(current, COMMANDS)
        name, before = before[0], before[1:]
    command = COMMANDS.get(name)
    if command is None or command.config is None:
        return _starting(current, SCRIPTS if name == "completion" else ())
    tasks = registry.registered()
    task = next((word for word in before if word in tasks), None)
    learner = next((word for flag, word in pairwise(before) if flag == "--learner" and word in LEARNERS), None)
    flags = flags_of_command(command, task, learner)
    last = before[-1] if before else ""
    if last in HELP_FLAGS:
        return _starting(current, group_names(flags))
    if last == "--task" or (not before and not current.startswith("-") and "TASK" in command.operands):
        return _starting(current, tasks)
    if current.startswith("-"):
        switches = [flag.negated for flag in flags if flag.kind is bool]
        return _starting(current, [*(flag.name for flag in flags), *switches, "--help"])
    values = next((_VALUES.get(flag.name, flag.choices) for flag in flags if flag.name == last), ())
    return _starting(current, values)


def _starting(start: str, words: Collection[str]) -> list[str]:
    return [word for word in words if word.startswith(start)]
