"""What the processes of a command listen on while it runs, and a stranger who sends garbage and pickle bombs there."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
from support.commands import marked

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

ANY = "0.0.0.0"  # noqa: S104  Nothing is bound to it: it is what a listener may be found on.
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Listener:
    """A socket that takes connections."""

    pid: int
    """A process that holds it."""
    address: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether it can be reached from this machine only."""
        return self.address.startswith("127.") or self.address == "::1"


def listeners(pids: Iterable[int]) -> set[Listener]:
    """Return the TCP sockets on which these processes listen."""
    found = set[Listener]()
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # It may end while we look.
            found |= {
                Listener(pid, address=str(each.laddr[0]), port=int(each.laddr[1]))
                for each in psutil.Process(pid).connections("tcp")
                if each.status == psutil.CONN_LISTEN
            }
    return found


class _Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def letters(file: Path) -> list[bytes]:
    """What a stranger sends: nothing, garbage, and bombs that make `file` in each framing that was seen to be read."""
    bomb = pickle.dumps(_Bomb(file))
    garbage = bytes(range(256)) * 64
    return [
        b"",
        garbage,
        bomb,
        struct.pack(">L", len(bomb)) + bomb,  # as logging's SocketHandler sends records, and multiprocessing objects
        struct.pack("=Q", len(bomb)) + bomb,
        struct.pack(">L", 0xFFFFFFFF),  # announces more than ever comes
    ]


class Stranger:
    """Follows what a command listens on and, if it was given a file for its bombs, sends its letters there."""

    def __init__(self, mark: str, bomb_file: Path | None = None) -> None:
        self.seen: set[Listener] = set()
        """All that has ever been listened on."""
        self.letters_sent = 0
        self._letters = letters(bomb_file) if bomb_file is not None else []
        self._mark = mark
        self._through = threading.Event()
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._through.set()
        self._thread.join()
        for connection in self._held:
            connection.close()

    def send_letters(self) -> None:
        """Send each letter to each port that is open now; connections stay open until the end."""
        for listener in listeners(list(marked(self._mark))):
            self._send_to(listener)

    def _follow(self) -> None:
        while not self._through.wait(_LOOK_EVERY_S):
            fresh = listeners(list(marked(self._mark))) - self.seen
            self.seen |= fresh
            for listener in fresh:
                self._send_to(listener)

    def _send_to(self, listener: Listener) -> None:
        host = {ANY: "127.0.0.1", "::": "::1"}.get(listener.address, listener.address)
        for letter in self._letters:
            with contextlib.suppress(OSError):  # refused, or closed by the command, as it may
                connection = socket.create_connection((host, listener.port), timeout=2)
                self._held.append(connection)
                connection.sendall(letter)
                self.letters_sent += 1
