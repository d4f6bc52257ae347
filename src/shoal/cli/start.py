"""Entry points of the installed commands. Signals are handled before anything slow is imported."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that end a command, unless they are ignored where it was started, as SIGHUP is under `nohup`."""


def shoal() -> NoReturn:
    """Run `shoal COMMAND ...`."""
    _run("shoal")


def train() -> NoReturn:
    """Run `train TASK ...`."""
    _run("train")


def play() -> NoReturn:
    """Run `play TASK ...`."""
    _run("play")


def evaluate() -> NoReturn:
    """Run `evaluate TASK ...`."""
    _run("evaluate")


def _run(name: str) -> NoReturn:
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave_at_once)
    from shoal.cli.main import run

    run(name)


def _leave_at_once(number: int, _frame: object) -> NoReturn:
    """End this process, which has started nothing yet. An exception in the middle of an import may be swallowed."""
    is_ctrl_c = number == signal.SIGINT
    try:
        if is_ctrl_c:
            os.write(2, b"Error: Interrupted.\n")
        elif "TORCHELASTIC_RUN_ID" not in os.environ:  # torchrun ends all ranks when one has failed and told why.
            os.write(2, f"Error: Ended by {signal.Signals(number).name}.\n".encode())
    finally:
        os._exit(130 if is_ctrl_c else 143)
