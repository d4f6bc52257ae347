"""torchrunx's agent, which keeps the workers of one machine, as `shoal.launch.torchrunx_patch` starts it.

Run as `python -m shoal.launch.torchrunx_agent NUMBER AGENTS [fork]`. Spawned workers import this module too,
under another name, so all is inside `main`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from types import SimpleNamespace


def main() -> None:
    """Be the agent, until all workers have ended or the launching process has."""
    from shoal.signals import STOPPING

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # A scheduler's warning to every process is for the workers.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # Blocked in the thread that has started this process.
    import torchrunx.agent

    from shoal.launch.torchrunx_patch import FORK, LINE, LOCAL, enter_worker, group_over, ignore, replaced

    number, agents = map(int, sys.argv[1:3])
    forks = FORK in sys.argv
    if forks:  # What every worker needs is imported once, here.
        importlib.import_module("shoal.envs.vec_env")
        importlib.import_module("shoal.learn.runner")
    start = partial(torchrunx.agent.dist_mp.start_processes, start_method="fork" if forks else "spawn")
    end = int(os.environ.pop(LINE))
    os.set_inheritable(end, False)  # noqa: FBT003  No worker must hold it: its closing tells of this process's end.
    line = Connection(end)

    def enter(arguments: bytes) -> object:
        line.close()  # A fork holds whatever its parent holds.
        return enter_worker(arguments)

    with replaced(
        torchrunx.agent,
        LauncherAgentGroup=group_over(line, lambda: "the launching process has ended"),
        log_records_to_socket=ignore,
        redirect_stdio_to_logger=ignore,
        socket=LOCAL,
        worker_entrypoint=enter if forks else enter_worker,
        dist_mp=SimpleNamespace(**vars(torchrunx.agent.dist_mp) | {"start_processes": start}),
    ):
        torchrunx.agent.main(
            launcher_hostname="",
            launcher_port=0,
            world_size=agents + 1,
            rank=number + 1,
            logger_hostname="",
            logger_port=0,
            hostname="",
        )


if __name__ == "__main__":
    main()
