"""Runs a command on a machine with emulated GPUs: `uv run python tests/support/emulated_gpu [--count 2] pytest ...`."""

import argparse
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from support.emulated_gpu import Settings, environment


def main() -> None:
    """Become the command."""
    parser = argparse.ArgumentParser(description="Run a command on a machine with emulated GPUs.")
    parser.add_argument("--count", type=int, default=2, help="number of GPUs")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a command with its arguments, such as pytest")
    args = parser.parse_args()
    if not args.command:
        parser.error("no command was given")
    os.environ.update(environment(Settings(count=args.count)))
    os.execvp(args.command[0], args.command)  # noqa: S606


if __name__ == "__main__":
    main()
