"""A node of `--hosts` as the launching process sees it: an ssh connection to its node agent, and the last status."""

from __future__ import annotations

import base64
import contextlib
import math
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.config.plain import from_plain
from shoal.files import folder_of, write_all
from shoal.launch.hang_detector import PauseDetector
from shoal.launch.node import NodeStatus
from shoal.launch.remote.channel import Message
from shoal.launch.remote.ssh import SshConnection
from shoal.plan.spec import WorkerSpec
from shoal.timing import CHANNEL_BEAT_S, NODE_CLOSE_S, NODE_GREETING_S, NODE_LEAST_SILENCE_S, NODE_SILENCE_S, POLL_S


def remote_nodes(spec: WorkerSpec) -> list[RemoteNode]:
    """Return the nodes of a launch, which begin to connect."""
    nodes: list[RemoteNode] = []
    nodes.extend(RemoteNode(spec.of_node(number), nodes) for number in range(len(spec.nodes)))
    return nodes


class RemoteNode:
    """One node."""

    def __init__(self, spec: WorkerSpec, nodes: Sequence[RemoteNode]) -> None:
        """Begin to connect. `nodes` are all of the launch, complete before the first starts."""
        self.name = spec.nodes[0].host
        self.ranks = spec.ranks
        self.lost: str | None = None
        """How the connection was lost; None while it stands."""
        self._spec, self._nodes = spec, nodes
        self._pauses = PauseDetector()
        self._lock = threading.Lock()
        self._status = NodeStatus(unseen=tuple(self.ranks))
        self._received_at = time.monotonic()
        self._clock_offset = -math.inf
        self._lines: list[str] = []
        self._rows: list[Mapping[str, Any]] = []
        self._closed = threading.Event()
        writes_run = 0 in self.ranks
        self._connection = SshConnection(self.name, spec.config.ssh_config, self._receive, writes_run=writes_run)
        self._channel = self._connection.channel

    def start(self) -> None:
        """Have the node agent start the launcher."""
        # A launching process that is stopped for a while comes back, and looks like one behind a cut cable.
        patience = self._spec.config.stall_timeout or math.inf
        self._channel.send("launch", {"spec": self._spec.to_json(), "patience": patience})

    def status(self) -> NodeStatus:
        """Return the last status that came, with new output; the heartbeats of a silent node age."""
        self._notice_loss()
        with self._lock:
            age = time.monotonic() - self._received_at
            beats = self._status.beats
            if age > 2 * CHANNEL_BEAT_S:  # Else they are a second old, and copies of a thousand take a tenth of a core.
                beats = tuple(replace(beat, idle=beat.idle + age, silent=beat.silent + age) for beat in beats)
            status = replace(self._status, beats=beats, lines=tuple(self._lines), rows=tuple(self._rows))
            self._lines.clear()
            self._rows.clear()
        return status

    def wait(self, seconds: float) -> None:
        """Return after this time."""
        time.sleep(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that runs."""
        self._channel.send("signal", {"number": int(number)})

    def is_busy(self) -> bool:
        """Whether its launcher runs, as far as is known."""
        return self.lost is None and self._status.launcher is None

    def close(self) -> None:
        """Have the node agent end whatever is left, wait for it, and close the connection. The first one ends all."""
        for node in self._nodes if self is self._nodes[0] else ():
            node._channel.send("end")  # noqa: SLF001
        deadline = time.monotonic() + NODE_CLOSE_S
        while self.lost is None and not self._closed.wait(POLL_S) and time.monotonic() < deadline:
            self._notice_loss()
        self._connection.close(patience=0.0 if self.lost else 1.0)

    def _notice_loss(self) -> None:
        """Detect that the connection ended early, or that the node has been silent for too long."""
        silence = min(self._channel.silence, self._pauses.look())
        if self.lost is not None or self._closed.is_set():
            return
        limit = self._spec.config.stall_timeout or NODE_SILENCE_S
        limit = max(NODE_LEAST_SILENCE_S, min(NODE_SILENCE_S, limit)) if self._channel.has_greeted else NODE_GREETING_S
        if self._channel.has_ended:
            self.lost = self._connection.how_it_ended()
        elif silence > limit:
            self.lost = f"it was silent for {silence:.0f} s"

    def _receive(self, message: Message | None) -> None:
        """Handle a message of the node agent, in the thread that reads the channel."""
        match message:
            case {"kind": "status"}:
                self._take_status(message)
            case {"kind": "file"}:
                self._append_to_file(message)
            case {"kind": "bye"}:
                self._closed.set()
            case _:  # The end of the channel, which `_notice_loss` sees.
                pass

    def _take_status(self, message: Message) -> None:
        # A delay makes the other clock seem to be behind: the least delayed message is right.
        self._clock_offset = max(self._clock_offset, message["time"] - time.time())
        status = from_plain(NodeStatus, message["status"])
        records = status.exit_records.items()
        here = {rank: replace(record, time=record.time - self._clock_offset) for rank, record in records}
        if status.rendezvous_port != self._status.rendezvous_port:
            for node in self._nodes:
                node._channel.send("rendezvous", {"port": status.rendezvous_port})  # noqa: SLF001
        with self._lock:
            self._status = replace(status, exit_records=here)
            self._received_at = time.monotonic()
            self._lines.extend(status.lines)
            self._rows.extend(status.rows)

    def _append_to_file(self, message: Message) -> None:
        file = self._destination(message["group"], message["name"])
        if file is not None:
            with contextlib.suppress(OSError), folder_of(file).open(file, "a") as output:
                write_all(output, base64.b64decode(message["data"]))

    def _destination(self, group: str, name: str) -> Path | None:
        """Return where a file belongs; None for one that is not of this node's ranks."""
        if group == "logs":
            logs = map(self._spec.log_file, self.ranks if self._spec.log_dir else ())
            return next((log for log in logs if log.name == name), None)
        known = {f"rank_{rank:05d}" for rank in self.ranks}
        return self._spec.run.ranks_dir / name if name.partition(".")[0] in known and "/" not in name else None
