"""torchrunx's agent, which keeps the workers of one node, as `shoal.launch.torchrunx_patch` starts it.

Run as `python -m shoal.launch.torchrunx_agent [fork]`. Spawned workers import this module too, under another name, so
all code is inside `main`.
"""

import importlib
import os
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from types import SimpleNamespace


def main() -> None:
    """Run the agent until all workers have ended, or the launching process has."""
    from shoal.signals import STOPPING

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # A scheduler's warning to every process is for the workers.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # Blocked in the thread that has started this process.
    import torchrunx.agent

    from shoal.launch import torchrunx_patch as patch

    forks = patch.FORK in sys.argv
    if forks:  # What every worker needs is imported once, here.
        importlib.import_module("shoal.envs.vec_env")
        importlib.import_module("shoal.learn.runner")
    start = partial(torchrunx.agent.dist_mp.start_processes, start_method="fork" if forks else "spawn")
    descriptor = int(os.environ.pop(patch.AGENT_SOCKET))
    os.set_inheritable(descriptor, False)  # noqa: FBT003  No worker must hold it: its closing signals this process's end.
    launcher = Connection(descriptor)

    def run_forked_worker(arguments: bytes) -> object:
        launcher.close()  # A fork holds whatever its parent holds.
        return patch.run_torchrunx_worker(arguments)

    with patch.replaced(
        torchrunx.agent,
        LauncherAgentGroup=patch.socketpair_group(launcher, lambda: "the launching process has ended"),
        log_records_to_socket=patch.ignore,
        redirect_stdio_to_logger=patch.ignore,
        socket=patch.LOOPBACK,
        worker_entrypoint=run_forked_worker if forks else patch.run_torchrunx_worker,
        dist_mp=SimpleNamespace(**vars(torchrunx.agent.dist_mp) | {"start_processes": start}),
    ):
        torchrunx.agent.main(
            launcher_hostname="",
            launcher_port=0,
            world_size=2,
            rank=1,
            logger_hostname="",
            logger_port=0,
            hostname="",
        )


if __name__ == "__main__":
    main()
