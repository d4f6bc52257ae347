"""A local `torchrunx.Launcher` with one agent, without network sockets and without a host name that must resolve.

torchrunx 0.4.0 has no switch for this, so some names that its functions use are replaced:

- Launcher and agent meet in a `TCPStore` that listens on every interface, and unpickle what comes over gloo. Here the
  agent inherits one end of a socket pair, which no other process can write to.
- A log server unpickles what any process sends to the host's address. Here output goes to files.
- A name server is asked for `socket.getfqdn()`. Here it is 127.0.0.1.
- A shell starts the agent, with environment variables in a command line that all users can read. Here it is a child
  process, whose exit code is known: this module as a program. It starts first, since both import torch.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, TypeVar

from shoal import PYTHON
from shoal.fast_imports import speed_up_imports
from shoal.launch.reaper import MARK
from shoal.procfs import how_it_ended
from shoal.signals import STOPPING
from shoal.timing import EXIT_STATUS_S

_SOCKET = "SHOAL_AGENT_SOCKET"
"""Environment variable with the file descriptor of the agent's end of the socket pair."""
_FORK = "fork"
"""Makes the agent import what workers need and fork them, which saves each rank six seconds of a core. Not for GPUs: a
library that initialises CUDA when it is imported would keep workers from using it."""
_OUTPUT_BYTES = 16 * 1024
_LOOPBACK = SimpleNamespace(getfqdn=lambda: "127.0.0.1")
"""Replaces the module `socket` in torchrunx."""

ResultT = TypeVar("ResultT")


def socketpair_group(peer: Connection, how_peer_ended: Callable[[], str], patience: float | None = None) -> type:
    """Return a replacement for torchrunx's process group of a launcher and its agents, here a single one.

    `how_peer_ended` is called once the other end of `peer` is closed. The other process may be silent for `patience`
    [s]. The agent sets no limit: it must wait for a launcher that is stopped for a while.
    """
    import cloudpickle
    from torchrunx.utils.comm import LauncherAgentGroup
    from torchrunx.utils.errors import AgentFailedError

    class Group(LauncherAgentGroup[ResultT]):
        """Exchanges objects over the socket pair."""

        def __post_init__(self) -> None:
            """Open no store."""

        def _all_gather(self, obj: Any) -> list[Any]:  # noqa: ANN401  As torchrunx declares it.
            try:
                peer.send_bytes(cloudpickle.dumps(obj))
                if not peer.poll(patience):
                    raise AgentFailedError(f"it was silent for {patience or 0:.0f} s")
                other = cloudpickle.loads(peer.recv_bytes())
            except (EOFError, OSError) as error:
                raise AgentFailedError(how_peer_ended()) from error
            return [obj, other] if self.rank == 0 else [other, obj]

        def shutdown(self) -> None:
            peer.close()

    return Group


class Agent:
    """torchrunx's agent as a child process, and the launcher's end of the socket pair."""

    def __init__(self, scratch: Path, *, forks: bool) -> None:
        """Start the agent of a launch with this scratch directory. It `forks` its workers if they use no GPU."""
        self.socket, theirs = Pipe()
        self._log = scratch / "agent.log"
        with theirs, self._log.open("wb") as output:  # The agent alone holds its end, so that its end closes the pair.
            self.process = subprocess.Popen(
                (*PYTHON, "-u", "-m", "shoal.launch.torchrunx_patch", *([_FORK] if forks else [])),
                env={**os.environ, MARK: str(scratch), _SOCKET: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # A terminal's Ctrl-C reaches the launching process alone.
            )

    def how_it_ended(self) -> str:
        """Wait for the process, whose end of the pair is closed, and describe how it ended."""
        try:
            return how_it_ended(self.process.wait(EXIT_STATUS_S))
        except subprocess.TimeoutExpired:
            return "it does not answer"

    def output(self) -> str:
        """Return the end of its output, and of that of workers that have no files of their own yet."""
        return self._log.read_bytes()[-_OUTPUT_BYTES:].decode(errors="replace").strip()

    def close(self) -> None:
        """End the agent if it has not ended."""
        self.socket.close()
        self.process.terminate()


def patched_run(agent: Agent, patience: float | None) -> Callable[..., object]:
    """Return `torchrunx.Launcher.run` so that it opens no port and uses `agent` instead of starting one.

    The agent may be silent for `patience` while it imports [s]; None for ever.
    It is a copy with its own global names: a launch that was given up may still run when the next one starts.
    """
    import torchrunx.launcher

    run = torchrunx.launcher.Launcher.run
    log_server = SimpleNamespace(start=_ignore, kill=_ignore)
    names = replaced(
        torchrunx.launcher,
        LauncherAgentGroup=socketpair_group(agent.socket, agent.how_it_ended, patience),
        build_launch_command=_ignore,
        execute_command=_ignore,  # Starts the agents, and at the end kills them.
        get_context=lambda _method: SimpleNamespace(Process=lambda **_: log_server),
        socket=_LOOPBACK,
    )
    return FunctionType(run.__code__, names, argdefs=run.__defaults__)


def replaced(module: ModuleType, **substitutes: object) -> dict[str, object]:
    """Return the names of a module with these in place of its own.

    Raises:
        AttributeError: The module has no such name, so a replacement would have no effect.
    """
    for name in substitutes:
        getattr(module, name)
    return vars(module) | substitutes


def _ignore(*_args: object, **_kwargs: object) -> None:
    """Do nothing, in place of what would start an agent, or stream output to a log server."""


def _run_worker(arguments: bytes) -> object:
    """Run one of torchrunx's workers, whose output goes to its agent's file until it has one of its own."""
    speed_up_imports()  # A spawned worker has imported nothing yet.
    import torchrunx.worker

    names = replaced(torchrunx.worker, log_records_to_socket=_ignore, redirect_stdio_to_logger=_ignore)
    torchrunx.worker.__dict__.update(names)  # For as long as this process runs.
    return torchrunx.worker.worker_entrypoint(arguments)


def _run_agent(*, forks: bool) -> None:
    """Run torchrunx's agent until all workers have ended, or the launching process has."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # A scheduler's warning to every process is for the workers.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # Blocked in the thread that has started this process.
    speed_up_imports()
    import torchrunx.agent

    if forks:  # What every worker needs is imported once, here.
        import shoal.learn.rsl_rl.learner
        import shoal.worker  # noqa: F401
    start = partial(torchrunx.agent.dist_mp.start_processes, start_method="fork" if forks else "spawn")
    descriptor = int(os.environ.pop(_SOCKET))
    os.set_inheritable(descriptor, False)  # noqa: FBT003  No worker must hold it: its closing signals this process's end.
    launcher = Connection(descriptor)
    tempfile.tempdir = os.environ[MARK]  # torchrunx leaves a directory behind.

    def run_forked_worker(arguments: bytes) -> object:
        launcher.close()  # A fork holds whatever its parent holds.
        tempfile.tempdir = None  # Caches, which outlive a launch, go where the user wants them.
        return _run_worker(arguments)

    names = replaced(
        torchrunx.agent,
        LauncherAgentGroup=socketpair_group(launcher, lambda: "the launching process has ended"),
        log_records_to_socket=_ignore,
        redirect_stdio_to_logger=_ignore,
        socket=_LOOPBACK,
        worker_entrypoint=run_forked_worker if forks else _run_worker,
        dist_mp=SimpleNamespace(**vars(torchrunx.agent.dist_mp) | {"start_processes": start}),
    )
    torchrunx.agent.__dict__.update(names)
    torchrunx.agent.main("", 0, 2, 1, "", 0, "")  # The second of two, without addresses and ports.


if __name__ == "__main__":
    _run_agent(forks=_FORK in sys.argv)
