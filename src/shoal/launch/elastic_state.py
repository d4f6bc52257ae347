"""State of an elastic launch that its workers keep between attempts: the run, and a failure that would come again.

It lies in a directory of each node, which lives as long as the node's launcher.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import TrainingFailedError, UsageError
from shoal.files import write_whole
from shoal.launch.exit_records import ExitRecord, failure_of
from shoal.plan.ranks import Rank, joined_rank
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE_DIR = "SHOAL_ATTEMPTS"
"""Environment variable of workers with that directory."""


def state_dir() -> Path | None:
    """Return that directory; None in a process that no elastic launcher has started."""
    return Path(os.environ[STATE_DIR]) if os.environ.get(STATE_DIR) else None


def save_run(run: RunDir) -> None:
    """Let later attempts continue `run`."""
    directory = state_dir()
    if directory is not None:
        write_whole(directory / "run", str(run.path))


def saved_run(directory: Path | None) -> RunDir | None:
    """Return the run of earlier attempts; None before there is one."""
    file = directory / "run" if directory is not None else None
    return RunDir(Path(file.read_text(encoding="utf-8"))) if file is not None and file.exists() else None


@contextmanager
def final_failures() -> Iterator[None]:
    """Keep a failure of the body that would come again, an exception or a refusal, for later attempts.

    Raises:
        ShoalError: An earlier attempt has failed so.
    """
    directory = state_dir()
    final = final_failure(directory)
    if final is not None:
        raise failure_of(final)
    try:
        yield
    except (TrainingFailedError, UsageError) as error:
        if directory is not None:
            rank = joined_rank() or Rank(rank=0, local_rank=0, world_size=1, local_world_size=1)
            write_whole(directory / "final", json.dumps(asdict(ExitRecord.of_error(error, rank))))
        raise


def final_failure(directory: Path | None) -> ExitRecord | None:
    """Return the failure that ends all attempts; None without one."""
    file = directory / "final" if directory is not None else None
    return ExitRecord(**json.loads(file.read_text(encoding="utf-8"))) if file is not None and file.exists() else None
