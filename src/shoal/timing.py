"""Time constants of launching [s], each with its meaning, waiting by polling, and work beside the waiting.

`tests/test_timing.py` holds the inequalities between the constants.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.1
"""Time between two looks at workers, nodes, launchers or signals."""

# Spawned workers ------------------------------------------------------------------------------------------------------

FAILURE_GRACE_S = 3.0
"""How long the other ranks may take to end by themselves after one has failed."""
STOP_S = 60.0
"""How long ranks may take to finish an iteration and a checkpoint after a signal."""
EXIT_STATUS_S = 5.0
"""How long a child process whose pipe has closed may take to exit; the reaper takes milliseconds."""
LONGEST_PAUSE_S = 60.0
"""Longest pause before a restart."""

# The reaper of a launch whose launching process was killed ------------------------------------------------------------

REAPER_SAVE_S = 3.0
"""How long ranks may take to finish an iteration and a checkpoint."""
REAPER_KILL_S = 10.0
"""How long processes that appear again are killed."""

# Nodes of --hosts -----------------------------------------------------------------------------------------------------

CHANNEL_BEAT_S = 1.0
"""Longest time between two messages of either end of a channel."""
CHANNEL_FLUSH_S = 5.0
"""How long the last messages of a channel may take to be written."""
SSH_CONNECT_S = 15
"""ssh's ConnectTimeout."""
SSH_ALIVE_S = 5
"""ssh's ServerAliveInterval."""
SSH_ALIVE_COUNT = 6
"""ssh's ServerAliveCountMax."""
REACH_S = 3.0
"""How long one node may take to connect to an address of another."""
ANSWER_S = 60.0
"""How long a node may take to answer the host probe, the login included."""
NODE_GREETING_S = 120.0
"""How long a node agent may take to send its first bytes: Python may come from a busy file server."""
NODE_SILENCE_S = 30.0
"""Longest silence of a node before it counts as lost; `--stall-timeout` if that is shorter."""
NODE_LEAST_SILENCE_S = 5.0
"""Shortest such limit: a network switch may restart."""
NODE_CLOSE_S = 15.0
"""How long a node agent may take to clean up and to send its files."""
CLOCK_OFFSET_S = 5.0
"""Clocks that differ by more are worth a note: times in files and log lines of two nodes cannot be compared."""

# The body of a rank: watchdog, hang detector, status store -----------------------------------------------------------
BEAT_S = 1.0
"""Longest time between two heartbeats of a rank, and between two synchronisations of its status store."""
HANG_GRACE_S = 3.0
"""How much longer than its limit a rank may be idle before others report it: it may report itself."""
PROCESS_SILENCE_S = 30.0
"""Longest time without a heartbeat, or the rank's limit if that is shorter."""
OWN_PAUSE_S = 5.0
"""A watching process whose own pause was longer had been stopped: what it did not see does not count."""
IDLE_BEFORE_READING_S = 2.0
"""How long a rank is idle before it reads the heartbeats of others from the status store."""
DUMP_GRACE_S = 1.0
"""How much later than the limit faulthandler's thread dumps the stacks of a process that does not run."""
STATUS_REFRESH_S = 3.0
"""How long a rank waits for one synchronisation of its status store."""
STATUS_ANSWER_S = 2.0
"""How long the store of a rendezvous may take to answer its status connection."""
STATUS_READ_S = 1 / 512
"""Least time between two readings of the statuses of all ranks, for each rank: with 1,024 ranks two seconds."""
STATUS_LINGER_S = 2.0
"""How long rank 0, whose process may hold the store, stays after its own failure, so that other ranks read it."""
PEER_FAILURE_S = 2.5
"""How long a rank is silent before a rank whose connection broke, and which finds no failure, reports it as lost."""
CAUSE_S = PEER_FAILURE_S + 2 * BEAT_S
"""How long a rank that watches all others looks for the first cause; ranks that do not watch wait twice as long."""
FINAL_REPORT_S = 60.0
"""How long rank 0 waits for the reports of ranks that have trained to the end."""

# Rendezvous of ranks that another launcher started -------------------------------------------------------------------
ACKNOWLEDGE_S = 10.0
"""How long rank 0, whose process may hold the store, waits for the other ranks to read a refusal."""
REFUSAL_S = 120.0
"""How long a rank that refuses waits for the store of rank 0, which may be reading Python from a busy file server."""
SHARED_DISK_S = 10.0
"""How long a file of another node may take to appear: network file systems cache its absence."""
STORE_ANSWER_S = 1800.0
"""How long an answer on the training's own connection may take: torch's default."""
RUN_LOCK_S = 2.0
"""How long the owner of a run's lock may take to write its process id."""
FOREVER_S = 7 * 24 * 3600
"""Stands for no limit where torch requires one."""


def wait_for(look: Callable[[], T], timeout: float = math.inf, poll: float = POLL_S) -> T:
    """Call `look` until it returns something true, or for `timeout` seconds; return its last result."""
    deadline = time.monotonic() + timeout
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(poll)
    return found


def in_background(function: Callable[[], T], name: str) -> Future[T]:
    """Call a function in a thread of that name, which a process that ends does not wait for; return its future."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001  Who asks for the result raises it.
            future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future
