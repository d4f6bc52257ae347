"""The agent of a node of `--hosts`: starts torchrunx's agent there, and reports the node's status to the launcher.

Run by ssh as `python -m shoal.launch.node_agent`, with the channel to the launcher on standard input and output. It
opens no port but for a moment, to test whether the other nodes can connect to this one. When the channel closes, or the
launcher has been silent for too long, it exits, and its reaper lets the ranks save and then ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from shoal.launch.channel import BEAT_S, Channel, Message
from shoal.launch.node import LocalNode, NodeSpec
from shoal.launch.reaper import reaped_scratch
from shoal.launch.tcp_rendezvous import meeting_port, write_meeting_port
from shoal.launch.worker_entry import PLACE
from shoal.machine.gpus import visible_gpus
from shoal.machine.host import usable_cores
from shoal.machine.network import addresses_by_interface
from shoal.plan.environment_parity import fingerprint
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.launch.node import NodeStatus

_POLL_S = 0.1
_REACH_S = 3.0
"""How long an address may take to answer [s]."""
_CHUNK_BYTES = 1 << 20
_KEPT_BYTES = 16 << 20
"""How much of the end of each file goes home [bytes]."""


def main() -> None:
    """Do what the launching process says, until it says no more."""
    said, answered = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # What somebody prints must not get into the line.
    inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    line = Channel(said, answered, inbox.put, greets=True)
    listeners: list[socket.socket] = []
    while (message := inbox.get()) is not None:
        told = message.told
        if message.kind == "facts":
            line.say("facts", _facts(told))
        elif message.kind == "listen":
            line.say("listen", {"ports": _listen(told["addresses"], listeners)})
        elif message.kind == "reach":
            line.say("reach", {"routes": _reach(told["places"], told["interface"])})
        elif message.kind == "launch":
            _NodeAgent(line, inbox, told).run()
            break
    line.close()


# Before a launch ------------------------------------------------------------------------------------------------------


def _facts(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is true of this machine, see `NodeFacts`."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return {
        "time": time.time(),
        "name": socket.gethostname(),
        "gpus": asdict(visible_gpus()),
        "cores": usable_cores(),
        "addresses": addresses_by_interface(),
        "reached_at": connection[2].partition("%")[0] if len(connection) > 2 else None,  # noqa: PLR2004
        "shares_runs": Path(asked["token"]).is_file(),
        "fingerprint": asdict(fingerprint("", asked["packages"], asked["files"])),
    }


def _listen(addresses: list[str], listeners: list[socket.socket]) -> dict[str, int]:
    """Listen at each address that can be listened at, for as long as this process lives; return the ports."""
    ports: dict[str, int] = {}
    for address in addresses:
        with contextlib.suppress(OSError):
            listener = socket.create_server(
                (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=1024
            )
            listeners.append(listener)
            ports[address] = listener.getsockname()[1]
    return ports


def _reach(places: Mapping[str, int], interface: str | None) -> dict[str, tuple[str, str]]:
    """Try to connect to all addresses at once; return own address and interface for each that answered."""
    interfaces = addresses_by_interface()
    owners = {address: name for name, addresses in interfaces.items() for address in addresses}

    def attempt(address: str) -> tuple[str, str] | None:
        sources = (
            [own for own in interfaces.get(interface, ()) if (":" in own) == (":" in address)] if interface else [""]
        )
        for source in sources:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(
                    (address, places[address]), _REACH_S, (source, 0) if source else None
                ) as connection,
            ):
                own = connection.getsockname()[0].partition("%")[0]
                return own, owners[own]
        return None

    with ThreadPoolExecutor(len(places)) as pool:
        found = zip(places, pool.map(attempt, places), strict=True)
        return {address: route for address, route in found if route is not None}


# A launch -------------------------------------------------------------------------------------------------------------


class _NodeAgent:
    """One launch on this machine."""

    def __init__(self, line: Channel, inbox: queue.SimpleQueue[Message | None], told: Mapping[str, Any]) -> None:
        self._line = line
        self._inbox = inbox
        self._told = told
        self._over = False
        self._met = False
        self._said: NodeStatus | None = None
        self._said_at = 0.0

    def run(self) -> None:
        """Start the agent, and serve until the launching process has had enough."""
        with reaped_scratch() as scratch:
            self._scratch = scratch
            share, run = self._place(scratch)
            place = {
                "job": {
                    "scratch": str(scratch),
                    "devices": share.devices,
                    "log_files": share.log_files,
                    "run_dir": str(run.path),
                },
                "network": self._told["network"],
                "meeting": self._told["meeting"],
            }
            self._site = LocalNode(share, run, scratch, {PLACE: json.dumps(place)})
            self._site.start()
            threading.Thread(target=self._relay, name="agent", daemon=True).start()
            while not self._over:
                self._show(self._site.look())
                self._site.wait(_POLL_S)
                self._listen()
            self._site.close()
            self._show(self._site.look(last=True))
            if not self._told["shares_runs"]:
                self._send_home(run, share)
        self._line.say("bye")

    def _place(self, scratch: Path) -> tuple[NodeSpec, RunDir]:
        """Return what to do, and where: what this machine cannot share is kept apart until it goes home."""
        told = dict(self._told["share"])
        share = NodeSpec(**{**told, **{name: tuple(told[name]) for name in ("ranks", "devices", "log_files")}})
        names = [Path(log).name for log in share.log_files] or [f"{number}.log" for number in range(len(share.devices))]
        if not self._told["shares_runs"] or not share.log_files:
            share = replace(share, log_files=tuple(str(scratch / "logs" / name) for name in names))
        run = RunDir(Path(self._told["run_dir"]) if self._told["shares_runs"] else scratch / "run")
        if not self._told["shares_runs"]:
            run.ranks_dir.mkdir(parents=True)
        return share, run

    def _relay(self) -> None:
        """Hand on what the agent says."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._line.say("agent", blob=self._site.end.recv_bytes())
        self._line.say("agent over", {"how": self._site.how_agent_ended()})

    def _show(self, sight: NodeStatus) -> None:
        """Say what is seen, when there is something new, and now and then in any case."""
        same = self._said is not None and replace(sight, beats=()) == replace(self._said, beats=(), lines=(), rows=())
        if same and time.monotonic() - self._said_at < BEAT_S:
            return
        self._said, self._said_at = sight, time.monotonic()
        self._line.say("sight", {"sight": sight.to_plain(), "time": time.time()})
        if not self._met and self._told["share"]["number"] == 0:
            port = meeting_port(self._scratch)
            if port is not None:
                self._met = True
                self._line.say("meeting", {"port": port})

    def _listen(self) -> None:
        """Do what was said since the last time."""
        if self._line.silent > self._told["patience"]:
            _leave()
        while not self._inbox.empty():
            message = self._inbox.get()
            if message is None:
                _leave()
            if message.kind == "agent":
                with contextlib.suppress(OSError):  # It has ended, and its line tells.
                    self._site.end.send_bytes(message.blob)
            elif message.kind == "tell":
                self._site.tell(signal.Signals(message.told["number"]))
            elif message.kind == "meeting":
                write_meeting_port(self._scratch, message.told["port"])
            elif message.kind == "dismiss":
                self._site.dismiss()
            elif message.kind == "end":
                self._over = True

    def _send_home(self, run: RunDir, share: NodeSpec) -> None:
        """Send what ranks have written here and nobody else can read: their output, and what is told of their ends."""
        files = [("ranks", path) for path in sorted(run.ranks_dir.iterdir())]
        files += [("logs", Path(log)) for log in share.log_files if self._told["share"]["log_files"]]
        for group, path in files:
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _KEPT_BYTES))
                while chunk := file.read(_CHUNK_BYTES):
                    self._line.say("file", {"group": group, "name": path.name}, chunk)


def _leave() -> NoReturn:
    """End at once. The guard, which then knows that this process is gone, ends what it has started."""
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
