"""Output that loses its reader, on real pipes."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from support.outputs import full_pipe

from shoal.cli import output
from shoal.cli.output import release_output
from shoal.text import TYPABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def standard_output(descriptor: int, monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> Iterator[None]:
    """Let a descriptor be standard output, which holds up nothing."""
    wrapped = io.TextIOWrapper(output._Output(descriptor), encoding, TYPABLE, write_through=True)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(sys, "stdout", wrapped)
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
    os.close(writing)
    assert heard == [signal.SIGHUP]


def test_where_sighup_is_ignored_a_lost_reader_is_too(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with answered_by(signal.SIG_IGN), standard_output(writing, monkeypatch):
        say()
    os.close(writing)


def test_a_full_device_costs_its_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with standard_output(full, monkeypatch):
        say()
    os.close(full)


def test_a_reader_that_waits_holds_up_one_print_and_reads_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with full_pipe() as writing, standard_output(writing, monkeypatch):
        begun = time.monotonic()
        say(3000)
        assert time.monotonic() - begun < output.PATIENCE_S + 2
        assert output._outputs()[0].is_stalled
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_NONBLOCK)
        os.read(reading, 1 << 20)
        say(2)
        read = os.read(reading, 1 << 20)
        os.close(reading)
    assert read.decode().splitlines() == [output._LEFT_OUT.decode().strip(), "line 0", "line 1"]


def test_before_the_release_a_print_waits_for_its_reader_and_a_lost_one_is_an_error(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with standard_output(pipe[1], monkeypatch):
        output._outputs()[0].patience_s = None
        writer = threading.Thread(target=lambda: sys.stdout.write("x" * (1 << 17)))
        writer.start()
        writer.join(2 * output.PATIENCE_S)
        assert writer.is_alive()
        with open(pipe[0], "rb", closefd=False) as reader:
            assert reader.read(1 << 17) == b"x" * (1 << 17)
        writer.join()
    reading, writing = os.pipe()
    os.close(reading)
    with standard_output(writing, monkeypatch):
        output._outputs()[0].patience_s = None
        with pytest.raises(BrokenPipeError):
            say()
    os.close(writing)
