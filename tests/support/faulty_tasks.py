"""Cart-poles with a fault, for tests that inject one: `train tests/support/faulty_tasks.py:RaisesOnRank1`.

Each strikes in the second iteration, on the rank that SHOAL_TEST_FAULTY_RANK names (1 by default).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import torch

from shoal.config import AgentConfig
from shoal.errors import UsageError
from shoal.tasks.cartpole.config import SwingupConfig
from shoal.tasks.cartpole.task import Swingup

if TYPE_CHECKING:
    from typing import Any


class _Faulty(Swingup):
    """Strikes once, after `strike_at` steps."""

    agent = AgentConfig(num_steps_per_env=8)
    num_envs = 16
    max_iterations = 200
    strike_at = 12

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.steps = 0
        super().__init__(*arguments, **named)

    def step(self) -> None:
        self.steps += 1
        faulty_rank = os.environ.get("SHOAL_TEST_FAULTY_RANK", "1")
        if self.steps == self.strike_at and os.environ.get("RANK", "0") == faulty_rank:
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
        sys.stdout.write("printed by user code\n")
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
        os.kill(os.getpid(), signal.SIGINT)


class Terminated(_Faulty):
    """Sends this process what `kill` would send it."""

    config = SwingupConfig()

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


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
