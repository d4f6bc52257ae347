"""Output that loses its reader, on real pipes."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from shoal.cli.output import hanging_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def a_pipe_without_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let standard output be a pipe that nobody reads."""
    end_to_read, end_to_write = os.pipe()
    os.close(end_to_read)
    with open(end_to_write, "w", encoding="utf-8") as stream:  # noqa: PTH123  A descriptor, not a path.
        monkeypatch.setattr(sys, "stdout", stream)
        yield


@contextmanager
def answered_by(answer: Callable[[int, Any], None] | signal.Handlers) -> Iterator[None]:
    """Answer SIGHUP so."""
    before = signal.signal(signal.SIGHUP, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def say_much() -> None:
    for _ in range(3):
        sys.stdout.write("a line\n")
        sys.stdout.flush()


def test_a_lost_reader_is_one_sighup_and_then_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    with (
        answered_by(lambda number, _frame: heard.append(number)),
        a_pipe_without_reader(monkeypatch),
        hanging_up(),
    ):
        say_much()
    assert heard == [signal.SIGHUP]


def test_where_sighup_is_ignored_a_lost_reader_is_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with answered_by(signal.SIG_IGN), a_pipe_without_reader(monkeypatch), hanging_up():
        say_much()


def test_where_nobody_listens_a_lost_reader_is_an_error_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with answered_by(signal.SIG_DFL), pytest.raises(BrokenPipeError), a_pipe_without_reader(monkeypatch), hanging_up():
        say_much()


def test_a_stream_is_otherwise_the_one_that_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    with hanging_up():
        sys.stdout.write("a line\n")
        sys.stdout.flush()
        assert sys.stdout.encoding
        assert not sys.stdout.isatty()
    assert capfd.readouterr().out == "a line\n"
