"""The run directory's own story: made once by the launching process, and `run.json`, which tells each launch into it.

`run.json` holds one entry a launch: what was asked, the plan, versions, the state of the code, and how it ended.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import platform
import shutil
import sys
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from shoal import __version__
from shoal.config.plain import to_plain
from shoal.config.train import NOT_REPEATED
from shoal.errors import UsageError
from shoal.files import write_whole
from shoal.launch.exit_records import clear_exit_records
from shoal.plan.rundir import MODEL_FILE, RunDir, experiment_dir, launch_stamp, run_names
from shoal.provenance import git_state, now, versions

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from shoal.errors import ShoalError
    from shoal.plan.training import TrainPlan

logger = logging.getLogger(__name__)

_OWNER_S = 2.0
"""How long a process that has locked a run may take to write whose lock it is [s]."""


def make_run_dir(plan: TrainPlan) -> RunDir:
    """Make the directory of a new run, which no other run has, even one started in the same second.

    Raises:
        UsageError: The directory cannot be written.
    """
    experiment = experiment_dir(plan.config.log_root, plan.spec.experiment)
    try:
        experiment.mkdir(parents=True, exist_ok=True)
        for name in run_names(datetime.now().astimezone(), plan.config.run_name):
            try:
                (experiment / name).mkdir()
            except FileExistsError:
                continue
            return RunDir(experiment / name)
    except OSError as error:
        message = (
            f"The run directory cannot be made in {experiment.absolute()} ({error.strerror}): "
            "pass --log-root with a directory that you can write to."
        )
        raise UsageError(message) from error
    raise AssertionError  # pragma: no cover  run_names does not end.


def make_log_dir(base: Path) -> Path:
    """Make the directory of one launch's rank files, named as torchrunx names it: after the second.

    Raises:
        UsageError: It cannot be written.
    """
    stamp = launch_stamp(datetime.now())  # noqa: DTZ005  Local time, as torchrunx has it.
    try:
        base.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            directory = base / (stamp if number == 1 else f"{stamp}-{number}")
            try:
                directory.mkdir()
            except FileExistsError:  # Another launch, in the same second.
                continue
            return directory
    except OSError as error:
        message = (
            f"The rank files cannot be written to {base.absolute()} ({error.strerror}): pass --torchrunx-log-dir, or "
            "set TORCHRUNX_LOG_DIR, with a directory that you can write to."
        )
        raise UsageError(message) from error
    raise AssertionError  # pragma: no cover  The numbers do not end.


def lock_run(run: RunDir, stack: ExitStack) -> None:
    """Keep other launches out of a run until `stack` is closed, or until this process ends in whatever way.

    Raises:
        UsageError: Another process has it.
    """
    with suppress(OSError):  # The record refuses a directory that cannot be written; some file systems have no locks.
        descriptor = os.open(run.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner, patience = "", time.monotonic() + _OWNER_S
            while not owner and time.monotonic() < patience:
                time.sleep(0.1)  # It may have taken the lock just now.
                owner = ascii(os.pread(descriptor, 200, 0).decode(errors="replace"))[1:-1]
            message = f"The run {run.path} is being trained by process {owner}: wait until it has ended, or end it."
            raise UsageError(message) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {platform.node()}".encode())


class RunRecord:
    """One launch into a run directory, from its beginning to its end."""

    def __init__(self, run: RunDir, plan: TrainPlan) -> None:
        """Write what was asked and planned, before anything is started.

        Raises:
            UsageError: The directory cannot be written.
        """
        self.run = run
        try:
            clear_exit_records(run)
            for directory in (run.params_dir, run.checkpoints_dir, run.ranks_dir):
                directory.mkdir(parents=True, exist_ok=True)
            self._begin(plan)
        except OSError as error:
            message = f"The run {run.path} cannot be written ({error.strerror}): mend it, or pass another --log-root."
            raise UsageError(message) from error

    def _begin(self, plan: TrainPlan) -> None:
        self._write_params(plan)
        self._keep_models(plan)
        _sweep(self.run)
        if plan.continued is not None:
            _forget_iterations_after(plan.start_iteration, self.run)
        self._launches = self._earlier_launches()
        self._launches.append(
            {
                "command": sys.argv,
                "started": now(),
                "host": platform.node(),
                "pid": os.getpid(),
                "plan": plan.to_plain(),
                "versions": versions(),
                "git": git_state(),
                "ended": None,
            }
        )
        self._write()

    def end(self, exit_code: int, last_line: str, digests: dict[int, str] | None = None) -> None:
        """Write how it ended.

        Args:
            exit_code: What the command exits with.
            last_line: The last line that the person saw.
            digests: Fingerprint of the learner at the end, by rank.
        """
        self._launches[-1]["ended"] = _ending(exit_code, last_line, digests or {})
        try:
            self._write()
        except OSError as error:  # Why it ended matters more than that nobody can write it down.
            logger.warning("%s does not tell how this launch ended (%s).", self.run.run_json, error.strerror)

    def remove_unlearned(self) -> bool:
        """Remove the run directory unless something was learned; return whether it was removed."""
        if self.run.metrics_jsonl.exists() or any(self.run.checkpoints_dir.iterdir()):
            return False
        shutil.rmtree(self.run.path, ignore_errors=True)
        return not self.run.path.exists()

    def _earlier_launches(self) -> list[dict[str, Any]]:
        """Return the entries of launches before this one, when a run is continued."""
        if not self.run.run_json.is_file():
            return []
        return json.loads(self.run.run_json.read_text(encoding="utf-8"))["launches"]

    def _write(self) -> None:
        text = json.dumps({"shoal": __version__, "launches": self._launches}, indent=2)
        write_whole(self.run.run_json, text)

    def _write_params(self, plan: TrainPlan) -> None:
        """Write the configuration as `train --config` reads it: whole in train.yaml, its two big parts beside it."""
        plain = {name: value for name, value in to_plain(plan.config).items() if name not in NOT_REPEATED}
        _dump(self.run.train_yaml, plain)
        _dump(self.run.env_yaml, {"task": plain["task"], "env": plain["env"]})
        _dump(self.run.agent_yaml, {"task": plain["task"], "agent": plain["agent"]})

    def _keep_models(self, plan: TrainPlan) -> None:
        """Copy the MJCF files that the environment is made of, unless they are this run's copies already."""
        for field in filter(partial(getattr, plan.config.env), plan.config.env.model_fields):
            from shoal.sim.engines.model_files import copy_model, find_robot

            with suppress(UsageError):  # What builds the environment says it.
                file = find_robot(getattr(plan.config.env, field))
                if not file.resolve().is_relative_to(self.run.models_dir.resolve()):
                    copy_model(file, self.run.models_dir / field, MODEL_FILE)


def record_end(run: RunDir, error: ShoalError) -> None:
    """Write that the newest launch ended with `error`, for a process whose own record is out of reach."""
    try:
        told = json.loads(run.run_json.read_text(encoding="utf-8"))
        told["launches"][-1]["ended"] = _ending(error.exit_code, str(error), {})
        write_whole(run.run_json, json.dumps(told, indent=2))
    except (OSError, ValueError) as failure:
        logger.warning("%s does not tell how this launch ended (%s).", run.run_json, failure)


def _ending(exit_code: int, last_line: str, digests: dict[int, str]) -> dict[str, Any]:
    return {"time": now(), "exit_code": exit_code, "last_line": last_line, "digests": digests}


def _sweep(run: RunDir) -> None:
    """Remove what a crash has left of checkpoints that were being written or removed."""
    for named in (run.unfinished_dir(0), run.dropped_dir(0)):
        for left in run.checkpoints_dir.glob(named.name.replace("000000", "*")):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:  # Not ours, but in the way of what is.
                left.unlink()


def _forget_iterations_after(iteration: int, run: RunDir) -> None:
    """Drop the metrics of iterations that are done again, since the checkpoint is older than the end of the run."""
    if not run.metrics_jsonl.is_file():
        return
    lines = run.metrics_jsonl.read_text(encoding="utf-8").splitlines(keepends=True)
    # A line without its end is the last of a process that was killed.
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["iteration"] <= iteration]
    if len(kept) < len(lines):
        write_whole(run.metrics_jsonl, "".join(kept))


def _dump(path: Path, data: dict[str, Any]) -> None:
    write_whole(path, yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110))
