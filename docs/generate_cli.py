"""Writes docs/reference/cli.md: the help of every command, as it is printed at a fixed width.

    python docs/generate_cli.py

A test fails when the page is not what this script makes of the installed commands.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "reference" / "cli.md"
WIDTH = 90

HEAD = """# Command line

<!-- Written by docs/generate_cli.py; do not edit. -->

`train`, `play` and `evaluate` are commands by themselves; `shoal train`, `shoal play` and `shoal evaluate` are the
same. Flags below show the defaults of `Cartpole-Swingup`; each task has its own. `--config FILE`, which `train` and
`shoal plan` also take, is read before all flags: see [configuration](../guide/configuration.md).
"""

COMMANDS = (
    "shoal --help",
    "train --help",
    "train Cartpole-Swingup --help",
    "play Cartpole-Swingup --help",
    "evaluate Cartpole-Swingup --help",
    "shoal export Cartpole-Swingup --help",
    "shoal replay --help",
    "shoal checkpoints --help",
    "shoal convert --help",
    "shoal plan Cartpole-Swingup --help",
    "shoal bench Cartpole-Swingup --help",
    "shoal doctor --help",
    "shoal tasks",
)

LIKE_ANOTHER = {
    "evaluate Cartpole-Swingup --help": "The flags are those of `play`.",
    "shoal plan Cartpole-Swingup --help": "The flags are those of `train`.",
}
"""Commands whose help would say the same once more."""


def render() -> str:
    """Return the page."""
    asked = [command for command in COMMANDS if command not in LIKE_ANOTHER]
    started = {command: _start(command) for command in asked}
    parts = [HEAD]
    for command in COMMANDS:
        parts.append(f"\n## {command.removesuffix(' --help')}\n")
        if command in LIKE_ANOTHER:
            parts.append(f"\n{LIKE_ANOTHER[command]}\n")
        else:
            parts.append(f"\n```text\n{_help_of(started[command], command)}\n```\n")
    return "".join(parts)


def _start(command: str) -> subprocess.Popen[str]:
    """Start a command whose output has a fixed width and no colours. It takes a second, so all are started at once."""
    words = command.split()
    program = ["-m", "shoal", *(words[1:] if words[0] == "shoal" else words)]
    environ = os.environ | {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.Popen([sys.executable, *program], env=environ, stdout=subprocess.PIPE, text=True)


def _help_of(process: subprocess.Popen[str], command: str) -> str:
    output, _ = process.communicate(timeout=60)
    if process.returncode:
        sys.exit(f"`{command}` failed with {process.returncode}.")
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    if command.startswith(("play", "shoal export")):
        end = next(at for at, line in enumerate(lines) if line.startswith("╭─ env options"))
        lines[end:] = ["", "--env.* and --agent.* as for train; by default as the policy was trained"]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")
