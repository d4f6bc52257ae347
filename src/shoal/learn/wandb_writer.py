"""Metrics writer for Weights & Biases: one W&B run for each run, resumes included.

wandb may wait for a network, prompt on a terminal, or raise. Nothing of that may delay or end a training.
"""

from __future__ import annotations

import logging
import os
import tempfile
from typing import TYPE_CHECKING, Any

from shoal.config.plain import to_plain
from shoal.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.config import TrainConfig
    from shoal.plan.rundir import RunDir

logger = logging.getLogger(__name__)

_INIT_TIMEOUT_S = 60.0
"""Time limit for a server that does not answer, while the other ranks wait [s]."""
_FINISH_TIMEOUT_S = 20.0
"""Less than a scheduler leaves after SIGTERM [s]. Unsent metrics are on the disk."""


def open_wandb(run: RunDir, config: TrainConfig) -> WandbWriter | None:
    """Start or resume the W&B run. An error is logged as a warning; then there is no writer."""
    try:
        return WandbWriter(run, config)
    except Exception as error:  # noqa: BLE001  The client raises many kinds.
        logger.warning("W&B cannot be used (%s); training goes on without it.", _summary(error))
        return None


class WandbWriter:
    """Sends each row to Weights & Biases."""

    def __init__(self, run: RunDir, config: TrainConfig) -> None:
        self._wandb = wandb = _import_wandb(run)
        try:
            self._run = self._start(run, config)
        except Exception as error:  # noqa: BLE001  No network, a revoked key, a project of others.
            logger.warning(
                "W&B does not take this run now (%s). Its metrics are written to %s: `wandb sync` sends them.",
                _summary(error),
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
        run_id = run.wandb_run_id.read_text(encoding="utf-8").strip() if run.wandb_run_id.exists() else ""
        started = self._wandb.init(
            project=config.wandb_project,
            id=run_id or None,
            resume="allow",
            name=None if run_id else run.name,  # A user may have renamed it.
            dir=str(run.path),
            config=to_plain(config),
            mode=mode,
            settings=_settings(self._wandb, config),
        )
        if not (run_id or started.disabled):
            write_whole(run.wandb_run_id, f"{started.id}\n")
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
    files.mkdir(exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, str(files)
    try:
        import wandb
    finally:
        tempfile.tempdir = before
    return wandb


def _settings(wandb: Any, config: TrainConfig) -> Any:  # noqa: ANN401  A module, and its settings.
    """Return settings that bound wandb's waits and silence it. A user's environment variables win."""
    ours = {
        "console": "off",  # It would record each frame of the live view.
        "max_end_of_run_history_metrics": 0,  # No tables between the last lines of the command.
        "max_end_of_run_summary_metrics": 0,
        "init_timeout": _limited(config.startup_timeout, _INIT_TIMEOUT_S),
        "finish_timeout": _limited(config.stall_timeout, _FINISH_TIMEOUT_S),
    }
    return wandb.Settings(**{name: value for name, value in ours.items() if f"WANDB_{name.upper()}" not in os.environ})


def _limited(limit: float, most: float) -> float:
    """Return a time-out below half of the hang detector's limit; 0 means no limit."""
    return min(most, limit / 2) if limit else most


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
