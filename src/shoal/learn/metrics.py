"""Where metrics go: `metrics.jsonl` always, TensorBoard or Weights & Biases beside it. Rank 0 alone writes.

A metrics row is one flat mapping from names, grouped by a slash as in rsl_rl, to numbers.
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Any, Protocol

from shoal.config.plain import to_plain
from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.config import TrainConfig
    from shoal.plan.rundir import RunDir

logger = logging.getLogger(__name__)

Row = dict[str, float]


class MetricsWriter(Protocol):
    """Takes the metrics of one iteration after another."""

    def write(self, row: Mapping[str, float]) -> None:
        """Take one row; `iteration` and `Train/total_steps` are always in it."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


class JsonLinesWriter:
    """Appends each row to `metrics.jsonl` as one line of JSON. A full disk costs rows, not the training."""

    def __init__(self, run: RunDir) -> None:
        self._file = run.metrics_jsonl.open("a", encoding="utf-8", buffering=1)
        self._complained = False

    def write(self, row: Mapping[str, float]) -> None:
        """Append one line. Values that JSON has no word for (NaN, infinity) become null."""
        plain = {name: value if math.isfinite(value) else None for name, value in row.items()}
        try:
            self._file.write(json.dumps(plain) + "\n")
        except OSError as error:
            if not self._complained:
                logger.warning("Metrics cannot be written to %s (%s): training goes on.", self._file.name, error)
            self._complained = True

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardWriter:
    """Writes each row as TensorBoard scalars into the run directory."""

    def __init__(self, run: RunDir) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(run.path), flush_secs=10)

    def write(self, row: Mapping[str, float]) -> None:
        """Write one scalar a metric, at the iteration's number."""
        for name, value in row.items():
            if "/" in name:
                self._writer.add_scalar(name, value, int(row["iteration"]))

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WandbWriter:
    """Sends each row to Weights & Biases."""

    def __init__(self, run: RunDir, config: TrainConfig) -> None:
        wandb = import_wandb()
        self._run = wandb.init(
            project=config.wandb_project, name=run.path.name, dir=str(run.path), config=to_plain(config)
        )

    def write(self, row: Mapping[str, float]) -> None:
        """Log all metrics of an iteration at once."""
        self._run.log(dict(row), step=int(row["iteration"]))

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()


def import_wandb() -> Any:  # noqa: ANN401  An optional package has no type here.
    """Import Weights & Biases.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import wandb  # pyright: ignore[reportMissingImports]  An extra.
    except ImportError as error:
        message = "--logger wandb was asked for, but wandb is not installed: run `uv add 'shoal[wandb]'`."
        raise UsageError(message) from error
    return wandb


def open_writers(run: RunDir, config: TrainConfig) -> list[MetricsWriter]:
    """Open `metrics.jsonl` and whatever else `--logger` names."""
    writers: list[MetricsWriter] = [JsonLinesWriter(run)]
    if config.logger == "tensorboard":
        writers.append(TensorBoardWriter(run))
    elif config.logger == "wandb":
        writers.append(WandbWriter(run, config))
    return writers
