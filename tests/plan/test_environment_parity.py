"""What differs between nodes, key by key."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import shoal
from shoal.errors import UsageError
from shoal.plan.environment_parity import Fingerprint, differences, fingerprint, refuse_differences

if TYPE_CHECKING:
    from pathlib import Path

HERE = Fingerprint(
    host="here",
    versions={"python": "3.11.7", "torch": "2.15.0", "warp-lang": "1.19.0"},
    files={"shoal": {"a.py": "1", "b.py": "2"}, "the task": {"/t/mine.py": "3"}},
)


def there(**changes: object) -> Fingerprint:
    return replace(HERE, host="b", **changes)


def test_the_same_is_the_same() -> None:
    assert differences(HERE, there()) == []
    refuse_differences(HERE, [there(), there()])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"versions": {**HERE.versions, "torch": "2.14.1"}}, ["torch is 2.14.1 there and 2.15.0 here"]),
        ({"versions": {"python": "3.11.7", "torch": "2.15.0"}}, ["warp-lang is absent there and 1.19.0 here"]),
        ({"versions": {**HERE.versions, "mujoco": "4.0"}}, ["mujoco is 4.0 there and absent here"]),
        (
            {"files": {**HERE.files, "shoal": {"a.py": "1", "b.py": "x"}}},
            ["1 file of shoal differs: b.py"],
        ),
        (
            {"files": {**HERE.files, "shoal": {"b.py": "x", "c.py": "y"}}},
            ["3 files of shoal differ: a.py, b.py, c.py"],
        ),
        (
            {"files": {**HERE.files, "shoal": {f"{number}.py": "" for number in range(9)}}},
            ["11 files of shoal differ: 0.py, 1.py, 2.py, 3.py, 4.py, ..."],
        ),
        ({"files": {"shoal": HERE.files["shoal"]}}, ["1 file of the task differs: /t/mine.py"]),
    ],
)
def test_each_difference_has_its_clause(changes: dict[str, object], said: list[str]) -> None:
    assert differences(HERE, there(**changes)) == said


def test_all_differences_of_all_machines_are_reported_at_once() -> None:
    other = replace(HERE, host="c", files={})
    with pytest.raises(UsageError) as refused:
        refuse_differences(HERE, [there(versions={**HERE.versions, "torch": "2.14.1"}), replace(HERE), other])
    assert refused.value.details.splitlines() == [
        "Node b: torch is 2.14.1 there and 2.15.0 here.",
        "Node c: 2 files of shoal differ: a.py, b.py.",
        "Node c: 1 file of the task differs: /t/mine.py.",
    ]
    assert str(refused.value).startswith(
        "Node b, c differs from here, where this was started, in what is listed above:"
    )


def test_the_fingerprint_depends_on_the_contents_of_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("1", encoding="utf-8")
    told = fingerprint("b", ["shoal"], [str(file)])
    assert told.versions["shoal"] == shoal.__version__
    assert told.versions["python"] == sys.version.partition(" ")[0]
    assert {"plan/environment_parity.py", "tasks/quadruped/quadruped.xml"} < told.files["shoal"].keys()
    assert not any("__pycache__" in path for path in told.files["shoal"])
    file.write_text("2", encoding="utf-8")
    changed = fingerprint("b", ["shoal"], [str(file)])
    assert differences(told, changed) == [f"1 file of the task differs: {file}"]
    file.unlink()
    assert differences(told, fingerprint("b", [], [str(file)]))[-1] == f"1 file of the task differs: {file}"


def test_a_package_that_is_not_there_has_no_files() -> None:
    assert fingerprint("b", ["no_such_package"], []).files == {"no_such_package": {}}
