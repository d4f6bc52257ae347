"""A rank that another program has started ends with that program: torchrun, when it is killed, ends nobody.

srun's tasks are children of SLURM's own daemon of the step, which ends them itself as long as it lives.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from shoal.errors import TerminatedRunError
from shoal.launch.guard import SAVE_S

if TYPE_CHECKING:
    from shoal.launch.signals import StopRequests

_POLL_S = 0.2


def end_with_parent(stop: StopRequests) -> None:
    """From now on, take the end of the process that started this one as a SIGTERM, and leave `SAVE_S` after it."""
    parent = os.getppid()
    threading.Thread(target=_follow, args=(parent, stop), name="lifeline", daemon=True).start()


def _follow(parent: int, stop: StopRequests) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    stop.counts["SIGTERM"] += 1
    time.sleep(SAVE_S)
    os._exit(TerminatedRunError.exit_code)
