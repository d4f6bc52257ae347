"""Each change of a file is made, says what it is, and is the same for the same random numbers."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from support.fuzz.mutations import BYTES, FOLDERS, IN_PLACE, of_content

if TYPE_CHECKING:
    from collections.abc import Callable

ROBOT = Path(__file__).parents[2] / "src" / "shoal" / "tasks" / "quadruped" / "quadruped.xml"
WRITERS: dict[str, Callable[[Path], object]] = {
    ".yaml": lambda file: file.write_text("task: a\nenv: {size: [1, 2.0]}\n", encoding="utf-8"),
    ".json": lambda file: file.write_text('{"jobs": [{"name": "a", "seed": 1}]}', encoding="utf-8"),
    ".jsonl": lambda file: file.write_text('{"index": 0, "return": 1.5}\n' * 3, encoding="utf-8"),
    ".csv": lambda file: file.write_text(("1.0," * 9 + "2\n") * 4, encoding="utf-8"),
    ".npz": lambda file: np.savez(
        file, fps=np.array([30.0]), qpos=np.ones((4, 9)), about=np.array(json.dumps({"a": 1}))
    ),
    ".pt": lambda file: torch.save({"iter": 1, "state": {"weight": torch.ones(2, 3)}, "infos": None}, file),
    ".xml": lambda file: file.write_text(ROBOT.read_text(encoding="utf-8"), encoding="utf-8"),
    "config": lambda file: (file.write_text("[core]\n", encoding="utf-8"), file.with_name("info").mkdir()),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_change_of_a_file_can_be_made(kind: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    named = f"a{kind}" if kind.startswith(".") else kind
    for number, (name, mutate) in enumerate({**IN_PLACE, **BYTES, **of_content(Path(named))}.items()):
        said: set[str] = set()
        for again in range(2):
            folder = tmp_path / f"{number}-{again}"
            folder.mkdir()
            file = folder / named
            WRITERS[kind](file)
            said.add(mutate(file, Random(number), outside))  # noqa: S311
        assert len(said) == 1, name
        assert said != {""}, name
    assert [*outside.iterdir()] == [outside / "file"]
    assert not (outside / "file").stat().st_size


def test_a_folder_gets_odd_entries(tmp_path: Path) -> None:
    for number, mutate in enumerate(FOLDERS.values()):
        run = tmp_path / f"{number}" / "run"
        run.mkdir(parents=True)
        assert mutate(run, Random(number), tmp_path)  # noqa: S311
        assert len([*run.parent.rglob("*")]) == 2
