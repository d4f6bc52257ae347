"""What wandb has written to its disk: the records of a `.wandb` file, which is a log in the format of LevelDB.

Blocks of 32 KiB; in each, chunks with a checksum, a length, and whether a chunk is whole or a part of a record. The
first block begins with seven bytes that say that the file is wandb's.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]  Made at import.

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = 32768
_WHOLE, _LAST = 1, 4


@dataclass
class Launch:
    """One launch of a W&B run."""

    run_id: str
    name: str
    notes: str
    project: str
    rows: list[dict[str, Any]]
    """What was logged, with W&B's own `_step`."""
    axes: dict[str, str]
    """The metric that is the axis of others, by their names."""


def launches_in(run: Path) -> list[Launch]:
    """Return what wandb has kept of each launch of a run that had no network, oldest first."""
    return [_launch(file) for file in sorted(run.glob("wandb/offline-run-*/*.wandb"))]


def _launch(file: Path) -> Launch:
    launch = Launch("", "", "", "", [], {})
    defined: dict[int, str] = {}
    for record in _records(file):
        if record.HasField("run"):
            launch.run_id, launch.name = record.run.run_id, record.run.display_name
            launch.project, launch.notes = record.run.project, record.run.notes
        elif record.HasField("history"):
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            launch.rows.append(row | {"_step": record.history.step.num})
        elif record.HasField("metric"):
            metric = record.metric
            defined[len(defined) + 1] = metric.name or metric.glob_name
            if metric.step_metric or metric.step_metric_index:
                axis = metric.step_metric or defined[metric.step_metric_index]
                launch.axes[metric.glob_name or metric.name] = axis
    return launch


def _records(file: Path) -> Iterator[Any]:
    """Yield the records; the last one of a process that was killed may be cut off."""
    data, at, record = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _checksum, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (_WHOLE, _LAST):
            yield Record.FromString(record)
            record = b""
