"""All that two trainings must have alike, but for times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from support.commands import rows_of

if TYPE_CHECKING:
    from pathlib import Path


def everything_in(run: Path, iteration: int) -> dict[str, Any]:
    """All that a checkpoint holds, by file and name; without the time that it took."""
    found: dict[str, Any] = {}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk(f"{name}/{key}", each)
        elif isinstance(value, list | tuple):
            for index, each in enumerate(value):
                walk(f"{name}/{index}", each)
        else:
            found[name] = value

    for file in sorted((run / "checkpoints" / f"{iteration:06}").glob("*.pt")):
        walk(file.name, torch.load(file, weights_only=True))
    found.pop("model.pt/infos/totals/seconds")
    return found


def told(run: Path) -> list[dict[str, float]]:
    """All metrics, but for times and what follows from them."""
    others = ("Train/total_time", "max_iterations")
    return [
        {name: value for name, value in row.items() if not name.startswith("Perf/") and name not in others}
        for row in rows_of(run)
    ]


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """See that two checkpoints hold the same bits."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, name
