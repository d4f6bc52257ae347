"""Write docs/reference/cli.md: the full help of every command, at a fixed width.

    python docs/generate_cli.py

A test compares the page with the output of this script.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from unittest import mock

from shoal.cli.main import shoal
from shoal.cli.registry import COMMANDS

PAGE = Path(__file__).parent / "reference" / "cli.md"
WIDTH = 90

HEAD = """# Command line

<!-- Written by docs/generate_cli.py; do not edit. -->

`train`, `play` and `evaluate` are commands by themselves; `shoal train`, `shoal play` and `shoal evaluate` are the
same. Flags below show the defaults of `Cartpole-Swingup`; each task has its own. `--config FILE`, which `train`
also takes, is read before all flags: see [configuration](../guide/configuration.md). `--help` shows the flags
that are changed first, `--help GROUP` one group, and `--help all` what is below.
"""

OPERANDS = {"TASK": "Cartpole-Swingup ", "[TASK] A B": "Cartpole-Swingup A B "}
"""What stands for the operands on the page."""


def commands() -> list[str]:
    """Return the commands of the page: the help of each that has flags, and the lists."""
    with_flags = [command for command in COMMANDS.values() if command.config]
    helps = [f"{each.program} {OPERANDS.get(each.operands, '')}--help all" for each in with_flags]
    return ["shoal --help", "train --help", *helps, "shoal compare A B --help all", "shoal tasks"]


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for command in commands():
        parts.append(f"\n## {command.partition(' --help')[0]}\n")
        parts.append(f"\n```text\n{_output_of(command)}\n```\n")
    return "".join(parts)


def _output_of(command: str) -> str:
    """Return what a command prints at a fixed width."""
    output = io.StringIO()
    wide = mock.patch.dict(os.environ, COLUMNS=str(WIDTH))
    with wide, contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        shoal(command.removeprefix("shoal ").split())
    lines = [line.rstrip() for line in output.getvalue().strip("\n").splitlines()]
    if command.startswith(("play", "evaluate", "shoal export", "shoal compare Cart")):
        end = next(at for at, line in enumerate(lines) if line.startswith("-- env "))
        lines[end:] = ["--env.* and --agent.* as for train; by default as the policy was trained"]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")
