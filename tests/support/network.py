"""What joins machines: a switch in a network namespace of its own, cables to it, and an address and names for each."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from support.namespaces import NoNamespacesError

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERFACE = "eth0"
"""The network card of each node."""
_SLOW_CABLE = Path(__file__).with_name("slow_cable.py")


@dataclass(frozen=True)
class AddressBook:
    """Who has which address, and what each node's `/etc/hosts` says of it."""

    names: Sequence[str]
    versions: Sequence[Literal[4, 6]] = (4, 6)
    """Versions of the internet protocol that the network cards have an address of."""
    debian: bool = False
    """Whether each node takes its own name for 127.0.1.1, as Debian's installer leaves it."""

    def address(self, name: str, version: Literal[4, 6]) -> str:
        """Return the address of a machine."""
        number = self.names.index(name) + 1
        return f"10.78.0.{number}" if version == 4 else f"fd78::{number:x}"

    def addresses(self, name: str) -> list[str]:
        """Return all addresses of a machine."""
        return [self.address(name, version) for version in self.versions]

    def hosts(self, at: str) -> str:
        """Return `/etc/hosts` of one machine."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        if self.debian:
            lines.append(f"127.0.1.1 {at}")
        listed = [name for name in self.names if name != at or not self.debian]
        lines += [f"{self.address(name, version)} {name}" for name in listed for version in self.versions]
        return "".join(f"{line}\n" for line in lines)

    def setting_up(self, name: str) -> list[str]:
        """Return what `ip` has to do on a machine that has just been given its card."""
        addresses = [
            # An address is in use at once only where nobody looks for another owner of it.
            f"addr add {self.address(name, version)}{'/24' if version == 4 else '/64 nodad'} dev {INTERFACE}"
            for version in self.versions
        ]
        return ["link set lo up", *addresses, f"link set {INTERFACE} up"]


class Switch:
    """A switch with a port for each node. It goes when its owner does."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise NoNamespacesError(_said(self._process))
        # A switch that listens to who wants which multicast needs someone who asks, and delays the first IPv6 packets.
        self.wire("link add switch type bridge mcast_snooping 0", "link set switch up")
        self._slow: dict[int, subprocess.Popen[str]] = {}

    def plug(self, number: int, machine: int) -> None:
        """Lead a cable from port `number` to a new card of the machine that process `machine` is in."""
        self.wire(
            f"link add port{number} type veth peer name {INTERFACE} netns {machine}",
            f"link set port{number} master switch up",
        )

    def unplug(self, number: int) -> None:
        """Take a cable away, and the card at its end."""
        self.speed_up(number)
        self.wire(f"link del port{number}")

    def cut(self, number: int) -> None:
        """Pull the cable from a port."""
        self.wire(f"link set port{number} down")

    def mend(self, number: int) -> None:
        """Plug the cable into a port again."""
        self.wire(f"link set port{number} up")

    def slow_down(self, number: int, delay_s: float, loss: float) -> None:
        """Put a device between a port and the rest of the switch that lets every frame wait, and loses some.

        Args:
            number: The port.
            delay_s: How long a frame takes longer, in either direction [s].
            loss: What part of the frames is lost.
        """
        self.speed_up(number)
        words = [sys.executable, "-I", "-S", str(_SLOW_CABLE), f"in{number}", f"out{number}", str(delay_s), str(loss)]
        self._slow[number] = process = subprocess.Popen(
            [*self._entering, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self.wire(
            f"link add between{number} type bridge mcast_snooping 0",
            f"link set between{number} up",
            f"link set in{number} master between{number} up",
            f"link set out{number} master switch up",
            f"link set port{number} master between{number}",
        )

    def speed_up(self, number: int) -> None:
        """Take that device away."""
        if (process := self._slow.pop(number, None)) is not None:
            _end(process)
            self.wire(f"link set port{number} master switch", f"link del between{number}")

    def end(self) -> None:
        """Take the switch away, and all cables with it."""
        for process in (*self._slow.values(), self._process):
            _end(process)

    def wire(self, *commands: str) -> None:
        """Have `ip` do this on the switch."""
        run_ip(commands, self._process.pid)

    @property
    def _entering(self) -> list[str]:
        return ["nsenter", f"--target={self._process.pid}", "--net", "--"]


def run_ip(commands: Sequence[str], inside: int) -> None:
    """Have `ip` do this in the network namespace of process `inside`."""
    words = ["nsenter", f"--target={inside}", "--net", "--", "ip", "-batch", "-"]
    done = subprocess.run(words, input="\n".join(commands), capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{commands}: {done.stderr.strip()}"
        raise NoNamespacesError(message)


def _said(process: subprocess.Popen[str]) -> str:
    _, complaint = process.communicate()
    return complaint.strip()


def _end(process: subprocess.Popen[str]) -> None:
    """End a process that lives as long as its standard input."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.wait(timeout=30)
