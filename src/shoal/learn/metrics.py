"""Metrics writers: `metrics.jsonl` always, TensorBoard or Weights & Biases beside it. Only rank 0 writes.

A metrics row is one flat mapping from names, grouped by a slash as in rsl_rl, to numbers. A writer that fails, on a
full disk or without a network, loses rows and does not end the training.
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Protocol

from shoal.learn.wandb_writer import open_wandb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.config import TrainConfig
    from shoal.plan.rundir import RunDir

logger = logging.getLogger(__name__)

Row = dict[str, float]


class MetricsWriter(Protocol):
    """Writes the metrics of each iteration."""

    def write(self, row: Mapping[str, float]) -> None:
        """Write one row; `iteration` and `Train/total_steps` are always in it."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


class JsonLinesWriter:
    """Appends each row to `metrics.jsonl` as one line of JSON. No crash leaves a partial line."""

    def __init__(self, run: RunDir) -> None:
        # Unbuffered: what a full disk refused must not be written later, in the middle of another line.
        self._file = run.metrics_jsonl.open("a+b", buffering=0)
        self._file.seek(0)
        self._valid_bytes = self._file.read().rfind(b"\n") + 1
        self._file.truncate(self._valid_bytes)  # A process that was killed may have left half a line.

    def write(self, row: Mapping[str, float]) -> None:
        """Append one line. NaN and infinity, which JSON does not have, become null."""
        plain = {name: value if math.isfinite(value) else None for name, value in row.items()}
        line = json.dumps(plain).encode() + b"\n"
        rest = line
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self._valid_bytes)
            raise
        self._valid_bytes += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardWriter:
    """Writes each row as TensorBoard scalars into the run directory."""

    def __init__(self, run: RunDir, iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A run that resumes from an older checkpoint hides what it wrote after it.
        self._writer = SummaryWriter(log_dir=str(run.path), flush_secs=10, purge_step=iteration + 1)

    def write(self, row: Mapping[str, float]) -> None:
        """Write one scalar a metric, at the iteration's number."""
        for name, value in row.items():
            if "/" in name:
                self._writer.add_scalar(name, value, int(row["iteration"]))

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class SafeWriter:
    """Catches the errors of a writer: it logs the first one and goes on with the next row."""

    def __init__(self, writer: MetricsWriter) -> None:
        self._writer = writer
        self._has_warned = False

    def write(self, row: Mapping[str, float]) -> None:
        """Write one row."""
        self._try(lambda: self._writer.write(row))

    def close(self) -> None:
        """Close the writer, whose last flush may fail."""
        self._try(self._writer.close)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  Each service has its own errors.
            if not self._has_warned:
                name = type(self._writer).__name__
                logger.warning("%s lost metrics (%s: %s); training goes on.", name, type(error).__name__, error)
            self._has_warned = True


def open_writers(run: RunDir, config: TrainConfig, iteration: int = 0) -> list[MetricsWriter]:
    """Open `metrics.jsonl` and the writer that `--logger` names."""
    writers: list[MetricsWriter] = [JsonLinesWriter(run)]
    if config.logger == "tensorboard":
        writers.append(TensorBoardWriter(run, iteration))
    elif config.logger == "wandb":
        writer = open_wandb(run, config)
        writers += [writer] if writer is not None else []
    return [SafeWriter(writer) for writer in writers]
