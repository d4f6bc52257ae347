"""Help of a command: a summary of at most 80 lines, one group of flags, or everything."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import takewhile
from typing import Any

from shoal.cli.flags import Flag, docstring_of, docstring_of_function, flags_of
from shoal.cli.registry import COMMANDS, Command, load
from shoal.errors import UsageError, did_you_mean
from shoal.tasks import registry
from shoal.text import pairs

HELP_FLAGS = ("-h", "--help")
ALL = "all"
"""The value of `--help` that prints everything."""
_MOST_LINES = 80
_WIDEST = 100
_INDENT = " " * 6

_MOST_FLAT = 16
"""Commands with fewer flags have no groups."""
_FEWEST = 8
"""Sections with fewer flags are shown with the section that they belong to."""

_SHOWN_FIRST = re.compile("--(logger|checkpoint|video|video-path|viewer)")
"""Flags that the summary shows although they belong to a group."""
_GROUPS = (
    ("nodes", "Several nodes, over ssh.", "--(hosts|ssh-config|interface)"),
    ("logging", "Metrics writers, and log files of the ranks.", "--(logger|wandb-project|torchrunx-log-dir)"),
    ("checkpoints", "Checkpoints to keep, and the export at the end.", "--(checkpoint|keep-.*|export)"),
    ("evaluation", "Evaluation during the training.", "--eval-.*"),
    ("videos", "Videos: length, interval and size.", "--video(-.*)?"),
    (
        "faults",
        "Restarts, time limits, comparisons of the replicas.",
        "--(max-restarts|min-workers|.*-timeout|check-replicas-every)",
    ),
    ("jobs", "Jobs: retries, order, rebuilds.", "--(retries|rerun-failed|fail-fast|assignment|rebuilds)"),
    ("viewer", "The page or window that shows a policy.", "--viewer(-.*)?"),
    ("env rewards", "Weights and parameters of the reward terms.", r"--env\.(.*-weight|rewards\..*)"),
    ("env observations", "Observation terms: noise, delay, history, scale.", r"--env\.observations\..*"),
    ("env commands", "Commands: ranges, and times between two.", r"--env\.commands\..*"),
    ("env events", "What happens at random: resets, pushes, domain randomization.", r"--env\.events\..*"),
    ("env terminations", "What ends an episode.", r"--env\.terminations\..*"),
    ("env terms", "Actions, contacts and metrics.", r"--env\.(actions|contacts|metrics)\..*"),
    ("env curricula", "Numbers that change in stages, with the steps or a metric.", r"--env\.curricula\..*"),
    ("env sub-terrains", "Numbers of the kinds of sub-terrains of rough terrain.", r"--env\.sub-terrains\..*"),
    (
        "env simulation",
        "Physics engine: time step, sizes, non-finite states.",
        r"--env\.(engine|physics-dt|decimation|on-nan|replay-steps|(lost|diverged)-limit|nconmax|njmax|deterministic|step-graph)",
    ),
)
"""Groups that are taken out of the sections of the configuration: name, description, and the flags."""


_Groups = dict[str, list[Flag]]
"""Flags that are shown together, by the name of the group; those of no group are under the empty name."""


def print_help(command: Command, words: Sequence[str], flags: Sequence[Flag]) -> None:
    """Print the help of a command that `words` request, with the defaults that its flags have."""
    at = next(index for index, word in enumerate(words) if word in HELP_FLAGS)
    name = " ".join(takewhile(lambda word: not word.startswith("-"), words[at + 1 :]))
    groups = _groups_of(flags)
    below = [flag for flag in flags if flag.name.startswith(f"--{name}.")]
    found = next((each for each in (name, name.replace(".", " ", 1)) if each in groups), None)
    if not name or name == ALL:
        lines = [*_head(command), *_described(groups[""])]
        for each, group in groups.items():
            lines += [f"\n-- {each} --", *_described(group, each)] if each else []
        if not name and len(lines) > _MOST_LINES:
            lines = [*_head(command), *_described(_first_flags(groups)), "", *_names_of(groups)]
    elif found is not None or below:
        lines = [f"{command.program}: {name}", *(_described(groups[found], found) if found else _described(below))]
    else:
        known = [each for each in groups if each]
        hint = did_you_mean(name, known) or f" It has: {', '.join(known)}."
        raise UsageError(f"The help of `{command.program}` has no group '{name}'.{hint}")
    _print(lines)


def print_usage(command: Command) -> None:
    """Print what a command is for, the tasks, and the flags that are changed most often, without a task's defaults."""
    shown = [flag for flag in _first_flags(_groups_of(flags_of_command(command))) if flag.name != "--task"]
    named = f"{command.program} {command.operands}"
    more = (
        f"`{named} --help` shows all flags, with that task's defaults; `shoal tasks` says what the tasks are. A task "
        f"of your own: `{command.program} path/to/file.py:Class`."
    )
    tasks = _wrapped(", ".join(registry.registered()), indent="  ")
    lines = [*_head(command), "Tasks:", *tasks, "", "Flags that are changed most often:"]
    for flag in shown:
        first_sentence = re.split(r"(?<=[.;:])( |$)", flag.description)[0].rstrip(".;:")
        lines += _columns(flag.invocation, first_sentence, 28)
    _print([*lines, "", *_wrapped(more)])


def print_overview() -> None:
    """Print the commands of `shoal`."""
    lines = ["usage: shoal COMMAND ...", ""]
    for command in COMMANDS.values():
        lines += _columns(command.name, _about(command), max(map(len, COMMANDS)))
    end = "`shoal COMMAND --help` shows its flags. `train`, `play` and `evaluate` are commands by themselves."
    _print([*lines, "", *_wrapped(end)])


def print_tasks(words: Sequence[str]) -> None:
    """List the tasks."""
    if words:
        raise UsageError(f"`shoal tasks` lists what can be trained and takes no '{words[0]}': leave it out.")
    _print(pairs((spec.name, spec.summary) for spec in registry.registered().values()))


def flags_of_command(command: Command, task: str | None = None, learner: str | None = None) -> list[Flag]:
    """Return the flags of a command, with the defaults of a task and a learner if they are known."""
    kind: Any = load(command.config or "")
    names = {item.name for item in fields(kind)}
    given: dict[str, Any] = {name: "" for name in ("task", "file") if name in names}
    if task is not None and "env" in names:
        spec = registry.resolve(task)
        found = {"env": spec.env, "agent": spec.agent_of(learner or spec.learner)}
        given |= {name: value for name, value in found.items() if name in names}
    return flags_of(kind(**given))


def group_names(flags: Sequence[Flag]) -> list[str]:
    """Return the names of the groups that flags belong to, for completion."""
    split = [name for name, _, pattern in _GROUPS if any(re.fullmatch(pattern, flag.name) for flag in flags)]
    sections = {flag.section for flag in flags} - {""}
    return [*(name.replace(" ", ".") for name in split), *sorted(sections), ALL]


def _groups_of(flags: Sequence[Flag]) -> _Groups:
    """Return all groups."""
    if len(flags) < _MOST_FLAT:
        return {"": [*flags]}
    split: _Groups = {name: [] for name, _, _ in _GROUPS}
    sections: _Groups = {"": []}
    for flag in flags:
        name = next((name for name, _, pattern in _GROUPS if re.fullmatch(pattern, flag.name)), None)
        (split[name] if name else sections.setdefault(flag.section, [])).append(flag)
    for name in reversed(sections):
        parent = sections.get(name.rpartition(".")[0])
        if "." in name and parent is not None and len(sections[name]) < _FEWEST:
            parent += sections[name]
            sections[name] = []
    groups = {name: group for name, group in {"": sections[""], **split, **sections}.items() if group or not name}
    return dict(sorted(groups.items(), key=lambda item: re.split("[. ]", item[0])[0] in {"env", "agent"}))


def _about_group(name: str, group: Sequence[Flag]) -> str:
    """Return the description of a group: its own, or the docstring of the section whose flags it has."""
    of_section = (docstring_of(*flag.path[-2]) for flag in group if flag.section == name != "")
    return next((about for each, about, _ in _GROUPS if each == name), None) or next(of_section, "")


def _first_flags(groups: _Groups) -> list[Flag]:
    """Return the flags that are changed most often."""
    others = (flag for name, group in groups.items() if name for flag in group)
    return [*groups[""], *(flag for flag in others if _SHOWN_FIRST.fullmatch(flag.name))]


def _names_of(groups: _Groups) -> Iterator[str]:
    """Yield the groups of which `_first_flags` are not all."""
    yield f"Groups of flags. `--help GROUP` shows one, `--help {ALL}` everything:"
    first, width = _first_flags(groups), max(map(len, groups))
    for name, group in groups.items():
        if name and any(flag not in first for flag in group):
            yield f"  {name:<{width}}  {re.split(r'[.;]( |$)', _about_group(name, group))[0]}"


def _about(command: Command) -> str:
    return docstring_of_function(f"shoal.{command.run}")


def _head(command: Command) -> list[str]:
    usage = " ".join(filter(None, ["usage:", command.program, command.operands, "[flags]" if command.config else ""]))
    return [usage, "", *_wrapped(_about(command)), ""]


def _described(flags: Sequence[Flag], group: str = "") -> Iterator[str]:
    """Yield the description of a group, and its flags, each with its description and default."""
    about = _about_group(group, flags)
    if about:
        yield from (about, "")
    for flag in flags:
        yield flag.invocation
        yield from _wrapped(f"{flag.description} {flag.shown_default}".strip(), indent=_INDENT)


def _columns(name: str, text: str, width: int) -> list[str]:
    """Return a name with a text beside it, or below it where the name is wide."""
    first, *rest = _wrapped(text, indent=" " * (width + 4))
    if len(name) > width:
        return [f"  {name}", first, *rest]
    return [f"  {name:<{width}}  {first.strip()}", *rest]


def _wrapped(text: str, indent: str = "") -> list[str]:
    wrapper = textwrap.TextWrapper(break_long_words=False, break_on_hyphens=False)
    wrapper.width = min(shutil.get_terminal_size().columns, _WIDEST)
    wrapper.initial_indent = wrapper.subsequent_indent = indent
    return wrapper.wrap(text)


def _print(lines: Iterable[str]) -> None:
    sys.stdout.write("\n".join(lines).rstrip("\n") + "\n")
    sys.stdout.flush()
