"""Entry points of the installed commands. Signals are handled before anything slow is imported."""

import os
import signal
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that end a command, unless they are ignored when it starts, as SIGHUP is under `nohup`."""


def on_ending(handler: Callable[[int, FrameType | None], None]) -> None:
    """Call `handler` when a signal comes that ends a command; a signal that is ignored stays ignored."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _run(name: str) -> NoReturn:
    on_ending(_exit_at_once)
    from shoal.fast_imports import speed_up_imports

    speed_up_imports()
    from shoal.cli.main import run

    run(name)


def _exit_at_once(number: int, _frame: object) -> NoReturn:
    """End this process while it imports; an exception inside an import may be swallowed."""
    is_ctrl_c = number == signal.SIGINT
    try:
        if is_ctrl_c:
            os.write(2, b"Error: Interrupted.\n")
        # torchrun ends all ranks when one has failed and printed the reason.
        elif "TORCHELASTIC_RUN_ID" not in os.environ:
            os.write(2, f"Error: Ended by {signal.Signals(number).name}.\n".encode())
    finally:
        os._exit(130 if is_ctrl_c else 143)


shoal = partial(_run, "shoal")
train = partial(_run, "train")
play = partial(_run, "play")
evaluate = partial(_run, "evaluate")
