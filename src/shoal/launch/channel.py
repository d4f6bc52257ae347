"""Messages between the launching process and a node agent, over the two pipes of an ssh connection.

A message is a JSON object and a byte string. Each end sends one a second at least: a connection whose cable was cut
does not end, it falls silent. Sending never blocks the caller, since a pipe without a reader fills up.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.timing import CHANNEL_BEAT_S, CHANNEL_FLUSH_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GREETING = b"\n\0shoal\0\n"
"""The first bytes of the remote end. A login shell may have printed something before them."""

_HEAD = struct.Struct(">II")
_LONGEST_BYTES = 1 << 28
_LONGEST_PREAMBLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    data: dict[str, Any]
    blob: bytes = b""

    @property
    def kind(self) -> str:
        """Its kind."""
        return self.data["kind"]


class ClockOffset:
    """How far the other end's clock is ahead of this one's, from the times in its messages.

    A delay makes the other clock seem to be behind, so the least delayed message is right.
    """

    def __init__(self) -> None:
        self._offset = -math.inf

    def update(self, sent: float) -> float:
        """Return the offset after a message that was sent at this time of the other clock [s]."""
        self._offset = max(self._offset, sent - time.time())
        return self._offset


class Channel:
    """One end. A thread of its own hands each incoming message to a callback."""

    def __init__(
        self,
        read_from: int,
        write_to: int,
        on_message: Callable[[Message | None], None],
        *,
        greets: bool = False,
        header: bytes = b"",
    ) -> None:
        """Start to read and to send beats.

        Args:
            read_from: A descriptor, which this object closes.
            write_to: Another.
            on_message: Called with each message but beats, and with None at the end of the other side.
            greets: Whether this is the remote end, which sends the greeting; the other end waits for it.
            header: Written before any message.
        """
        self._read_from, self._write_to = read_from, write_to
        self._on_message = on_message
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self.has_greeted = greets
        """Whether the remote end has sent its greeting."""
        self._received_at = time.monotonic()
        self._outbox.put(GREETING if greets else header)
        threading.Thread(target=self._read, args=(not greets,), name="channel in", daemon=True).start()
        self._writer = threading.Thread(target=self._write, name="channel out", daemon=True)
        self._writer.start()

    @property
    def has_ended(self) -> bool:
        """Whether the other end has closed, or has sent bytes that are no message."""
        return self._ended.is_set()

    @property
    def silence(self) -> float:
        """Time since the last bytes from the other end [s]."""
        return time.monotonic() - self._received_at

    def send(self, kind: str, data: Mapping[str, Any] | None = None, blob: bytes = b"") -> None:
        """Queue a message."""
        text = json.dumps({**(data or {}), "kind": kind}).encode()
        self._outbox.put(_HEAD.pack(len(text), len(blob)) + text + blob)

    def close(self) -> None:
        """Flush, then close the write end."""
        self._outbox.put(None)
        self._writer.join(CHANNEL_FLUSH_S)

    def _write(self) -> None:
        beat = _HEAD.pack(0, 0)
        with contextlib.suppress(OSError):  # The other end has closed, which the reader notices.
            while True:
                try:
                    data = self._outbox.get(timeout=CHANNEL_BEAT_S)
                except queue.Empty:
                    data = beat
                if data is None:
                    break
                view = memoryview(data)
                while view:
                    view = view[os.write(self._write_to, view) :]
        os.close(self._write_to)

    def _read(self, expects_greeting: bool) -> None:  # noqa: FBT001  A thread's argument.
        with contextlib.suppress(OSError, EOFError, ValueError):
            if expects_greeting:
                self._skip_preamble()
            while True:
                lengths = _HEAD.unpack(self._take(_HEAD.size))
                if max(lengths) > _LONGEST_BYTES:
                    break
                text, blob = (self._take(length) for length in lengths)
                if text:
                    self._on_message(Message(json.loads(text), blob))
        self._ended.set()
        os.close(self._read_from)
        self._on_message(None)

    def _skip_preamble(self) -> None:
        seen = b""
        while not seen.endswith(GREETING):
            seen += self._take(1)
            if len(seen) > _LONGEST_PREAMBLE_BYTES:
                raise EOFError
        self.has_greeted = True

    def _take(self, size: int) -> bytes:
        """Return this many bytes."""
        taken = bytearray()
        while len(taken) < size:
            data = os.read(self._read_from, size - len(taken))
            if not data:
                raise EOFError
            self._received_at = time.monotonic()
            taken += data
        return bytes(taken)
