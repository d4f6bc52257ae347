"""Metrics for Weights & Biases: one W&B run for each run, however often that is resumed.

wandb is another program's client: it may wait for a network, ask on a terminal, or raise. Here is what keeps all of
that from a training.
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
"""The other ranks wait so long for a server that does not answer [s]."""
_FINISH_TIMEOUT_S = 20.0
"""Less than a scheduler leaves after SIGTERM. What was not sent by then is on the disk [s]."""


def open_wandb(run: RunDir, config: TrainConfig) -> WandbWriter | None:
    """Begin or continue the W&B run. Whatever is wrong with W&B costs a warning; then there is no writer."""
    try:
        return WandbWriter(run, config)
    except Exception as error:  # noqa: BLE001  A service, its client and its settings raise all kinds.
        logger.warning("W&B cannot be used (%s); training goes on without it.", _words(error))
        return None


class WandbWriter:
    """Sends each row to Weights & Biases."""

    def __init__(self, run: RunDir, config: TrainConfig) -> None:
        self._wandb = wandb = _import_wandb(run)
        try:
            self._run = self._begin(run, config)
        except Exception as error:  # noqa: BLE001  No network, a key that was taken back, a project of others.
            logger.warning(
                "W&B does not take this run now (%s). Its metrics are written to %s: `wandb sync` sends them.",
                _words(error),
                run.path / "wandb",
            )
            wandb.teardown()  # Until then wandb goes on trying.
            self._run = self._begin(run, config, mode="offline")
        self._next_step: int = self._run.starting_step
        # The axis of all charts, since W&B's own step only ever grows.
        self._run.define_metric("iteration", hidden=True)
        self._run.define_metric("*", step_metric="iteration")

    def _begin(self, run: RunDir, config: TrainConfig, mode: str | None = None) -> Any:  # noqa: ANN401  wandb.Run.
        """Begin a W&B run, or continue the one of an earlier launch."""
        known = run.wandb_run_id.read_text(encoding="utf-8").strip() if run.wandb_run_id.exists() else ""
        begun = self._wandb.init(
            project=config.wandb_project,
            id=known or None,
            resume="allow",
            name=None if known else run.name,  # It may have been given another name meanwhile.
            dir=str(run.path),
            config=to_plain(config),
            mode=mode,
            settings=_settings(self._wandb, config),
        )
        if not (known or begun.disabled):
            write_whole(run.wandb_run_id, f"{begun.id}\n")
        return begun

    def write(self, row: Mapping[str, float]) -> None:
        """Log all metrics of an iteration at once.

        W&B drops a row whose step is not beyond the last. Iterations that are done again, from an older checkpoint,
        therefore get steps of their own.
        """
        step = max(int(row["iteration"]), self._next_step)
        self._run.log(dict(row), step=step, commit=True)
        self._next_step = step + 1

    def close(self) -> None:
        """Finish the W&B run, and end wandb's own process."""
        try:
            self._run.finish()
        finally:
            self._wandb.teardown()


def _import_wandb(run: RunDir) -> Any:  # noqa: ANN401  An optional package has no type here.
    """Import wandb, whose two temporary directories then lie in the run: a process that is killed leaves them."""
    files = run.path / "wandb"
    files.mkdir(exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, str(files)
    try:
        import wandb
    finally:
        tempfile.tempdir = before
    return wandb


def _settings(wandb: Any, config: TrainConfig) -> Any:  # noqa: ANN401  A module, and its settings.
    """Bound what wandb may wait for, and leave it out of what is printed. Variables of the user's win."""
    ours = {
        "console": "off",  # It would copy each frame of the live view.
        "max_end_of_run_history_metrics": 0,  # Tables among the last lines, which tell how a run has ended.
        "max_end_of_run_summary_metrics": 0,
        "init_timeout": _less_than(config.startup_timeout, _INIT_TIMEOUT_S),
        "finish_timeout": _less_than(config.stall_timeout, _FINISH_TIMEOUT_S),
    }
    return wandb.Settings(**{name: value for name, value in ours.items() if f"WANDB_{name.upper()}" not in os.environ})


def _less_than(limit: float, most: float) -> float:
    """Return a time-out that ends before this rank is taken for stuck. A limit of 0 is none."""
    return min(most, limit / 2) if limit else most


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
