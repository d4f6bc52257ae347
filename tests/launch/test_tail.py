"""Reading files that grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shoal.files import folder_of
from shoal.launch.tail import Tail

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "grows.log"


def append(file: Path, data: bytes) -> None:
    with file.open("ab") as stream:
        stream.write(data)


def test_a_file_that_is_not_there_yet_has_no_lines(file: Path) -> None:
    tail = Tail(file)
    assert (tail.size(), tail.lines(), tail.rows()) == (0, [], [])
    append(file, b"one\n")
    assert tail.lines() == ["one"]


def test_each_line_is_read_once(file: Path) -> None:
    tail = Tail(file)
    append(file, b"one\ntwo\n")
    assert tail.lines() == ["one", "two"]
    assert tail.lines() == []
    append(file, b"three\n")
    assert tail.lines() == ["three"]


def test_an_unfinished_line_waits_for_its_end(file: Path) -> None:
    tail = Tail(file)
    append(file, b"one\ntw")
    assert tail.lines() == ["one"]
    append(file, b"o\n")
    assert tail.lines() == ["two"]


def test_at_the_end_an_unfinished_line_counts(file: Path) -> None:
    tail = Tail(file)
    append(file, b"one\ntw")
    assert tail.lines(unfinished=True) == ["one", "tw"]


def test_nothing_is_read_beyond_the_limit(file: Path) -> None:
    tail = Tail(file)
    append(file, b"one\ntwo\n")
    assert tail.lines(4) == ["one"]
    assert tail.lines(2) == []


def test_what_was_there_before_can_be_passed_over(file: Path) -> None:
    append(file, b"one\n")
    tail = Tail(file, from_end=True)
    append(file, b"two\n")
    assert tail.lines() == ["two"]


def test_what_replaces_a_file_by_its_beginning_is_read_from_where_that_ends(file: Path) -> None:
    append(file, b'{"a": 1}\n{"a": 2}\n{"a": 3}\n{"a"')
    tail = Tail(file, from_end=True)
    assert tail.rows() == []
    folder_of(file).write(file, b'{"a": 1}\n')
    assert tail.rows() == []
    append(file, b'{"a": 2.5}\n{"a": 3.5}\n{"a": 4}\n')  # Longer than it was before.
    assert tail.rows() == [{"a": 2.5}, {"a": 3.5}, {"a": 4}]
    append(file, b'{"a": 5}\n')
    assert tail.rows() == [{"a": 5}]


def test_bytes_that_are_no_text_are_shown_as_such(file: Path) -> None:
    append(file, b"caf\xff\n")
    assert Tail(file).lines() == ["caf\N{REPLACEMENT CHARACTER}"]


def test_rows_are_lines_of_json(file: Path) -> None:
    append(file, b'{"iteration": 1.0, "Loss/value": null}\n{"iter')
    assert Tail(file).rows() == [{"iteration": 1.0, "Loss/value": None}]
