"""The agent of a node of `--hosts`: answers the host probe, runs a `LocalNode`, and sends its status to the launcher.

ssh runs it as `python -m shoal.launch.remote.node_agent`, with the channel on standard input and output. It opens no
port, but for a moment to test whether other nodes can connect. When the channel closes, or the launching process has
been silent for too long, it exits, and its reaper lets the ranks save and then ends them.
"""

import base64
import contextlib
import json
import math
import os
import signal
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from shoal.files import folder_of
from shoal.launch.node import LocalNode, NodeStatus
from shoal.launch.reaper import reaped_scratch
from shoal.launch.remote.channel import Channel, Message
from shoal.launch.rendezvous import write_rendezvous_port
from shoal.machine.gpus import visible_gpus
from shoal.machine.network import addresses_by_interface
from shoal.plan.environment_parity import fingerprint
from shoal.plan.launch import Plan
from shoal.plan.received import read_workers
from shoal.timing import CHANNEL_BEAT_S, POLL_S, REACH_S

_CHUNK_BYTES = 1 << 16
_LAST_BYTES = 16 << 20  # How much of the end of each file is sent.


def main() -> NoReturn:
    """Serve the launching process until it closes the channel."""
    incoming, outgoing = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # Prints must not get into the channel.
    channel = Channel(incoming, outgoing, greets=True)
    listeners: list[socket.socket] = []
    while (message := channel.inbox.get()) is not None:
        kind = message["kind"]
        if kind == "facts":
            channel.send(kind, _facts(message))
        elif kind == "listen":
            channel.send(kind, {"ports": _listen(message["addresses"], listeners)})
        elif kind == "reach":
            channel.send(kind, {"routes": _reach(message["ports"], message["interface"])})
        elif kind == "launch":
            _launch(channel, message)
            break
    channel.close()
    os._exit(0)  # torch, once loaded, takes a second to shut down, and the launching process waits for the connection.


def _facts(request: Message) -> dict[str, Any]:
    """Return this machine's `NodeFacts` as plain values."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return {
        "time": time.time(),
        "name": socket.gethostname(),
        "gpus": asdict(visible_gpus()),
        "addresses": addresses_by_interface(),
        "reached_at": connection[2].partition("%")[0] if len(connection) > 2 else None,  # noqa: PLR2004
        "shares_runs": Path(request["token"]).is_file(),
        "fingerprint": asdict(fingerprint("", request["packages"], request["files"])),
    }


def _listen(addresses: list[str], listeners: list[socket.socket]) -> dict[str, int]:
    """Listen at each address where that is possible, for as long as this process runs; return the ports."""
    ports: dict[str, int] = {}
    for address in addresses:
        with contextlib.suppress(OSError):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listeners.append(socket.create_server((address, 0), family=family, backlog=1024))
            ports[address] = listeners[-1].getsockname()[1]
    return ports


def _reach(ports: Mapping[str, int], interface: str | None) -> dict[str, tuple[str, str]]:
    """Try to connect to all addresses at once; return the own address and interface for each that answered."""
    interfaces = addresses_by_interface()
    owners = {address: name for name, addresses in interfaces.items() for address in addresses}

    def attempt(address: str) -> tuple[str, str] | None:
        same_family = [own for own in interfaces.get(interface or "", ()) if (":" in own) == (":" in address)]
        for source in same_family if interface else [""]:
            with contextlib.suppress(OSError):
                bound = (source, 0) if source else None
                with socket.create_connection((address, ports[address]), REACH_S, bound) as connection:
                    own = connection.getsockname()[0].partition("%")[0]
                    return own, owners[own]
        return None

    with ThreadPoolExecutor(len(ports)) as pool:
        found = zip(ports, pool.map(attempt, ports), strict=True)
        return {address: route for address, route in found if route is not None}


def _launch(channel: Channel, request: Message) -> None:
    """Start the ranks, and serve until the launching process ends the launch."""
    sent = json.loads(request["plan"])
    asked = read_workers(sent)
    # A launching process that is stopped for a while comes back, and looks like one behind a cut cable.
    patience = asked.config.stall_timeout or math.inf
    shares_runs = asked.nodes[0].shares_runs
    with reaped_scratch() as scratch:
        # Without the launching process's disk, files are written here, and sent at the end.
        here = {
            "scratch": str(scratch),
            "run_dir": asked.run_dir if shares_runs else str(scratch / "run"),
            "log_dir": (asked.log_dir if shares_runs else None) or str(scratch / "logs"),
        }
        plan = replace(asked, **here)
        if not shares_runs:
            folder_of(plan.run.run_json).make(plan.run.ranks_dir)
        node = LocalNode(plan, json.dumps(sent | here))
        node.start()
        sent, sent_at = NodeStatus(), -math.inf
        while not _is_ended(channel, node, scratch):
            status = node.status()
            is_new = replace(status, beats=()) != replace(sent, beats=(), lines=(), rows=())
            if is_new or time.monotonic() - sent_at > CHANNEL_BEAT_S:
                sent, sent_at = status, time.monotonic()
                _send_status(channel, status)
            node.wait(POLL_S)
            if channel.silence > patience:
                os._exit(1)  # The reaper ends what this process has started.
        node.close()
        _send_status(channel, node.status())
        if not shares_runs:
            _send_files(channel, plan, with_logs=bool(asked.log_dir))
    channel.send("bye")


def _is_ended(channel: Channel, node: LocalNode, scratch: Path) -> bool:
    """Handle what the launching process has sent; return whether it has ended the launch."""
    while not channel.inbox.empty():
        match channel.inbox.get():
            case {"kind": "signal", "number": number}:
                node.signal(signal.Signals(number))
            case {"kind": "rendezvous", "port": port}:
                write_rendezvous_port(scratch, port)
            case {"kind": "end"}:
                return True
            case _:
                os._exit(1)
    return False


def _send_status(channel: Channel, status: NodeStatus) -> None:
    channel.send("status", {"status": asdict(status), "time": time.time()})


def _send_files(channel: Channel, plan: Plan, *, with_logs: bool) -> None:
    """Send the files that ranks have written to this machine's disk: exit records, stacks and output."""
    files = [("ranks", path) for path in sorted(plan.run.ranks_dir.iterdir())]
    files += [("logs", plan.log_file(rank)) for rank in plan.ranks if with_logs]
    for group, path in files:
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LAST_BYTES))
            while chunk := file.read(_CHUNK_BYTES):
                data = base64.b64encode(chunk).decode()
                channel.send("file", {"group": group, "name": path.name, "data": data})


if __name__ == "__main__":
    main()
