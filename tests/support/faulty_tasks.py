"""Cart-poles with a fault, for tests that inject one: `train tests/support/faulty_tasks.py:RaisesOnRank1`.

Each strikes in the second iteration, on the rank that SHOAL_TEST_FAULTY_RANK names (1 by default). The variable
SHOAL_TEST_STRIKE_AT names another step, and SHOAL_TEST_STRUCK a file that appears in the moment of the fault.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from shoal.config import RslRlConfig
from shoal.errors import UsageError
from shoal.tasks.cartpole.config import SwingupConfig
from shoal.tasks.cartpole.task import Swingup

if TYPE_CHECKING:
    from typing import Any


def is_faulty() -> bool:
    """Whether the fault is to strike in this process."""
    return os.environ.get("RANK", "0") == os.environ.get("SHOAL_TEST_FAULTY_RANK", "1")


class _Faulty(Swingup):
    """Strikes once, after `strike_at` steps."""

    agent = RslRlConfig(num_steps_per_env=8)
    num_envs = 16
    max_iterations = 200
    strike_at = int(os.environ.get("SHOAL_TEST_STRIKE_AT", "12"))

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.steps = 0
        super().__init__(*arguments, **named)

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.strike_at and is_faulty():
            if "SHOAL_TEST_STRUCK" in os.environ:
                Path(os.environ["SHOAL_TEST_STRUCK"]).touch()
            self.strike()
        super().step()

    def strike(self) -> None:
        raise NotImplementedError


class Raises(_Faulty):
    """Raises an exception with two arguments, which cannot be unpickled."""

    config = SwingupConfig()

    def strike(self) -> None:
        class TwoArgumentsError(Exception):
            def __init__(self, what: str, where: int) -> None:
                super().__init__(f"{what} at {where}")

        what, where = "injected fault", 7
        raise TwoArgumentsError(what, where)


class Dies(_Faulty):
    """Is killed, as by the kernel when memory runs out."""

    config = SwingupConfig()

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class DiesOnce(Dies):
    """Is killed in the fifth iteration of torchrun's first attempt alone."""

    strike_at = 36

    def strike(self) -> None:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            super().strike()


class Leaves(_Faulty):
    """Leaves its process without a word."""

    config = SwingupConfig()

    def strike(self) -> None:
        os._exit(3)


class TurnsToNan(_Faulty):
    """Writes NaN into its state."""

    config = SwingupConfig()

    def strike(self) -> None:
        self.state.fill_(float("nan"))


class Refuses(_Faulty):
    """Finds out only inside a worker that what was asked cannot be done."""

    config = SwingupConfig()

    def strike(self) -> None:
        message = "This cart-pole was asked to fly, but it has no wings: pass another task."
        raise UsageError(message)


class Babbles(_Faulty):
    """Prints what no stream of text holds, and carries on."""

    config = SwingupConfig()
    max_iterations = 2

    def strike(self) -> None:
        sys.stdout.write("printed by user code \N{PLUS-MINUS SIGN}\n")
        sys.stdout.flush()
        os.write(1, b"not UTF-8: \xff\n")
        os.write(2, b"without an end")


class Waits(_Faulty):
    """Never comes back from a step, and hears no signal."""

    config = SwingupConfig()

    def strike(self) -> None:
        sys.stdout.write("waiting for ever\n")
        sys.stdout.flush()
        threading.Event().wait()


class Interrupted(_Faulty):
    """Sends this process what Ctrl-C would send it."""

    config = SwingupConfig()

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


class InterruptedTwice(_Faulty):
    """Sends this process what an impatient Ctrl-C, pressed twice, would send it."""

    config = SwingupConfig()

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.4)  # Sooner it would be the same key press.
        os.kill(os.getpid(), signal.SIGINT)


class Terminated(_Faulty):
    """Sends this process what `kill` would send it."""

    config = SwingupConfig()

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class HungUp(_Faulty):
    """Sends this process what a terminal that is closed would send it."""

    config = SwingupConfig()
    max_iterations = 3

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)


class Warned(_Faulty):
    """Sends this process what SLURM sends before a job's time is over, and a moment later again."""

    config = SwingupConfig()

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)


class TellsContexts(_Faulty):
    """Prints on every rank on which GPUs this process has a context: nothing is wrong with it, if it has but one."""

    config = SwingupConfig()

    def step(self) -> None:
        super().step()
        if self.steps == self.strike_at:
            gpus = range(torch.cuda.device_count())
            sys.stdout.write(f"contexts on GPUs {[gpu for gpu in gpus if torch._C._cuda_hasPrimaryContext(gpu)]}\n")
            sys.stdout.flush()

    def strike(self) -> None:
        pass


class Stops(_Faulty):
    """Is stopped, as by a debugger or by Ctrl-Z."""

    config = SwingupConfig()

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class HoldsTheLock(_Faulty):
    """Sleeps for ever in native code that does not let go of Python's lock."""

    config = SwingupConfig()

    def strike(self) -> None:
        ctypes.PyDLL(None).sleep(10_000)


class Segfaults(_Faulty):
    """Reads memory that is not there, in native code."""

    config = SwingupConfig()

    def strike(self) -> None:
        ctypes.string_at(0)


class DiesInStartup(_Faulty):
    """Is killed while its environments are built."""

    config = SwingupConfig()

    def allocate(self) -> None:
        if is_faulty():
            sys.stdout.write("dying\n")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        super().allocate()


class DiesWaiting(_Faulty):
    """Is killed while it waits for the other ranks, which never come to the end of their rollout."""

    config = SwingupConfig()
    strike_at = 16  # The last step of the second iteration.

    def step(self) -> None:
        if self.steps == self.strike_at - 1 and not is_faulty():
            threading.Event().wait()
        super().step()

    def strike(self) -> None:
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGKILL)).start()


class Starves(_Faulty):
    """Asks for more memory than the process may have."""

    config = SwingupConfig()

    def strike(self) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, resource.RLIM_INFINITY))
        torch.ones(2**30)


class OutgrowsItsGroup(_Faulty):
    """Fills more memory than is left to its control group, which SHOAL_TEST_GROUP names, until the kernel kills it."""

    config = SwingupConfig()

    def strike(self) -> None:
        group = Path(os.environ["SHOAL_TEST_GROUP"])
        version_1 = group / "memory.usage_in_bytes"
        used = version_1 if version_1.exists() else group / "memory.current"
        limit = group / ("memory.limit_in_bytes" if version_1.exists() else "memory.max")
        limit.write_text(str(int(used.read_text()) + 2**28), encoding="utf-8")
        bytearray(2**30)


class StragglesAndDiesSaving(_Faulty):
    """Rank 1 is slow from the second iteration on; the faulty rank is killed while it writes its fourth checkpoint."""

    config = SwingupConfig()
    strike_at = 25  # The first step of the fourth iteration.

    def step(self) -> None:
        if self.steps >= 8 and os.environ.get("RANK") == "1":
            time.sleep(0.1)
        super().step()

    def strike(self) -> None:
        flush = os.fsync

        def die(descriptor: int) -> None:
            if threading.current_thread().name == "checkpoint 4":
                os.kill(os.getpid(), signal.SIGKILL)
            flush(descriptor)

        os.fsync = die


class CannotSayWhatItsActionsMean(Swingup):
    """Trains well, and raises when it is exported."""

    def deployment(self) -> dict[str, Any]:
        message = "no robot\nwas drawn"
        raise LookupError(message)


class DiesWhileExported(Swingup):
    """Trains well, and is killed when it is exported, as by the kernel when memory runs out."""

    def deployment(self) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}
