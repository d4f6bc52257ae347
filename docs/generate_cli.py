"""Write docs/reference/cli.md: the full help of every command, at a fixed width.

    python docs/generate_cli.py

A test compares the page with the output of this script.
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
same. Flags below show the defaults of `Cartpole-Swingup`; each task has its own. `--config FILE`, which `train`
also takes, is read before all flags: see [configuration](../guide/configuration.md). `--help` shows the flags
that are changed first, `--help GROUP` one group, and `--help all` what is below.
"""

COMMANDS = (
    "shoal --help",
    "train --help",
    "train Cartpole-Swingup --help all",
    "play Cartpole-Swingup --help all",
    "evaluate Cartpole-Swingup --help all",
    "shoal compare A B --help",
    "shoal compare Cartpole-Swingup A B --help all",
    "shoal sweep --help",
    "shoal export Cartpole-Swingup --help all",
    "shoal replay --help",
    "shoal motion --help",
    "shoal runs --help",
    "shoal convert --help",
    "shoal bench Cartpole-Swingup --help all",
    "shoal doctor --help",
    "shoal completion --help",
    "shoal tasks",
)


def render() -> str:
    """Return the page."""
    started = {command: _start(command) for command in COMMANDS}
    parts = [HEAD]
    for command in COMMANDS:
        parts.append(f"\n## {command.partition(' --help')[0]}\n")
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
    if command.startswith(("play", "evaluate", "shoal export", "shoal compare Cart")):
        end = next(at for at, line in enumerate(lines) if line.startswith("-- env "))
        lines[end:] = ["--env.* and --agent.* as for train; by default as the policy was trained"]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")
