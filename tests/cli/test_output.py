"""Output that loses its reader, on real pipes."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from support.outputs import full_pipe

from shoal.cli import output
from shoal.cli.output import finish_output, release_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def standard_output(descriptor: int, monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> Iterator[None]:
    """Let a descriptor be standard output, written by a thread."""
    with open(descriptor, "w", encoding=encoding, closefd=False) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", sys.stderr)
        release_output()
        yield


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe to read from and to write to."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@contextmanager
def answered_by(answer: Callable[[int, Any], None] | signal.Handlers) -> Iterator[None]:
    """Answer SIGHUP so."""
    before = signal.signal(signal.SIGHUP, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def say(lines: int = 3) -> None:
    for number in range(lines):
        sys.stdout.write(f"line {number}\n")
        sys.stdout.flush()


def test_what_is_written_is_read_in_order(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_output(pipe[1], monkeypatch, encoding="ascii"):
        assert sys.stdout.encoding == "ascii"
        assert not sys.stdout.isatty()
        sys.stdout.write("\N{PLUS-MINUS SIGN}\n")
        say(2)
        assert os.read(pipe[0], 100) == b"\\xb1\nline 0\nline 1\n"


def test_a_fork_writes_by_itself(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_output(pipe[1], monkeypatch):
        child = os.fork()
        if child == 0:
            say(1)
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(pipe[0], 100) == b"line 0\n"


def test_a_lost_reader_is_one_sighup_and_then_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    reading, writing = os.pipe()
    os.close(reading)
    with answered_by(lambda number, _frame: heard.append(number)), standard_output(writing, monkeypatch):
        say()
        assert finish_output()
    os.close(writing)
    assert heard == [signal.SIGHUP]


def test_where_sighup_is_ignored_a_lost_reader_is_too(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with answered_by(signal.SIG_IGN), standard_output(writing, monkeypatch):
        say()
        assert finish_output()
    os.close(writing)


def test_a_full_device_costs_its_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with standard_output(full, monkeypatch):
        say()
        assert finish_output()
    os.close(full)


def test_a_reader_that_waits_holds_up_one_print_and_gets_the_newest_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LAST_TIMEOUT_S", 0.1)
    with full_pipe() as writing, standard_output(writing, monkeypatch):
        begun = time.monotonic()
        say(3000)
        assert not finish_output()
        assert time.monotonic() - begun < output.FLUSH_TIMEOUT_S + 2
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_NONBLOCK)
        monkeypatch.setattr(output, "LAST_TIMEOUT_S", 10.0)
        read = os.read(reading, 1 << 20).lstrip(b"\n")
        assert finish_output()
        read += os.read(reading, 1 << 20)
        os.close(reading)
    lines = read.decode().strip().splitlines()
    assert lines[0] == "line 0"
    assert output._LEFT_OUT.strip() in lines
    assert lines[-1000:] == [f"line {number}" for number in range(2000, 3000)]
