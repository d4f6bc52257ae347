"""What a rank behind the *nodes* door knows of the attempts before: which run goes on, and what no attempt can mend.

Its launcher keeps a directory for it, which lives as long as the launcher does.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import TrainingFailedError, UsageError
from shoal.launch.exit_records import ExitRecord, failure_of
from shoal.plan.ranks import Rank, joined_rank
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DIRECTORY = "SHOAL_ATTEMPTS"
"""Names that directory in a worker's environment."""

_RUN = "run"
_FINAL = "final"


def attempts(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return that directory; None where no such launcher started this process."""
    return Path(environ[DIRECTORY]) if environ.get(DIRECTORY) else None


def remember_run(run: RunDir) -> None:
    """Let later attempts go on with `run`."""
    directory = attempts()
    if directory is not None:
        _write(directory / _RUN, str(run.path))


def known_run(directory: Path | None) -> RunDir | None:
    """Return the run of the attempts before, if they came so far."""
    file = directory / _RUN if directory is not None else None
    return RunDir(Path(file.read_text(encoding="utf-8"))) if file is not None and file.exists() else None


@contextmanager
def lasting_failures() -> Iterator[None]:
    """Let later attempts end at once when the body fails in a way that would come again: an exception, or a refusal.

    Raises:
        ShoalError: An attempt before has failed so.
    """
    directory = attempts()
    final = final_failure(directory)
    if final is not None:
        raise failure_of(final)
    try:
        yield
    except (TrainingFailedError, UsageError) as error:
        if directory is not None:
            note = ExitRecord.of_error(error, _this_rank())
            _write(directory / _FINAL, json.dumps(asdict(note)))
        raise


def _write(file: Path, text: str) -> None:
    """Write a file whole at once: several ranks may."""
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.rename(file)


def _this_rank() -> Rank:
    return joined_rank() or Rank(rank=0, local_rank=0, world_size=1, local_world_size=1)


def final_failure(directory: Path | None) -> ExitRecord | None:
    """Return the failure that no attempt can mend, if there was one."""
    file = directory / _FINAL if directory is not None else None
    return ExitRecord(**json.loads(file.read_text(encoding="utf-8"))) if file is not None and file.exists() else None
