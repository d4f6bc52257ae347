"""A node of a launch: `LocalNode` starts this machine's ranks with a local torchrunx launcher, and has their status.

A local launch has one, in the launching process. With `--hosts` each node agent has one, and the launching process has
a `RemoteNode` for it: an ssh connection to the agent, and the last status. Spawned ranks are no children of the process
that has the node, which therefore cannot wait for them: each keeps a file locked while it runs; where the kernel offers
process handles, they report the end at once.
"""

from __future__ import annotations

import base64
import logging
import math
import os
import platform
import select
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.config.plain import from_plain
from shoal.files import folder_of, write_all
from shoal.heartbeat import Beat, read_beat
from shoal.launch.exit_records import ExitRecord, read_exit_records
from shoal.launch.hang_detector import PauseDetector, drop_empty_stacks, read_beats
from shoal.launch.rank import enter
from shoal.launch.reaper import life_file, locked_by, marked, signal_all
from shoal.launch.remote.channel import Message
from shoal.launch.remote.ssh import SshConnection
from shoal.launch.rendezvous import read_rendezvous_port
from shoal.launch.tail import Tail
from shoal.launch.torchrunx_patch import Agent, patched_run
from shoal.machine.host import control_groups, read_text
from shoal.plan.launch import Plan
from shoal.plan.received import to_json
from shoal.procfs import how_it_ended, stat
from shoal.signals import STOPPING
from shoal.timing import CHANNEL_BEAT_S, NODE_CLOSE_S, NODE_GREETING_S, NODE_LEAST_SILENCE_S, NODE_SILENCE_S, POLL_S

_MACHINE = Path("/proc/vmstat")
_OF_GROUP = ("memory.events", "memory.oom_control")  # Of version 2 and 1.
_LIMITS = ("memory.max", "memory.limit_in_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """The status of a node at one moment, with rank 0's output since the status before."""

    launcher: str | None = None
    """How the torchrunx launcher or its agent ended: None while both run, empty after success, else the failure."""
    rendezvous_port: int | None = None
    """Port of rank 0's store, once it listens; on the node of rank 0 alone."""
    alive: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()
    """Ranks that have shown no sign of life yet."""
    ended: Mapping[int, str] = field(default_factory=dict[int, str])
    """How each rank ended that was alive before, in the order of their ends; empty where that is unknown."""
    places: Mapping[int, str] = field(default_factory=dict[int, str])
    """Phase and iteration in which they ended."""
    beats: tuple[Beat, ...] = ()
    exit_records: Mapping[int, ExitRecord] = field(default_factory=dict[int, ExitRecord])
    agent_output: str = ""
    """The end of the agent's output, while some ranks have not started."""
    oom: str = ""
    """Whether the kernel killed a process for want of memory, as a clause, once a rank has ended."""
    lines: tuple[str, ...] = ()
    """New output of rank 0."""
    rows: tuple[Mapping[str, Any], ...] = ()
    """New metrics of rank 0."""


class LocalNode:
    """The node that this process runs on."""

    lost = None
    """As in `RemoteNode`."""

    def __init__(self, plan: Plan, sent: str) -> None:
        """Start nothing yet.

        `plan` has a scratch and a log directory; `sent` is what the workers get, the same as JSON, with their work.
        """
        self.name = platform.node()
        self.ranks = plan.ranks
        self._plan, self._sent = plan, sent
        self._run, self._scratch = plan.run, Path(plan.scratch or "")
        self._watch = RankWatch(self._scratch, self.ranks)
        self._oom_kills = count_oom_kills()
        self._places: dict[int, str] = {}
        self._output = Tail(plan.log_file(0)) if 0 in self.ranks else None
        self._metrics = Tail(self._run.metrics_jsonl, from_end=True)
        self._agent: Agent | None = None
        self._launcher: str | None = None  # As in `NodeStatus`, from the thread.
        self._stopping = self._is_closed = False
        # A thread of its own: `Launcher.run` does not survive a KeyboardInterrupt.
        self._thread = threading.Thread(target=self._run_torchrunx, name="torchrunx", daemon=True)

    def start(self) -> None:
        """Start the agent, which begins to import at once, and the launcher."""
        self._thread.start()

    def _run_torchrunx(self) -> None:
        # Child processes inherit the mask: a Ctrl-C must not make a half-started agent print its traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            forks = set(self._plan.nodes[0].devices) == {"cpu"}
            self._agent = Agent(self._scratch, forks=forks)
            import torchrunx

            # Workers open their process group themselves, after their graphs are captured.
            launcher = torchrunx.Launcher(hostnames=["127.0.0.1"], workers_per_host=[len(self.ranks)], backend=None)
            launcher.set_logging_handlers(None)
            logging.getLogger("torchrunx").setLevel(logging.WARNING)
            if not self._stopping:  # A signal may come while torch is imported, which takes seconds.
                patience = self._plan.config.startup_timeout or None
                patched_run(self._agent, patience)(launcher, enter, self._sent)
                self._launcher = ""
        except Exception as error:  # noqa: BLE001  Reported in the status; its frames, which hold sockets, are dropped.
            lines = str(error).strip().splitlines()
            self._launcher = lines[0].rstrip(".") if lines else type(error).__name__
        finally:
            if self._agent is not None:
                self._agent.close()

    def status(self) -> NodeStatus:
        """Read files and processes. After `close`, an unfinished line of rank 0's output counts too."""
        launcher = self._launcher  # Before the ranks: when it has ended well, so have they.
        if launcher is None and self._agent is not None and self._agent.process.poll() is not None:
            launcher = self._agent.how_it_ended()
        size = self._output.size() if self._output else 0  # Output after an exit record is not shown.
        self._watch.look()
        unseen = tuple(self._watch.unseen)
        records = read_exit_records(self._run, self.ranks, spare=self._scratch)  # After ranks, which may have ended.
        for rank in self._watch.ended.keys() - self._places.keys():
            beat = read_beat(self._scratch, rank)
            self._places[rank] = beat.place if beat else "startup"
        return NodeStatus(
            launcher=launcher,
            rendezvous_port=read_rendezvous_port(self._scratch) if self._output else None,
            alive=tuple(self._watch.alive),
            unseen=unseen,
            ended=dict(self._watch.ended),
            places=dict(self._places),
            beats=tuple(read_beats(self._scratch, self._watch.alive)),
            exit_records=records,
            agent_output=self._agent.output() if self._agent is not None and unseen else "",
            oom=oom_verdict(self._oom_kills) if self._watch.ended else "",
            lines=self._new_lines(size, records.get(0)),
            rows=tuple(self._metrics.rows()) if self._output else (),
        )

    def wait(self, seconds: float) -> None:
        """Return after this time, or as soon as a rank ends."""
        self._watch.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that runs."""
        self._stopping = True
        self._watch.signal(number)

    def is_busy(self) -> bool:
        """Whether the launcher or any process with the mark of this launch still runs."""
        return self._thread.is_alive() or bool(marked(self._scratch))

    def close(self) -> None:
        """End what is left with the mark of this launch, such as the agent."""
        self.signal(signal.SIGKILL)
        self._watch.close()
        if self._agent is not None:
            self._agent.close()
        signal_all(marked(self._scratch), signal.SIGKILL)
        drop_empty_stacks(self._run, self.ranks)
        if self._thread.ident is not None:
            self._thread.join(1)
        self._is_closed = True

    def _new_lines(self, size: int, record: ExitRecord | None) -> tuple[str, ...]:
        """Return new output of rank 0, without the traceback of a failure, which is shown at the end."""
        if self._output is None:
            return ()
        if record is not None and record.log_bytes is not None:
            size = min(size, record.log_bytes)
        return tuple(self._output.lines(size, unfinished=self._is_closed))


def remote_nodes(plan: Plan) -> list[RemoteNode]:
    """Return the nodes of a launch, which begin to connect."""
    nodes: list[RemoteNode] = []
    nodes.extend(RemoteNode(plan.of_node(number), nodes) for number in range(len(plan.nodes)))
    return nodes


class RemoteNode:
    """One node."""

    def __init__(self, plan: Plan, nodes: Sequence[RemoteNode]) -> None:
        """Begin to connect. `nodes` are all of the launch, complete before the first starts."""
        self.name = plan.nodes[0].host
        self.ranks = plan.ranks
        self.lost: str | None = None
        """How the connection was lost; None while it stands."""
        self._plan, self._nodes = plan, nodes
        self._pauses = PauseDetector()
        self._status = NodeStatus(unseen=tuple(self.ranks))
        self._received_at = time.monotonic()
        self._clock_offset = -math.inf
        self._is_closed = False
        self._connection = SshConnection(self.name, plan.config.ssh_config, writes_run=0 in self.ranks)
        self._channel = self._connection.channel

    def start(self) -> None:
        """Have the node agent start the launcher."""
        self._channel.send("launch", {"plan": to_json(self._plan)})

    def status(self) -> NodeStatus:
        """Return the last status that came, with new output; the heartbeats of a silent node age."""
        self._look()
        status, age = self._status, time.monotonic() - self._received_at
        self._status = replace(status, lines=(), rows=())
        if age > 2 * CHANNEL_BEAT_S:  # Else they are a second old, and copies of a thousand take a tenth of a core.
            beats = (replace(beat, idle=beat.idle + age, silent=beat.silent + age) for beat in status.beats)
            return replace(status, beats=tuple(beats))
        return status

    def wait(self, seconds: float) -> None:
        """Return after this time."""
        time.sleep(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that runs."""
        self._channel.send("signal", {"number": int(number)})

    def is_busy(self) -> bool:
        """Whether its launcher runs, as far as is known."""
        self._look()
        return self.lost is None and self._status.launcher is None

    def close(self) -> None:
        """Have the node agent end whatever is left, wait for it, and close the connection. The first one ends all."""
        for node in self._nodes if self is self._nodes[0] else ():
            node._channel.send("end")  # noqa: SLF001
        deadline = time.monotonic() + NODE_CLOSE_S
        self._look()
        while self.lost is None and not self._is_closed and time.monotonic() < deadline:
            time.sleep(POLL_S)
            self._look()
        self._connection.close(patience=0.0 if self.lost else 1.0)

    def _look(self) -> None:
        """Handle what the node agent has sent; notice the end of the connection, and a silence that is too long."""
        while not self._channel.inbox.empty():
            match self._channel.inbox.get():
                case {"kind": "status"} as message:
                    self._take_status(message)
                case {"kind": "file"} as message:
                    self._append_to_file(message)
                case {"kind": "bye"}:
                    self._is_closed = True
                case _ if not self._is_closed:
                    self._lose(self._connection.how_it_ended())
        silence = min(self._channel.silence, self._pauses.look())
        limit = self._plan.config.stall_timeout or NODE_SILENCE_S
        limit = max(NODE_LEAST_SILENCE_S, min(NODE_SILENCE_S, limit)) if self._channel.has_greeted else NODE_GREETING_S
        if silence > limit:
            self._lose(f"it was silent for {silence:.0f} s")

    def _lose(self, how: str) -> None:
        if self.lost is None and not self._is_closed:
            self.lost = how

    def _take_status(self, message: Message) -> None:
        # A delay makes the other clock seem to be behind: the least delayed message is right.
        self._clock_offset = max(self._clock_offset, message["time"] - time.time())
        last, status = self._status, from_plain(NodeStatus, message["status"])
        records = status.exit_records.items()
        here = {rank: replace(record, time=record.time - self._clock_offset) for rank, record in records}
        if status.rendezvous_port != last.rendezvous_port:
            for node in self._nodes:
                node._channel.send("rendezvous", {"port": status.rendezvous_port})  # noqa: SLF001
        lines, rows = (*last.lines, *status.lines), (*last.rows, *status.rows)
        self._status = replace(status, exit_records=here, lines=lines, rows=rows)
        self._received_at = time.monotonic()

    def _append_to_file(self, message: Message) -> None:
        file = self._destination(message["group"], message["name"])
        if file is not None:
            with suppress(OSError), folder_of(file).open(file, "a") as output:
                write_all(output, base64.b64decode(message["data"]))

    def _destination(self, group: str, name: str) -> Path | None:
        """Return where a file belongs; None for one that is not of this node's ranks."""
        if group == "logs":
            logs = map(self._plan.log_file, self.ranks if self._plan.log_dir else ())
            return next((log for log in logs if log.name == name), None)
        known = {f"rank_{rank:05d}" for rank in self.ranks}
        return self._plan.run.ranks_dir / name if name.partition(".")[0] in known and "/" not in name else None


class RankWatch:
    """The processes of some ranks."""

    def __init__(self, scratch: Path, ranks: Iterable[int]) -> None:
        """Watch `ranks`, which need not have started."""
        self._files = {rank: life_file(scratch, rank) for rank in ranks}
        self._handles: dict[int, int] = {}
        self.alive: dict[int, int] = {}
        """Process id of each rank that runs, by rank."""
        self.ended: dict[int, str] = {}
        """How each rank ended that ran before, in the order of their ends; empty where that is unknown."""

    @property
    def unseen(self) -> list[int]:
        """Ranks that have shown no sign of life yet."""
        return [rank for rank in self._files if rank not in self.alive and rank not in self.ended]

    def look(self) -> None:
        """Update `alive` and `ended`."""
        for rank in self.unseen:
            pid = locked_by(self._files[rank])
            if pid is not None:
                self.alive[rank] = pid
                with suppress(AttributeError, OSError):  # No such call on this system, or the process has just ended.
                    self._handles[rank] = os.pidfd_open(pid)
        ready = self.wait(0)
        for rank in tuple(self.alive):
            handle = self._handles.get(rank)
            if handle in ready or (handle is None and locked_by(self._files[rank]) is None):
                self.ended[rank] = _last_state(self.alive.pop(rank))
                if handle is not None:
                    os.close(self._handles.pop(rank))

    def wait(self, seconds: float) -> set[int]:
        """Return after this time, or as soon as a rank ends, the handles of ranks that have ended."""
        poll = select.poll()
        for handle in self._handles.values():
            poll.register(handle, select.POLLIN)
        return {handle for handle, _ in poll.poll(seconds * 1000)}

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that runs, by its handle: the kernel may reuse its process id."""
        for handle in self._handles.values():
            with suppress(OSError):
                signal.pidfd_send_signal(handle, number)
        signal_all((pid for rank, pid in self.alive.items() if rank not in self._handles), number)

    def close(self) -> None:
        """Release the handles."""
        while self._handles:
            os.close(self._handles.popitem()[1])


def _last_state(pid: int) -> str:
    """Return how a process ended that its parent has not waited for yet, else an empty string."""
    fields = stat(pid)
    return how_it_ended(os.waitstatus_to_exitcode(int(fields[-1]))) if fields[:1] == ["Z"] else ""


def count_oom_kills() -> dict[Path, int]:
    """Return the number of kills so far in each of the kernel's files that count them, by a line `oom_kill N`."""
    files = [*(group / name for group in control_groups("memory") for name in _OF_GROUP), _MACHINE]
    return {file: count for file in files if (count := _kills(file)) is not None}


def oom_verdict(before: Mapping[Path, int]) -> str:
    """Return whether the kernel has killed for want of memory since, in parentheses and with a leading space."""
    starved = next((file for file, count in before.items() if (_kills(file) or 0) > count), None)
    if starved is None and _MACHINE in before:
        return " (not by the kernel for want of memory: it counts those)"
    if starved is None:
        return " (the kernel does that when memory runs out)"
    if starved == _MACHINE:
        return " (the kernel did that to some process of this machine: memory ran out)"
    sizes = [int(size) for name in _LIMITS if (size := read_text(starved.parent / name)).isdigit()]
    limit = f" of {sizes[0] / 2**20:,.0f} MiB" if sizes else ""
    return f" (the kernel did that: the memory limit of its control group{limit} was reached)"


def _kills(file: Path) -> int | None:
    lines = read_text(file).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
