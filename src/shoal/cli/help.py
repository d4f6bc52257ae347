"""Help of a command: a summary of at most 80 lines, one group of flags, or everything.

tyro renders every flag with its type, description and default. This module selects from that text, so that a flag is
described in one place: the docstring of its field.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from shoal.errors import UsageError, did_you_mean

HELP_FLAGS = ("-h", "--help")
ALL = "all"
"""The value of `--help` that prints everything."""
_MOST_LINES = 80
_WIDEST = 100
"""tyro sets groups side by side in wider terminals."""

_MOST_FLAT = 16
"""Commands with fewer flags have no groups."""
_FEWEST = 7
"""Sections with fewer flags are shown with the section that they belong to."""

_SHOWN_FIRST = re.compile("--(logger|checkpoint|video|video-path|viewer)")
"""Flags that the summary shows although they belong to a group."""
_GROUPS = (
    (
        "machines",
        "Several machines, over ssh.",
        "--(hosts|ssh-config|interface)",
    ),
    ("logging", "Metrics writers, and log files of the ranks.", "--(logger|wandb-project|torchrunx-log-dir)"),
    ("checkpoints", "Checkpoints to keep, and the export at the end.", "--(checkpoint|keep-.*|export)"),
    ("evaluation", "Evaluation during the training.", "--eval-.*"),
    ("films", "Films: length, interval and size.", "--video(-.*)?"),
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
    ("env tiles", "Numbers of the kinds of tiles of rough terrain.", r"--env\.tiles\..*"),
    (
        "env simulation",
        "Physics engine: time step, sizes, non-finite states.",
        r"--env\.(engine|physics-dt|decimation|on-nan|replay-steps|lost-limit|nconmax|njmax|deterministic|step-graph)",
    ),
)
"""Groups that are taken out of tyro's: name, description, and the flags."""


@dataclass(slots=True)
class _Group:
    """Flags that are shown together."""

    description: str
    flags: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The lines of each flag, by its name."""


def print_help(words: Sequence[str], program: str, render: Callable[[], object]) -> None:
    """Print the help of a `program` that `words` request, from the text that `render` makes tyro print."""
    at = next(index for index, word in enumerate(words) if word in HELP_FLAGS)
    name = " ".join(takewhile(lambda word: not word.startswith("-"), words[at + 1 :]))
    text = _captured(render)
    groups = _groups_in(text)
    if not name or name == ALL:
        lines = [
            f"\n-- {each} --\n{line}" if not at and each else line
            for each, group in groups.items()
            for at, line in enumerate(_lines_of(group))
        ]
        lines = [*_head(text, program, groups), *lines]
        if not name and len(lines) > _MOST_LINES:
            lines = _summary(text, program, groups)
    else:
        group = groups.get(name) or groups.get(name.replace(".", " ", 1)) or _section(name, groups)
        if group is None:
            known = [each for each in groups if each]
            hint = did_you_mean(name, known) or f" It has: {', '.join(known)}."
            raise UsageError(f"The help of `{program}` has no group '{name}'.{hint}")
        lines = [f"{program}: {name}", *_lines_of(group)]
    sys.stdout.write("\n".join(lines) + "\n")


def group_names(flags: Sequence[str]) -> list[str]:
    """Return the names of the groups that flags belong to, for completion."""
    split = [name for name, _, pattern in _GROUPS if any(re.fullmatch(pattern, flag) for flag in flags)]
    sections = {flag.removeprefix("--").rpartition(".")[0] for flag in flags} - {""}
    return [*(name.replace(" ", ".") for name in split), *sorted(sections), ALL]


def _captured(render: Callable[[], object]) -> str:
    """Return what tyro prints, in one column and with the borders that it draws for UTF-8."""
    os.environ["COLUMNS"] = str(_columns())
    output = io.BytesIO()
    stream = io.TextIOWrapper(output, encoding="utf-8")
    with contextlib.redirect_stdout(stream), contextlib.suppress(SystemExit):
        render()
    stream.flush()
    return output.getvalue().decode()


def _columns() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST)


def _groups_in(text: str) -> dict[str, _Group]:
    """Return all groups by name; flags of no group are under the empty name."""
    split = {name: _Group(description) for name, description, _ in _GROUPS}
    boxes = {"": _Group("")}
    for title, body in re.findall(r"^╭─ (.*?) ─+╮\n(.*?)^╰", text, re.DOTALL | re.MULTILINE):
        lines = [line[2:-2].rstrip() for line in body.splitlines()]
        head = next((at for at, line in enumerate(lines) if line.startswith("─")), -1)
        name = "" if title == "positional arguments" else title.removesuffix("options").strip()
        box = boxes.setdefault(name, _Group(" ".join(lines[: max(head, 0)])))
        for entry in re.split(r"\n(?=\S)", "\n".join(lines[head + 1 :])):
            flag = re.sub(r"^-\w, ", "", entry).split()[0].rstrip(",")
            group = next((split[name] for name, _, flags in _GROUPS if re.fullmatch(flags, flag)), box)
            if flag != "--help":
                group.flags[flag] = entry.splitlines()
    for name in reversed(boxes):
        parent = boxes.get(name.rpartition(".")[0])
        if name and parent is not None and len(boxes[name].flags) < _FEWEST and "." in name:
            parent.flags.update(boxes[name].flags)
            boxes[name].flags.clear()
    root = boxes[""]
    root.flags = dict(sorted(root.flags.items(), key=lambda item: item[0].startswith("-")))
    groups = {"": root, **split, **boxes}
    if sum(len(group.flags) for group in groups.values()) < _MOST_FLAT:
        flags = {flag: lines for group in groups.values() for flag, lines in group.flags.items()}
        return {"": _Group("", flags)}
    groups = {name: group for name, group in groups.items() if group.flags}
    return dict(sorted(groups.items(), key=lambda item: re.split("[. ]", item[0])[0] in {"env", "agent"}))


def _section(prefix: str, groups: Mapping[str, _Group]) -> _Group | None:
    """Return the flags below a dotted name, if there are any."""
    flags = {flag: lines for group in groups.values() for flag, lines in group.flags.items()}
    flags = {flag: lines for flag, lines in flags.items() if flag.startswith(f"--{prefix}.")}
    return _Group("", flags) if flags else None


def _lines_of(group: _Group) -> list[str]:
    described = [group.description, ""] if group.description else []
    return [*described, *(line for lines in group.flags.values() for line in lines)]


def _head(text: str, program: str, groups: Mapping[str, _Group]) -> list[str]:
    positional = [word for word in groups[""].flags if not word.startswith("-")]
    about = text.partition("\n\n")[2].partition("\n\n")[0].strip()
    return [f"usage: {' '.join([program, *positional])} [flags]", "", *textwrap.wrap(about, _columns()), ""]


def _summary(text: str, program: str, groups: Mapping[str, _Group]) -> list[str]:
    """Return the lines of the flags that are changed most often, and the names of the groups."""
    shown = dict(groups[""].flags)
    for group in groups.values():
        shown.update({flag: lines for flag, lines in group.flags.items() if _SHOWN_FIRST.fullmatch(flag)})
    lines = [*_head(text, program, groups), *(line for flag in shown.values() for line in flag), ""]
    width = max(map(len, groups)) + 2
    names = [
        f"  {name:<{width}}{re.split(r'[.;]( |$)', group.description)[0]}"
        for name, group in groups.items()
        if name and not shown.keys() >= group.flags.keys()
    ]
    return [*lines, f"Groups of flags. `--help GROUP` shows one, `--help {ALL}` everything:", *names]
