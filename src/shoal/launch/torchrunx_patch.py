"""torchrunx without a socket that a stranger could reach, and without a host name that must resolve.

torchrunx has no switch for this, so some of the names that its functions use are replaced. What was seen in torchrunx
0.4.0, and what answers it here:

- Launcher and agents meet in a `TCPStore` that listens on every interface, and then unpickle what comes over gloo. Here
  an agent inherits one end of a pair of sockets without a name: nobody else can write into it. On another machine its
  other end is the warden's, which hands on what is said, over ssh.
- A log server on the host's address unpickles what anybody sends it. Here it is not started. The agent's output goes to
  a file, and every rank writes its own anyway.
- The addresses of all these are `socket.getfqdn()`, which waits for a name server. Here it is 127.0.0.1.
- The agent is started by a shell whose command line, with copied environment variables in it, everybody can read. Here
  it is a child of this process, which therefore also knows how it ended. It is started before torchrunx is imported,
  which takes this process as long as half of what the agent imports.

`shoal.launch.torchrunx_agent` does the same in the agent's process, and `enter_worker` in each worker's.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from multiprocessing import Pipe
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from shoal import PYTHON
from shoal.procfs import how_it_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

LINE = "SHOAL_AGENT_LINE"
"""Names the agent's end of the pair, a file descriptor, in its environment."""

_LAST_WORD_S = 5.0
"""How long an agent whose end of the pair is closed may take to end [s]."""

FORK = "fork"
"""Asks the agent to import what workers need and to fork them, which saves each rank six seconds of a core.

Not for GPUs: whatever wakes CUDA in the agent, such as a library that counts devices when it is imported, would keep
its workers from using it."""

LOCAL = SimpleNamespace(getfqdn=lambda: "127.0.0.1")
"""What torchrunx asks of the module `socket`."""

ResultT = TypeVar("ResultT")


class AgentChannel(Protocol):
    """Carries what a launcher and one agent tell each other."""

    def send_bytes(self, buf: bytes, /) -> None:
        """Send a message."""
        ...

    def recv_bytes(self) -> bytes:
        """Wait for a message and return it. Raises EOFError when the other side has ended."""
        ...

    def poll(self, timeout: float | None = ..., /) -> bool:
        """Wait until there is a message or an end, but no longer than so long [s]; None is for ever."""
        ...

    def close(self) -> None:
        """Let go of this end."""
        ...


End = tuple[AgentChannel, "Callable[[], str]"]
"""This process's end of a line, and what says how the other process ended."""


class _EndedError(Exception):
    """The other process has ended, or does not answer."""


def _send(end: End, data: bytes) -> None:
    line, how_it_ended = end
    try:
        line.send_bytes(data)
    except OSError as error:
        raise _EndedError(how_it_ended()) from error


def _receive(end: End, patience: float | None) -> bytes:
    line, how_it_ended = end
    try:
        if line.poll(patience):
            return line.recv_bytes()
    except (EOFError, OSError) as error:
        raise _EndedError(how_it_ended()) from error
    why = f"it was silent for {patience or 0:.0f} s"
    raise _EndedError(why)


def group_over(
    line: AgentChannel,
    how_other_ended: Callable[[], str],
    *further: End,
    patience: float | None = None,
) -> type:
    """Return a replacement for torchrunx's group of a launcher and its agents: a star, with the launcher in the middle.

    Args:
        line: This process's end of the line to the launcher, or to the first agent.
        how_other_ended: Says what became of the other process once its end is closed.
        further: The same of all other agents, in their order, for the launcher.
        patience: How long another process may be silent [s]; None is for ever. The agent must wait for a launcher
            that somebody has stopped for a while, and learns of its end all the same: the kernel closes the pair.
    """
    import cloudpickle
    from torchrunx.utils.comm import LauncherAgentGroup
    from torchrunx.utils.errors import AgentFailedError

    ends = ((line, how_other_ended), *further)

    class Group(LauncherAgentGroup[ResultT]):
        """Exchanges objects, as the group does that it replaces, without a process group."""

        def __post_init__(self) -> None:
            if self.rank == 0 and self.world_size != len(ends) + 1:
                why = f"A line joins one launcher and one agent: {len(ends)} for {self.world_size - 1} agents."
                raise ValueError(why)

        def _all_gather(self, obj: Any) -> list[Any]:  # noqa: ANN401  As torchrunx declares it.
            own = cloudpickle.dumps(obj)
            try:
                if self.rank == 0:
                    everyone = [own, *(_receive(end, patience) for end in ends)]
                    for end in ends:
                        _send(end, cloudpickle.dumps(everyone))
                else:
                    _send(ends[0], own)
                    everyone = cloudpickle.loads(_receive(ends[0], patience))
            except _EndedError as error:
                raise AgentFailedError(str(error)) from error
            return [cloudpickle.loads(each) for each in everyone]

        def shutdown(self) -> None:
            for each, _ in ends:
                each.close()

    return Group


class _NoProcess:
    """Stands for the process of torchrunx's log server."""

    def __init__(self, **_asked: object) -> None:
        pass

    def start(self) -> None:
        pass

    def kill(self) -> None:
        pass


class Agent:
    """torchrunx's agent, a child of this process, and this process's end of the pair that joins them."""

    def __init__(self, log: Path, environ: Mapping[str, str], *, forks: bool, number: int = 0, agents: int = 1) -> None:
        """Start the agent.

        Args:
            log: Where its output goes, and that of workers until they have files of their own.
            environ: What it finds in its environment, besides all that this process has.
            forks: Whether it forks its workers; they must not use a GPU then.
            number: Which of all agents it is, from 0.
            agents: How many there are, one for each machine.
        """
        self.line, theirs = Pipe()
        with theirs, log.open("wb") as output:  # The agent alone holds its end, so that its own end closes the pair.
            self._process = subprocess.Popen(
                (
                    *PYTHON,
                    "-u",
                    "-m",
                    "shoal.launch.torchrunx_agent",
                    str(number),
                    str(agents),
                    *([FORK] if forks else []),
                ),
                env={**os.environ, **environ, LINE: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                # A terminal's Ctrl-C does not reach another session: only this process hears the person.
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self._process.poll() is not None

    def how_it_ended(self) -> str:
        """Wait for the end that the closed pair has announced, and say how it was."""
        try:
            return how_it_ended(self._process.wait(_LAST_WORD_S))
        except subprocess.TimeoutExpired:
            return "it does not answer"

    def close(self) -> None:
        """End the agent, if it has not ended."""
        self.line.close()
        self._process.terminate()


def closed_run(ends: Sequence[End], *, patience: float) -> Callable[..., object]:
    """Return `torchrunx.Launcher.run` so that it opens no port, and takes our agents for those that it starts.

    It is a copy with names of its own: a launch that was given up may still run when the next one starts.

    Args:
        ends: The line to each agent, and what says how it ended.
        patience: How long an agent may be silent [s].
    """
    import torchrunx.launcher

    first, *further = ends
    run = torchrunx.launcher.Launcher.run
    with replaced(
        torchrunx.launcher,
        LauncherAgentGroup=group_over(*first, *further, patience=patience),
        build_launch_command=ignore,
        execute_command=ignore,  # It would start the agents, and at the end kill them.
        get_context=lambda _method: SimpleNamespace(Process=_NoProcess),
        socket=LOCAL,
    ):
        return FunctionType(run.__code__, dict(vars(torchrunx.launcher)), argdefs=run.__defaults__)


@contextmanager
def replaced(module: ModuleType, **substitutes: object) -> Iterator[None]:
    """Put other objects under names of a module, and the old ones back.

    Raises:
        AttributeError: The module has no such name, so that to set one would leave open what it should close.
    """
    before = {name: getattr(module, name) for name in substitutes}
    vars(module).update(substitutes)
    try:
        yield
    finally:
        vars(module).update(before)


def ignore(*_asked: object, **_named: object) -> None:
    """Do nothing, in place of what would start an agent, or stream output to a log server."""


def enter_worker(arguments: bytes) -> object:
    """Be one of torchrunx's workers, whose output goes where its agent's goes until it has a file of its own."""
    import torchrunx.worker

    with replaced(torchrunx.worker, log_records_to_socket=ignore, redirect_stdio_to_logger=ignore):
        return torchrunx.worker.worker_entrypoint(arguments)
