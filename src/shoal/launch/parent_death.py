"""A rank that another program has started ends with that program: torchrun, when it is killed, ends nobody.

srun's tasks are children of SLURM's own daemon of the step, which ends them itself as long as it lives.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from shoal import PARENT
from shoal.errors import TerminatedRunError
from shoal.timing import REAPER_SAVE_S

_POLL_S = 0.2


def end_with_parent() -> None:
    """From now on, treat the end of the parent process as a SIGTERM, and exit `REAPER_SAVE_S` after it."""
    threading.Thread(target=_follow, name="lifeline", daemon=True).start()


def _follow() -> None:
    while os.getppid() == PARENT:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(REAPER_SAVE_S)
    os._exit(TerminatedRunError.exit_code)
