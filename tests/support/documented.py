"""The commands that README.md and docs/ show: found, made small, and held against the output that the pages show.

A command stands in a fenced block of `console` (after ``$ ``, with its output below), `bash` or `sh`. What happens to
it is said in HTML comments directly above the block:

- nothing: it is run, in a directory that has `docs/examples` and the runs of the pages before.
- ``<!-- exits with 2 -->``: it is run, and fails so.
- ``<!-- planned on 4 GPUs -->``: it is planned, as by `--dry-run`, on a machine with so many GPUs that is not there.
- ``<!-- run in soak: reason -->``: it is run where soak tests are, and its flags are read elsewhere.
- ``<!-- parsed only: reason -->``: its flags are read, and no more.
- ``<!-- not run: reason -->``: it is left alone.

A comment with ``of `words` `` before its colon is about the command of the block that contains these words.

What is run is made small: `uv run` and the installation are dropped, since the tests already run in the
environment; trainings get 64 environments and a hundredth of their iterations, `shoal bench` one short turn. Numbers
in the output may therefore differ from those on the page. A plan or a refusal is held to the digit. ``...`` stands
for anything.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
LANGUAGES = frozenset({"console", "bash", "sh"})
TIME_LIMIT_S = 240.0
REFUSED = 2
ITERATIONS_DIVISOR = 50
SMALL_BENCH = " --num-envs 64 --iterations 1 --warmup 1 --repeats 1 --seconds 0.1"

_FENCE = re.compile(r" *```(?P<info>[^\s`]*)[^`]*")
_COMMENT = re.compile(r"<!-- (?P<text>.*?) -->")
_OF_ONE = re.compile(r" of `(?P<words>.+?)`(?=:)")
_PLANNED = re.compile(r"planned on (?P<gpus>\d+) GPUs?")
_TRAINING = re.compile(r"(^|\s)train\s(?!.*--dry-run)")
_VARIABLE = (
    # What differs from run to run: fingerprints, numbers, and the dash of a number that is not there yet.
    re.compile(r"\b[0-9a-f]{16}\b"),
    re.compile(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?"),
    re.compile(r"(?<=\s)-(?=[\s,]|$)"),
)
_LAUNCH_VARIABLE = re.compile(r"(MASTER|TORCH|WARP_CACHE|SHOAL|WANDB)|(LOCAL_|GROUP_|NODE_)?(RANK|WORLD_SIZE)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a page."""

    page: str
    line: int
    text: str
    shown: tuple[str, ...] = ()
    """The lines that the page shows as its output."""
    comments: tuple[str, ...] = ()
    """What is said about it above its block."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def gpus(self) -> int | None:
        """How many GPUs the machine has that it is planned on; None when it is not only planned."""
        return next((int(match["gpus"]) for text in self.comments if (match := _PLANNED.fullmatch(text))), None)

    @property
    def exit_code(self) -> int:
        """What it exits with."""
        return next((int(text.split()[-1]) for text in self.comments if text.startswith("exits with ")), 0)

    @property
    def is_exact(self) -> bool:
        """Whether its output is held to the digit: nothing is trained, so no number depends on the machine."""
        return self.gpus is not None or self.exit_code == REFUSED or "--dry-run" in self.text

    def is_said_to_be(self, what: str) -> bool:
        """Whether a comment says so, with a reason."""
        return any(text.startswith(f"{what}: ") and len(text) > len(what) + 2 for text in self.comments)

    @property
    def is_parsed(self) -> bool:
        """Whether its flags are read without running it."""
        return self.is_said_to_be("parsed only") or self.is_said_to_be("run in soak")

    @property
    def is_run(self) -> bool:
        """Whether it is run as a user runs it."""
        return self.gpus is None and not self.is_said_to_be("parsed only") and not self.is_said_to_be("not run")

    @property
    def small(self) -> str:
        """The command as it is run here."""
        text = self.text.removeprefix("python3 -m pip install uv && ").removeprefix("make setup && ")
        text = text.replace("uv run ", "")
        if "shoal bench" in text:
            return text + SMALL_BENCH
        return _small_training(text) if _TRAINING.search(text) else text


def _small_training(text: str) -> str:
    """Make a training small by its flags; the last of two equal flags counts."""
    asked = re.search(r"--max-iterations (\d+)", text)
    iterations = max(1, int(asked[1]) // ITERATIONS_DIVISOR) if asked else 2
    envs = "--num-envs-total 128" if "--num-envs-total" in text else "--num-envs 64"
    # The plain command of each task exports its policy; the others need not.
    export = "" if re.fullmatch(r"train \S+", text) else " --no-export"
    return f"{text} {envs} --max-iterations {iterations}{export}"


def commands_of(text: str, page: str) -> list[Command]:
    """Return the commands that a page shows, in order."""
    found: list[Command] = []
    comments: list[str] = []
    block: list[tuple[int, str]] | None = None
    language = ""
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.fullmatch(line)
        if block is not None:
            if fence and not fence["info"]:
                found += _commands_of_block(block, page, language, tuple(comments))
                block, comments = None, []
            else:
                block.append((number, line))
        elif fence:
            block, language = [], fence["info"]
        elif comment := _COMMENT.fullmatch(line.strip()):
            comments.append(comment["text"])
        else:
            comments = []
    return found


def _commands_of_block(
    block: list[tuple[int, str]], page: str, language: str, comments: tuple[str, ...]
) -> list[Command]:
    if language not in LANGUAGES:
        return []
    commands: list[tuple[int, str, list[str]]] = []
    for number, raw in block:
        line = raw.strip()
        if commands and commands[-1][1].endswith("\\"):
            at, begun, shown = commands[-1]
            commands[-1] = (at, f"{begun[:-1].rstrip()} {line}", shown)
        elif language != "console":
            if line and not line.startswith("#"):
                commands.append((number, line.partition("  #")[0].rstrip(), []))
        elif line.startswith("$ "):
            commands.append((number, line[2:], []))
        elif commands and line:
            commands[-1][2].append(raw)
    return [
        Command(page=page, line=number, text=text, shown=tuple(shown), comments=_comments_on(text, comments))
        for number, text, shown in commands
    ]


def _comments_on(text: str, comments: tuple[str, ...]) -> tuple[str, ...]:
    named = {comment: _OF_ONE.search(comment) for comment in comments}
    return tuple(_OF_ONE.sub("", each) for each, of in named.items() if of is None or of["words"] in text)


def script(file: Path) -> ModuleType:
    """Import a script of the pages."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # Its dataclasses look there.
    spec.loader.exec_module(module)
    return module


def pages() -> list[Path]:
    """Return README.md and the pages of docs/, in the order in which they are read."""
    index = ROOT / "docs" / "index.md"
    toctrees = re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(encoding="utf-8"), re.DOTALL)
    names = [line for toctree in toctrees for line in toctree.splitlines() if line and not line.startswith(":")]
    return [ROOT / "README.md", index, *(index.parent / f"{name}.md" for name in names)]


def documented_commands() -> list[Command]:
    """Return every command of every page."""
    return [
        command
        for page in pages()
        for command in commands_of(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
    ]


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a command."""

    exit_code: int
    output: str
    """Standard output and standard error together."""


def run(command: Command, directory: Path, executables: Path) -> Ran:
    """Run a command on the CPU, without what a launcher or a user may have left in the environment.

    Args:
        command: It is made small.
        directory: Where it is run.
        executables: The folder of Shoal's commands, such as that of `WarmCommands`.
    """
    environ = {name: value for name, value in os.environ.items() if not _LAUNCH_VARIABLE.match(name)}
    environ |= {
        "PATH": f"{executables}:{Path(sys.executable).parent}:{environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    environ |= {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        ["bash", "-c", command.small],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
    )
    return Ran(done.returncode, done.stdout)


def not_printed(shown: tuple[str, ...], output: str, *, exact: bool = False) -> list[str]:
    """Return the lines that a page shows and that the output does not have, in that order.

    Args:
        shown: The lines of the page.
        output: What was printed.
        exact: Whether numbers must be the same.
    """
    compared = _plain if exact else _without_numbers
    printed = iter([compared(line) for line in output.splitlines()])
    missing: list[str] = []
    for line in shown:
        if line.strip() == "...":
            continue
        parts = [re.escape(part.strip()) for part in compared(line).split("...")]
        if not any(re.fullmatch(".*".join(parts), each) for each in printed):
            missing.append(line)
    return missing


def _without_numbers(line: str) -> str:
    for pattern in _VARIABLE:
        line = pattern.sub("#", line)
    return _plain(line)


def _plain(line: str) -> str:
    return " ".join(line.split())
