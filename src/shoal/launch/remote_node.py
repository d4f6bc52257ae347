"""Machines of a launch that are reached over ssh: what their wardens tell, as a launching process looks at it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.launch.hang_detector import PauseDetector
from shoal.launch.node import NodeStatus, shares
from shoal.launch.ssh import SshConnection

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence

    from shoal.launch.channel import Message
    from shoal.launch.node import NodeSpec
    from shoal.plan.nodes import NodePlan
    from shoal.plan.spec import WorkerSpec

SILENT_S = 30.0
"""How long a machine may be silent, at most, before it is taken for lost [s]."""
_LEAST_SILENT_S = 5.0
_BEGIN_S = 120.0
"""How long a machine may take to say the first word [s]: Python may come from a busy file server."""
_BYE_S = 15.0
"""How long a machine may take to clean up, and to send home what it has written [s]."""


def silence_limit(stall_timeout: float) -> float:
    """Return how long a machine may be silent before it is taken for lost [s].

    No longer than a rank may be stuck, but long enough for a switch that starts again.
    """
    return max(_LEAST_SILENT_S, min(SILENT_S, stall_timeout or SILENT_S))


def remote_nodes(job: WorkerSpec) -> list[RemoteNode]:
    """Return the machines of a job, none of which was spoken to yet."""
    news = threading.Event()
    logs = iter(job.log_files)
    files = [[next(logs) for _ in machine.devices] if job.log_files else [] for machine in job.machines]
    told = shares([machine.devices for machine in job.machines], files)
    sites: list[RemoteNode] = []
    sites.extend(
        RemoteNode(job, machine, share, sites, news) for machine, share in zip(job.machines, told, strict=True)
    )
    return sites


class RemoteNode:
    """One machine."""

    def __init__(
        self, job: WorkerSpec, machine: NodePlan, share: NodeSpec, sites: Sequence[RemoteNode], news: threading.Event
    ) -> None:
        """Begin with nothing.

        Args:
            job: The job.
            machine: The machine.
            share: What it does.
            sites: All machines of the launch, which will be there when the first of them is started.
            news: Set whenever one of them has said something.
        """
        self.name = machine.host
        self.ranks = range(*share.ranks)
        self.lost: str | None = None
        self.end = _FarEnd()
        self._job, self._machine, self._share, self._sites, self._news = job, machine, share, sites, news
        self._limit = silence_limit(job.config.stall_timeout)
        self._lookout = PauseDetector()
        self._lock = threading.Lock()
        self._login: SshConnection | None = None
        self._sight = NodeStatus(unseen=tuple(self.ranks))
        self._seen_at = time.monotonic()
        self._ahead = -math.inf
        self._lines: list[str] = []
        self._rows: list[Any] = []
        self._agent_ended = ""
        self._bye = threading.Event()

    def start(self) -> None:
        """Connect, and have the agent started."""
        login = SshConnection(self._machine.host, self._job.config.ssh_config, self._take, writes_run=0 in self.ranks)
        login.line.say(
            "launch",
            {
                "share": asdict(self._share),
                "run_dir": self._job.run_dir,
                "shares_runs": self._machine.shares_runs,
                "network": dict(self._machine.network),
                "meeting": self._job.meeting,
                # One that somebody has stopped for a while comes back, and is not told from a cable that was pulled.
                "patience": self._job.config.stall_timeout or math.inf,
            },
        )
        self._login = login
        self.end.say = lambda data: login.line.say("agent", blob=data)

    def look(self, *, last: bool = False) -> NodeStatus:
        """Return what the warden has told, as old as it is."""
        del last
        self._notice_loss()
        with self._lock:
            age = time.monotonic() - self._seen_at
            beats = tuple(replace(beat, idle=beat.idle + age, silent=beat.silent + age) for beat in self._sight.beats)
            sight = replace(self._sight, beats=beats, lines=tuple(self._lines), rows=tuple(self._rows))
            self._lines.clear()
            self._rows.clear()
        return sight

    def wait(self, seconds: float) -> None:
        """Return after so long, or as soon as a warden has said something."""
        self._news.wait(seconds)
        self._news.clear()

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to every rank that lives."""
        self._say("tell", {"number": int(number)})

    def dismiss(self) -> None:
        """End its agent."""
        self._say("dismiss")

    def how_agent_ended(self) -> str:
        """Say how its agent ended, as far as that is known."""
        return self.lost or self._agent_ended

    def is_busy(self) -> bool:
        """Whether its agent lives."""
        return self._login is not None and self.lost is None and not self._agent_ended

    def finish(self) -> None:
        """Have whatever is left there ended."""
        self._say("end")

    def close(self) -> None:
        """Wait until that is so, and end the connection."""
        if self._login is None:
            return
        deadline = time.monotonic() + _BYE_S
        while not self._bye.wait(0.1) and time.monotonic() < deadline:
            self._notice_loss()
            if self.lost is not None:
                break
        self._login.close(patience=0.0 if self.lost else 1.0)

    def _say(self, kind: str, told: dict[str, Any] | None = None) -> None:
        if self._login is not None:
            self._login.line.say(kind, told)

    def _notice_loss(self) -> None:
        """See whether the warden has ended before its time, or has been silent for too long."""
        watched = self._lookout.look()
        login = self._login
        if login is None or self.lost is not None or self._bye.is_set():
            return
        silent = min(login.line.silent, watched)
        if login.line.has_ended:
            self.lost = login.how_it_ended()
        elif silent > (self._limit if login.line.has_greeted else _BEGIN_S):
            self.lost = f"it was silent for {silent:.0f} s"
        if self.lost is not None:
            self.end.put(None)

    def _take(self, message: Message | None) -> None:
        """Take what the warden says, in the thread that reads the line."""
        if message is None:
            self.end.put(None)
        elif message.kind == "sight":
            self._see(message.told)
        elif message.kind == "agent":
            self.end.put(message.blob)
        elif message.kind == "agent over":
            self._agent_ended = message.told["how"]
            self.end.put(None)
        elif message.kind == "meeting":
            for site in self._sites:
                if site is not self:
                    site._say("meeting", message.told)  # noqa: SLF001
        elif message.kind == "file":
            self._keep(message)
        elif message.kind == "bye":
            self._bye.set()
        self._news.set()

    def _see(self, told: dict[str, Any]) -> None:
        with self._lock:
            # What takes time on the way makes the other clock seem to be behind: the least delayed message is right.
            self._ahead = max(self._ahead, told["time"] - time.time())
            self._sight = NodeStatus.from_plain(told["sight"], ahead=self._ahead)
            self._seen_at = time.monotonic()
            self._lines.extend(self._sight.lines)
            self._rows.extend(self._sight.rows)

    def _keep(self, message: Message) -> None:
        """Write a piece of a file that a machine sends home."""
        name = message.told["name"]
        file = self._home(message.told["group"], name)
        if file is not None:
            with contextlib.suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("ab") as output:
                    output.write(message.blob)

    def _home(self, group: str, name: str) -> Path | None:
        """Return where a file belongs here; None for one that nobody has asked for."""
        if group == "logs":
            return next((Path(log) for log in self._share.log_files if Path(log).name == name), None)
        known = {f"rank_{rank:05d}" for rank in self.ranks}
        return self._job.run.ranks_dir / name if name.partition(".")[0] in known and "/" not in name else None


class _FarEnd:
    """The line to an agent, through its warden."""

    def __init__(self) -> None:
        self._came: deque[bytes | None] = deque()
        self._more = threading.Condition()
        self.say: Callable[[bytes], object] = bytes  # Until there is a line.

    def put(self, data: bytes | None) -> None:
        """Take what has come; None at the end."""
        with self._more:
            self._came.append(data)
            self._more.notify_all()

    def send_bytes(self, buf: bytes, /) -> None:
        """Send a message."""
        self.say(buf)

    def recv_bytes(self) -> bytes:
        """Wait for a message and return it."""
        self.poll(None)
        with self._more:
            data = self._came[0]
            if data is None:
                raise EOFError
            self._came.popleft()
        return data

    def poll(self, timeout: float | None = 0.0, /) -> bool:
        """Wait until there is a message or the end."""
        with self._more:
            return self._more.wait_for(lambda: bool(self._came), timeout)

    def close(self) -> None:
        """Let go of this end: nobody waits for it any more."""
