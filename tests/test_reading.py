"""Files from outside are refused in one sentence, at once: bombs, nonsense, pipes, links, and what is too large."""

from __future__ import annotations

import json
import os
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.bombs import ARRAYS, JSON, YAML

from shoal import reading
from shoal.errors import UsageError
from shoal.reading import read_arrays, read_bytes, read_lines, read_plain_file, read_table, read_tensors, refusing

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("kind", YAML)
def test_yaml_that_multiplies_or_nests_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(YAML[kind], encoding="utf-8")
    with pytest.raises(
        UsageError, match=r"^--config .*a\.yaml cannot be read \(.{8,}\): pass a file such as b\.yaml\.$"
    ):
        read_plain_file("--config", file, example="b.yaml")


@pytest.mark.parametrize("kind", JSON)
def test_json_that_nests_or_is_none_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(JSON[kind], encoding="utf-8")
    with pytest.raises(UsageError, match=r"a\.json cannot be read \(.{8,}\): pass a file such as b\.json\.$"):
        read_plain_file("--jobs", file, example="b.json")


def test_the_line_and_the_field_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    for text, said in (
        ("task: a\nenv: [1", "line 2, column 6"),
        ("a: 1\nenv:\n  terms: [1, 2020-01-01]", r"env\.terms\.1 is a date"),
        (f"env: {{seed: {2**63}}}", r"env\.seed is a whole number of more than 64 bits"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=said):
            read_plain_file("--config", file, example="b.yaml")


def test_aliases_that_repeat_little_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("base: &base {a: 1, b: [2]}\nmore: {<<: *base, a: 3}\nagain: *base\n", encoding="utf-8")
    base = {"a": 1, "b": [2]}
    assert read_plain_file("", file, example="") == {"base": base, "more": {"a": 3, "b": [2]}, "again": base}


def test_more_values_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MAX_VALUES", 100)
    monkeypatch.setattr(reading, "_MAX_YAML_VALUES", 100)
    for name in ("a.json", "a.yaml"):
        (tmp_path / name).write_text(json.dumps([1] * 90), encoding="utf-8")
        assert read_plain_file("", tmp_path / name, example="") == [1] * 90
        (tmp_path / name).write_text(json.dumps([1] * 101), encoding="utf-8")
        with pytest.raises(UsageError, match=r"it has 101 values.*, and 100 is the most"):
            read_plain_file("", tmp_path / name, example="")


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name in ("pipe", "directory"):
        with pytest.raises(IsADirectoryError):
            read_bytes(tmp_path / name)
    with (
        pytest.raises(UsageError, match=r"/dev/null cannot be read \(it is no regular file\)"),
        refusing(tmp_path / "/dev/null", "pass another one"),
    ):
        read_bytes(tmp_path / "/dev/null")
    with (
        pytest.raises(UsageError, match=r"missing cannot be read \(No such file or directory\): restore it\."),
        refusing(tmp_path / "missing", "restore it"),
    ):
        read_bytes(tmp_path / "missing")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UsageError, match=r"it has 1,099,511,627,776 bytes, and 268,435,456 is the most"):
        read_plain_file("--config", tmp_path / "large.yaml", example="")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"a: \xff")
    with pytest.raises(UsageError, match="can't decode byte 0xff in position 3"):
        read_plain_file("--config", tmp_path / "a.yaml", example="")


# Lines


def lines(tmp_path: Path, text: str, *, is_whole: bool = False) -> list[dict[str, Any]]:
    file = tmp_path / "rows.jsonl"
    file.write_text(text, encoding="utf-8")
    return list(read_lines(file, {"index": int, "terms": dict}, "remove it", is_whole=is_whole))


def test_a_last_line_without_its_end_is_left_out_unless_the_file_is_whole(tmp_path: Path) -> None:
    row = {"index": 1, "terms": {"a": 0.5}}
    torn = json.dumps(row) + '\n{"index": 2, "te'
    assert lines(tmp_path, torn) == [row]
    with pytest.raises(UsageError, match=r"rows\.jsonl cannot be read \(line 2: .*\): remove it\."):
        lines(tmp_path, torn, is_whole=True)
    assert list(read_lines(tmp_path / "none.jsonl", {}, "")) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("word", "Expecting value"),
        ("[]", r"it is no object, but \[\]"),
        ("{}", "index is missing, but must be int"),
        ('{"index": "one"}', "index is 'one', but must be int"),
        ('{"index": 1, "terms": [1]}', r"terms is \[1\], but must be dict"),
        ('{"index": 1, "terms": {"a": "b"}}', r"terms is \{'a': 'b'\}, but must be dict"),
        ('{"index": ' + "[" * 5000, "nested"),
        (f'{{"index": {10**30}}}', "index is a whole number of more than 64 bits"),
    ],
)
def test_a_line_of_something_else_is_named_with_its_field(line: str, said: str, tmp_path: Path) -> None:
    good = json.dumps({"index": 1, "terms": {}})
    with pytest.raises(UsageError, match=rf"rows\.jsonl cannot be read \(line 2: .*{said}.*\): remove it\."):
        lines(tmp_path, f"{good}\n{line}\n{good}\n")


def test_a_pipe_in_place_of_lines_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(UsageError, match="it is no regular file"):
        list(read_lines(tmp_path / "rows.jsonl", {}, "remove it"))


# Numbers


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_are_not_what_they_say_are_refused(kind: str, tmp_path: Path) -> None:
    ARRAYS[kind](tmp_path / "a.npz")
    with (
        pytest.raises(UsageError, match=r"^The file .*a\.npz cannot be read \(.{8,}\): copy it once more\.$"),
        refusing(tmp_path / "a.npz", "copy it once more", "The file "),
    ):
        read_arrays(tmp_path / "a.npz")


def test_arrays_come_back(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.array("text"),
        "c": np.asfortranarray(np.eye(2)),
        "d": np.zeros(0),
    }
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    read = read_arrays(tmp_path / "a.npz")
    assert all(np.array_equal(read[name], value) for name, value in arrays.items())
    assert read.keys() == arrays.keys()


@pytest.mark.parametrize("text", ["", "\n \n", "a,b\n1,2\n", "1,2\n3\n", "1;2\n"])
def test_a_table_of_something_else_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r".{5,}"):
        read_table(tmp_path / "a.csv")


def test_a_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2,3\n", encoding="utf-8")
    assert read_table(tmp_path / "a.csv").tolist() == [[1.0, 2.0, 3.0]]


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def in_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def doubled(times: int) -> Any:
    value: Any = [0]
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (nested(150), "nested more than 100 deep"),
        (in_itself(), "nested more than 100 deep"),
        (doubled(60), "is the most"),
        (
            {"weight": torch.zeros(1).expand(2**40)},
            r"weight is a tensor of shape \(1099511627776,\) whose numbers are not",
        ),
        ({"weight": torch.empty(5, device="meta")}, "whose numbers are not in the file"),
        ({"weight": torch.eye(3).to_sparse()}, "whose numbers are not in the file"),
    ],
)
def test_tensors_that_are_not_in_the_file_are_refused(state: Any, said: str, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=said):
        read_tensors(tmp_path / "a.pt")


def test_tensors_that_are_packed_more_tightly_than_torch_does_are_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(10_000_000)}, tmp_path / "a.pt")
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as whole,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    assert read_tensors(tmp_path / "a.pt")["weight"].shape == (10_000_000,)
    with pytest.raises(ValueError, match="bytes when it is unpacked"):
        read_tensors(tmp_path / "b.pt")
