"""Messages between the launching process and a node agent, over the two pipes of an ssh connection.

A message is a JSON object. Each end sends bytes once a second at least: a connection whose cable was cut does not end,
it falls silent. Sending never blocks the caller, since a pipe without a reader fills up.
"""

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from shoal.timing import CHANNEL_BEAT_S, CHANNEL_FLUSH_S

Message = dict[str, Any]
"""What was passed to `send`, with its `kind`."""

GREETING = b"\n\0shoal\0\n"
"""The first bytes of the remote end. A login shell may have printed something before them."""
_LONGEST_BYTES = 1 << 28
_LONGEST_PREAMBLE_BYTES = 1 << 16


class Channel:
    """One end."""

    def __init__(self, read_from: int, write_to: int, *, greets: bool = False) -> None:
        """Start to read and to send beats over two descriptors, which this object closes. The remote end `greets`."""
        self.inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        """Each message that came, and None once the other end has closed, or has sent bytes that are no message."""
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.has_greeted = greets
        """Whether the remote end has sent its greeting."""
        self._received_at = time.monotonic()
        self._writer = threading.Thread(target=self._write, args=(write_to, greets), name="channel out", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, args=(read_from,), name="channel in", daemon=True).start()

    @property
    def silence(self) -> float:
        """Time since the last bytes from the other end [s]."""
        return time.monotonic() - self._received_at

    def send(self, kind: str, data: Mapping[str, Any] | None = None) -> None:
        """Queue a message."""
        self._outbox.put(json.dumps({**(data or {}), "kind": kind}).encode())

    def close(self) -> None:
        """Flush, then close the write end."""
        self._outbox.put(None)
        self._writer.join(CHANNEL_FLUSH_S)

    def _write(self, descriptor: int, greets: bool) -> None:  # noqa: FBT001
        with contextlib.suppress(OSError), Connection(descriptor, readable=False) as connection:
            if greets:
                os.write(descriptor, GREETING)
            while True:
                try:
                    data = self._outbox.get(timeout=CHANNEL_BEAT_S)
                except queue.Empty:
                    data = b""
                if data is None:
                    break
                connection.send_bytes(data)

    def _read(self, descriptor: int) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError), Connection(descriptor, writable=False) as connection:
            if not self.has_greeted:
                self._skip_preamble(descriptor)
            while True:
                data = connection.recv_bytes(_LONGEST_BYTES)
                self._received_at = time.monotonic()
                if data:
                    self.inbox.put(json.loads(data))
        self.inbox.put(None)

    def _skip_preamble(self, descriptor: int) -> None:
        seen = b""
        while not seen.endswith(GREETING):
            byte = os.read(descriptor, 1)
            seen += byte
            if not byte or len(seen) > _LONGEST_PREAMBLE_BYTES:
                raise EOFError
        self._received_at = time.monotonic()
        self.has_greeted = True
