"""Messages over two pipes: whole, in order, past what a shell prints, and with an end or a silence that is noticed."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from support.commands import wait_until

from shoal.launch.remote.channel import GREETING, Channel

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 20.0


class Side:
    """One end, and what has come out of it."""

    def __init__(self, read_from: int, write_to: int, *, greets: bool = False) -> None:
        self.channel = Channel(read_from, write_to, greets=greets)
        self.came = self.channel.inbox


@contextmanager
def joined(preamble: bytes = b"") -> Iterator[tuple[Side, Side]]:
    """Two ends; what a login shell has printed comes before all else."""
    (to_far, from_near), (to_near, from_far) = os.pipe(), os.pipe()
    os.write(from_far, preamble)
    near, far = Side(to_near, from_near), Side(to_far, from_far, greets=True)
    yield near, far
    for side in (near, far):
        side.channel.close()


def test_messages_come_whole_and_in_order_in_both_directions() -> None:
    with joined() as (near, far):
        big = "x" * 3_000_000
        near.channel.send("facts", {"files": ["a", "ü"]})
        near.channel.send("file", {"data": big})
        far.channel.send("bye")
        assert far.came.get(timeout=WAIT_S) == {"files": ["a", "ü"], "kind": "facts"}
        assert far.came.get(timeout=WAIT_S) == {"data": big, "kind": "file"}
        assert near.came.get(timeout=WAIT_S) == {"kind": "bye"}


@pytest.mark.parametrize("preamble", [b"Welcome to b!\n", b"\x00\xff" * 1000, GREETING[:4]])
def test_output_of_a_login_shell_before_the_greeting_is_skipped(preamble: bytes) -> None:
    with joined(preamble) as (near, far):
        far.channel.send("facts")
        assert near.came.get(timeout=WAIT_S) == {"kind": "facts"}


def test_a_shell_that_never_stops_printing_is_no_node_agent() -> None:
    with joined() as (near, _far):
        pass
    assert near.came.get(timeout=WAIT_S) is None
    (read_from, feed), (_drain, write_to) = os.pipe(), os.pipe()
    side = Side(read_from, write_to)
    with suppress(BrokenPipeError):
        for _ in range(100):
            os.write(feed, b"Welcome!" * 1000)
    assert side.came.get(timeout=WAIT_S) is None


def test_the_last_message_comes_before_the_end() -> None:
    with joined() as (near, far):
        far.channel.send("bye")
        far.channel.close()
        assert near.came.get(timeout=WAIT_S) == {"kind": "bye"}
        assert near.came.get(timeout=WAIT_S) is None


def test_a_channel_sends_beats_by_itself_and_counts_silence() -> None:
    (read_from, feed), (drain, write_to) = os.pipe(), os.pipe()
    side = Side(read_from, write_to)
    assert os.read(drain, 4) == bytes(4)
    assert wait_until(lambda: side.channel.silence > 1.0, WAIT_S)
    os.write(feed, GREETING)
    assert wait_until(lambda: side.channel.silence < 1.0, WAIT_S)
    assert side.came.empty()
    os.close(feed)


def test_a_pipe_without_a_reader_does_not_block_the_sender() -> None:
    (read_from, _feed), (_drain, write_to) = os.pipe(), os.pipe()
    side = Side(read_from, write_to)
    for _ in range(100):
        side.channel.send("file", {"data": "x" * 100_000})  # Far more than a pipe holds.


def test_bytes_that_are_no_message_end_the_channel() -> None:
    (read_from, feed), (_drain, write_to) = os.pipe(), os.pipe()
    side = Side(read_from, write_to)
    os.write(feed, GREETING + b"nonsense")
    assert side.came.get(timeout=WAIT_S) is None
