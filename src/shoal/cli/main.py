"""The command line: find the command, run it, print its result, and exit with the code of the outcome.

torch is imported inside the commands that need it, so that help and usage errors come at once.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from shoal import __version__
from shoal.cli.help import HELP_FLAGS, print_help, print_overview, print_usage
from shoal.cli.output import end, prepare_streams, print_json, print_line, print_lines
from shoal.cli.registry import COMMANDS, Command, load
from shoal.cli.start import on_ending
from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, UsageError, did_you_mean
from shoal.plan.ranks import launcher_of

_GONE = {"checkpoints": " `shoal runs RUN` lists a run's checkpoints."}


def shoal(words: Sequence[str]) -> None:
    """Run one command of `shoal`, or print what there is."""
    if not words or words[0] in {*HELP_FLAGS, "help"}:
        print_overview()
    elif words[0] in {"-V", "--version"}:
        print_line(f"shoal {__version__}")
    elif words[0] in COMMANDS:
        run_command(COMMANDS[words[0]], words[1:])
    else:
        hint = _GONE.get(words[0]) or did_you_mean(words[0], COMMANDS)
        raise UsageError(f"There is no command 'shoal {words[0]}'.{hint} `shoal --help` lists the commands.")


def run_command(command: Command, words: Sequence[str]) -> None:
    """Run a command, and print its result; or its usage where no task is given, on which its flags depend."""
    only_help = all(word in HELP_FLAGS for word in words)
    if command.config is None:
        if words and only_help:
            print_help(command, words, ())
        else:
            print_lines(load(command.run)(words) or ())
        return
    if only_help and command.operands in ("TASK", "[TASK] A B"):
        print_usage(command)
        return
    from shoal.cli.parse import parse

    arguments = parse(command.name, words)
    result = load(command.run)(*arguments)
    if result is None:
        return
    if getattr(arguments[0], "json", False) is True:
        print_json(result.to_plain())
    else:
        print_lines(result.lines() if hasattr(result, "lines") else result)
    error = getattr(result, "error", None)
    if error is not None:
        raise error


def run(name: str) -> NoReturn:
    """Run `shoal`, or one of its commands that is installed by its own name, and exit with its code.

    If the code is not 0, the last line gives the reason.
    """
    # CUDA reads it when it is initialized. Workers, remote workers and the doctor's children inherit it.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    try:
        on_ending(_raise_ended)  # A training replaces these handlers when it begins.
        prepare_streams()
        _refuse_deleted_directory()
        _with_signals(partial(shoal, sys.argv[1:] if name == "shoal" else [name, *sys.argv[1:]]))
        sys.stdout.flush()
    except ShoalError as error:
        end(error.exit_code, error)
    except _Ended as error:
        # torchrun ends all ranks when one has failed, and that one has printed the reason.
        is_printed = launcher_of(os.environ) == "torchrun"
        end(TerminatedRunError.exit_code, "" if is_printed else TerminatedRunError(f"Ended by {error}."))
    except KeyboardInterrupt:
        end(InterruptedRunError.exit_code, ShoalError("Interrupted."))
    except BrokenPipeError:  # As in `shoal tasks | head`; rich exits with 1 then, too.
        end(1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        end(1, ShoalError(f"The output could not be written ({error.strerror}): make room, or write it elsewhere."))
    except RuntimeError as error:
        _, refused, reason = str(error).partition("can't allocate memory: ")  # Torch has no class for it on the CPU.
        if not refused:
            raise
        sizes = "the number of environments or episodes, networks or --agent.num-steps-per-env"
        end(1, ShoalError(f"There is not enough memory ({reason.partition('.')[0]}): make {sizes} smaller."))
    end(0)


def _with_signals(call: Callable[[], None]) -> None:
    """Call, and raise a signal that came in a `__set_name__`, as dataclasses have: Python 3.11 makes it an error."""
    try:
        call()
    except Exception as error:
        reason: BaseException | None = error
        while reason is not None:
            if isinstance(reason, RuntimeError) and isinstance(reason.__cause__, KeyboardInterrupt):
                raise reason.__cause__ from None
            reason = reason.__cause__
        raise


def _refuse_deleted_directory() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("The working directory does not exist any more: change to one that does.") from error


class _Ended(KeyboardInterrupt):
    """A signal that ends this command; not an Exception, which libraries catch."""


def _raise_ended(number: int, _frame: object) -> None:
    """Raise a signal as an exception, as Ctrl-C is, so that the command ends its processes."""
    raise KeyboardInterrupt if number == signal.SIGINT else _Ended(signal.Signals(number).name)
