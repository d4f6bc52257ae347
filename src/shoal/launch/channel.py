"""Messages between the launching process and another machine, over two descriptors: those of an ssh connection.

A message is a JSON object, and bytes that nobody on the way looks into. Each side says something at least once a
second: a connection whose cable was pulled does not end, it only falls silent. Writing never keeps the caller waiting,
since a pipe that leads nowhere fills up.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GREETING = b"\n\0shoal\0\n"
"""What the far side sends before its first message. A login shell may have printed something before it."""
BEAT_S = 1.0
"""Longest time between two messages [s]."""

_HEAD = struct.Struct(">II")
_LONGEST_BYTES = 1 << 28
_LONGEST_PREAMBLE_BYTES = 1 << 16
_FLUSH_S = 5.0
"""How long what was said last may take to be written [s]."""


@dataclass(frozen=True, slots=True)
class Message:
    """What one side says to the other."""

    told: dict[str, Any]
    blob: bytes = b""

    @property
    def kind(self) -> str:
        """What it is about."""
        return self.told["kind"]


class Channel:
    """One end. Messages that come are handed over one by one, by a thread of its own."""

    def __init__(
        self,
        read_from: int,
        write_to: int,
        on_message: Callable[[Message | None], None],
        *,
        greets: bool = False,
        begins_with: bytes = b"",
    ) -> None:
        """Begin to listen and to beat.

        Args:
            read_from: A descriptor, which is this object's from now on.
            write_to: Another.
            on_message: Called with each message but beats, and with None when the other side has ended.
            greets: Whether this is the far side, which greets; the other one waits for that.
            begins_with: Written before anything else, for whoever reads before the far side does.
        """
        self._read_from, self._write_to = read_from, write_to
        self._on_message = on_message
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self.has_greeted = greets
        """Whether the far side has begun to speak."""
        self.heard = time.monotonic()
        """When the other side last said something [s]."""
        self._outbox.put(GREETING if greets else begins_with)
        self._reader = threading.Thread(target=self._read, args=(not greets,), name="line in", daemon=True)
        self._writer = threading.Thread(target=self._write, name="line out", daemon=True)
        self._reader.start()
        self._writer.start()

    @property
    def has_ended(self) -> bool:
        """Whether the other side has ended, or has said what is no message."""
        return self._ended.is_set()

    @property
    def silent(self) -> float:
        """How long the other side has said nothing [s]."""
        return time.monotonic() - self.heard

    def say(self, kind: str, told: Mapping[str, Any] | None = None, blob: bytes = b"") -> None:
        """Say something, in its turn."""
        text = json.dumps({**(told or {}), "kind": kind}).encode()
        self._outbox.put(_HEAD.pack(len(text), len(blob)) + text + blob)

    def close(self) -> None:
        """Say what is still to be said, and that this was all."""
        self._outbox.put(None)
        self._writer.join(_FLUSH_S)

    def _write(self) -> None:
        beat = _HEAD.pack(0, 0)
        with contextlib.suppress(OSError):  # The other side has ended, which the reader notices.
            while True:
                try:
                    data = self._outbox.get(timeout=BEAT_S)
                except queue.Empty:
                    data = beat
                if data is None:
                    break
                view = memoryview(data)
                while view:
                    view = view[os.write(self._write_to, view) :]
        os.close(self._write_to)

    def _read(self, greeted: bool) -> None:  # noqa: FBT001  A thread's argument.
        with contextlib.suppress(OSError, EOFError, ValueError):
            if greeted:
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
        """Return so many bytes."""
        taken = bytearray()
        while len(taken) < size:
            data = os.read(self._read_from, size - len(taken))
            if not data:
                raise EOFError
            self.heard = time.monotonic()
            taken += data
        return bytes(taken)
