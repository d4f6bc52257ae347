"""Metrics writers: `metrics.jsonl` always, TensorBoard or Weights & Biases beside it. Only rank 0 writes.

A metrics row is one flat mapping from names, grouped by a slash as in rsl_rl, to numbers. A writer that fails, on a
full disk or without a network, loses rows and does not end the training. wandb may also wait for a network or prompt on
a terminal; neither may delay a training.
"""

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from shoal.config import TrainConfig
from shoal.config.plain import to_plain
from shoal.errors import reason_of
from shoal.files import write_all
from shoal.plan.changes import changes_of, flag_words
from shoal.plan.rundir import RunDir
from shoal.reading import read_bytes, read_lines, refusing

logger = logging.getLogger(__name__)

Row = dict[str, float]

_INIT_TIMEOUT_S = 60.0
"""Time limit for a server that does not answer, while the other ranks wait [s]."""
_FINISH_TIMEOUT_S = 20.0
"""Less than a scheduler leaves after SIGTERM [s]. Unsent metrics are on the disk."""


class JsonLinesWriter:
    """Appends each row to `metrics.jsonl` as one line of JSON. No crash leaves a partial line."""

    def __init__(self, run: RunDir, iteration: float = math.inf) -> None:
        """Drop the rows after `iteration`, which are repeated, and half a line that a killed process may have left."""
        rows = read_lines(run.metrics_jsonl, {"iteration": int | float}, "remove it, or start a new run")
        kept = "".join(json.dumps(row) + "\n" for row in rows if row["iteration"] <= iteration).encode()
        if run.metrics_jsonl.exists() and run.metrics_jsonl.stat().st_size != len(kept):
            run.folder.write(run.metrics_jsonl, kept)
        # Unbuffered: what a full disk refused must not be written later, in the middle of another line.
        self._file = run.folder.open(run.metrics_jsonl, "a")
        self._valid_bytes = len(kept)

    def write(self, row: Mapping[str, float]) -> None:
        """Append one line. NaN and infinity, which JSON does not have, become null."""
        plain = {name: value if math.isfinite(value) else None for name, value in row.items()}
        line = json.dumps(plain).encode() + b"\n"
        try:
            write_all(self._file, line)
        except OSError:
            self._file.truncate(self._valid_bytes)
            raise
        self._valid_bytes += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardWriter:
    """Writes each row as TensorBoard scalars into the run directory, and what the run changes as hyperparameters."""

    def __init__(self, run: RunDir, config: TrainConfig, iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        # A run that resumes from an older checkpoint hides what it wrote after it.
        self._writer = SummaryWriter(log_dir=str(run.path), flush_secs=10, purge_step=iteration + 1)
        changes = changes_of(config).items()
        changed = {name: value if type(value) in {int, float} else str(value) for name, value in changes}
        # Without torch's list of columns, TensorBoard shows the columns of all runs instead of one run's.
        _columns, session, _end = hparams(changed, {})
        self._writer._get_file_writer().add_summary(session)  # noqa: SLF001  As each of its own methods does.

    def write(self, row: Mapping[str, float]) -> None:
        """Write one scalar a metric, at the iteration's number."""
        for name, value in row.items():
            if "/" in name:
                self._writer.add_scalar(name, value, int(row["iteration"]))

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WandbWriter:
    """Sends each row to Weights & Biases. A run has one W&B run, resumes included."""

    def __init__(self, run: RunDir, config: TrainConfig) -> None:
        self._wandb = wandb = _import_wandb(run)
        try:
            self._run = self._start(run, config)
        except Exception as error:  # noqa: BLE001  No network, a revoked key, a project of others.
            logger.warning(
                "W&B does not take this run now (%s). Its metrics are written to %s: `wandb sync` sends them.",
                reason_of(error).partition("\n")[0],
                run.path / "wandb",
            )
            wandb.teardown()  # Or wandb keeps on trying.
            self._run = self._start(run, config, mode="offline")
        self._next_step: int = self._run.starting_step
        # The axis of all charts, as W&B's step never decreases.
        self._run.define_metric("iteration", hidden=True)
        self._run.define_metric("*", step_metric="iteration")

    def _start(self, run: RunDir, config: TrainConfig, mode: str | None = None) -> Any:  # noqa: ANN401  wandb.Run.
        """Start a W&B run, or resume the one of an earlier launch."""
        with refusing(run.wandb_run_id, "remove it"):
            run_id = read_bytes(run.wandb_run_id, 1000).decode().strip() if run.wandb_run_id.exists() else ""
        started = self._wandb.init(
            project=config.wandb_project,
            id=run_id or None,
            resume="allow",
            name=None if run_id else run.name,  # A user may have renamed it.
            notes=None if run_id else flag_words(changes_of(config)) or None,
            dir=str(run.path),
            config=to_plain(config),
            mode=mode,
            settings=_settings(self._wandb, config),
        )
        if not (run_id or started.disabled):
            run.folder.write(run.wandb_run_id, f"{started.id}\n")
        return started

    def write(self, row: Mapping[str, float]) -> None:
        """Log all metrics of an iteration at once.

        W&B drops a row whose step is not beyond the last. Iterations that are repeated from an older checkpoint
        therefore get new steps.
        """
        step = max(int(row["iteration"]), self._next_step)
        self._run.log(dict(row), step=step, commit=True)
        self._next_step = step + 1

    def close(self) -> None:
        """Finish the W&B run, and end wandb's process."""
        try:
            self._run.finish()
        finally:
            self._wandb.teardown()


def _import_wandb(run: RunDir) -> Any:  # noqa: ANN401  An optional package has no type here.
    """Import wandb with its two temporary directories in the run directory, as a killed process leaves them."""
    files = run.path / "wandb"
    run.folder.make(files)
    before, tempfile.tempdir = tempfile.tempdir, str(files)
    try:
        import wandb
    finally:
        tempfile.tempdir = before
    return wandb


def _settings(wandb: Any, config: TrainConfig) -> Any:  # noqa: ANN401  A module, and its settings.
    """Return settings that bound wandb's waits and silence it. A user's environment variables win."""
    settings = {
        "console": "off",  # It would record each frame of the live view.
        "max_end_of_run_history_metrics": 0,  # No tables between the last lines of the command.
        "max_end_of_run_summary_metrics": 0,
        "init_timeout": _limited(config.startup_timeout, _INIT_TIMEOUT_S),
        "finish_timeout": _limited(config.stall_timeout, _FINISH_TIMEOUT_S),
    }
    return wandb.Settings(
        **{name: value for name, value in settings.items() if f"WANDB_{name.upper()}" not in os.environ}
    )


def _limited(limit: float, most: float) -> float:
    """Return a time-out below half of the hang detector's limit; 0 means no limit."""
    return min(most, limit / 2) if limit else most


class SafeWriter:
    """Catches the errors of a writer: it logs the first one and goes on with the next row."""

    def __init__(self, writer: JsonLinesWriter | TensorBoardWriter | WandbWriter) -> None:
        self._writer = writer
        self._has_warned = False

    def write(self, row: Mapping[str, float]) -> None:
        """Write one row; `iteration` and `Train/total_steps` are always in it."""
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
                logger.warning("%s lost metrics (%s); training goes on.", name, reason_of(error))
            self._has_warned = True


def open_writers(run: RunDir, config: TrainConfig, iteration: int = 0) -> list[SafeWriter]:
    """Open `metrics.jsonl` and the writer that `--logger` names."""
    writers = [SafeWriter(JsonLinesWriter(run, iteration))]
    if config.logger == "tensorboard":
        writers.append(SafeWriter(TensorBoardWriter(run, config, iteration)))
    elif config.logger == "wandb":
        try:
            writers.append(SafeWriter(WandbWriter(run, config)))
        except Exception as error:  # noqa: BLE001  The client raises many kinds.
            logger.warning("W&B cannot be used (%s); training goes on without it.", reason_of(error).partition("\n")[0])
    return writers
