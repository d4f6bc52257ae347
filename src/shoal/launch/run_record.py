"""The run directory, made once by the launching process, and `run.json`, with one entry for each launch into it."""

import fcntl
import itertools
import json
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from shoal import __version__
from shoal.config.plain import to_plain
from shoal.config.train import NOT_REPEATED
from shoal.errors import ShoalError, UsageError
from shoal.files import write_whole
from shoal.launch.exit_records import clear_exit_records
from shoal.plan.rundir import MODEL_FILE, RunDir, experiment_dir, run_names
from shoal.plan.training import TrainPlan
from shoal.provenance import git_state, now, versions
from shoal.reading import parse_object, read_bytes, read_lines, refusing
from shoal.timing import POLL_S, RUN_LOCK_S, wait_for

logger = logging.getLogger(__name__)


def make_run_dir(plan: TrainPlan) -> RunDir:
    """Make the directory of a new run, which no other run has, even one started in the same second."""
    experiment = experiment_dir(plan.config.log_root, plan.spec.experiment)
    try:
        return RunDir(make_first_free(experiment, run_names(datetime.now().astimezone(), plan.config.run_name)))
    except OSError as error:
        raise UsageError(
            f"The run directory cannot be made in {experiment.absolute()} ({error.strerror}): "
            "pass --log-root with a directory that you can write to."
        ) from error


def make_log_dir(base: Path) -> Path:
    """Make the directory of one launch's rank files, named as torchrunx names it: after the second."""
    stamp = datetime.now().isoformat(timespec="seconds")  # noqa: DTZ005  Local time, as torchrunx has it.
    try:
        return make_first_free(base, (stamp if number == 1 else f"{stamp}-{number}" for number in itertools.count(1)))
    except OSError as error:
        raise UsageError(
            f"The rank files cannot be written to {base.absolute()} ({error.strerror}): pass --torchrunx-log-dir, or "
            "set TORCHRUNX_LOG_DIR, with a directory that you can write to."
        ) from error


def make_first_free(parent: Path, names: Iterable[str]) -> Path:
    """Make the first of these directories that does not exist."""
    parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        with suppress(FileExistsError):
            (parent / name).mkdir()
            return parent / name
    raise AssertionError  # pragma: no cover  The names do not end.


def lock_run(run: RunDir, stack: ExitStack) -> None:
    """Lock a run against other launches until `stack` is closed or this process ends; refuse one that is locked."""
    with suppress(OSError):  # The record refuses a directory that cannot be written; some file systems have no locks.
        descriptor = os.open(run.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            time.sleep(POLL_S)  # It may have taken the lock just now.
            owner = ascii(wait_for(lambda: os.pread(descriptor, 200, 0), RUN_LOCK_S).decode(errors="replace"))[1:-1]
            message = f"The run {run.path} is in use by process {owner}: wait until it has ended, or end it."
            raise UsageError(message) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {platform.node()}".encode())


def is_in_use(run: RunDir) -> bool | None:
    """Whether another process has locked a run; None where the file system does not tell."""
    try:
        with os.fdopen(os.open(run.lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def write_manifest(run: RunDir, **asked: Any) -> None:  # noqa: ANN401  Plain values.
    """Write what an evaluation or a sweep was asked, with versions, before anything of it is started."""
    about = {"shoal": __version__, "started": now(), "command": sys.argv, "versions": versions(), "git": git_state()}
    write_whole(run.manifest_json, json.dumps(about | asked, indent=2))


def record_launch(run: RunDir, plan: TrainPlan) -> None:
    """Prepare the run directory, and write what was asked and planned, before anything is started."""
    try:
        clear_exit_records(run)
        for directory in (run.params_dir, run.checkpoints_dir, run.ranks_dir):
            directory.mkdir(parents=True, exist_ok=True)
        _write_params(run, plan)
        _keep_models(run, plan)
        _remove_unfinished(run)
        if plan.continued is not None:
            _drop_iterations_after(plan.start_iteration, run)
        launch = {
            "command": sys.argv,
            "started": now(),
            "host": platform.node(),
            "pid": os.getpid(),
            "plan": plan.to_plain(),
            "versions": versions(),
            "git": git_state(),
            "ended": None,
        }
        _write_launches(run, [*(_launches(run) if run.run_json.is_file() else []), launch])
    except OSError as error:
        message = f"The run {run.path} cannot be written ({error.strerror}): mend it, or pass another --log-root."
        raise UsageError(message) from error


def record_end(run: RunDir, exit_code: int, last_line: str, digests: Mapping[int, str] | None = None) -> None:
    """Write how the newest launch ended, with the learner's fingerprint on each rank; warn where that fails."""
    ended = {"time": now(), "exit_code": exit_code, "last_line": last_line, "digests": digests or {}}
    try:
        launches = _launches(run)
        launches[-1]["ended"] = ended
        _write_launches(run, launches)
    except (OSError, ShoalError) as error:
        logger.warning("%s does not tell how this launch ended (%s).", run.run_json, error)


def remove_unlearned(run: RunDir) -> bool:
    """Remove the run directory unless something was learned; return whether it was removed."""
    if run.metrics_jsonl.exists() or any(run.checkpoints_dir.iterdir()):
        return False
    shutil.rmtree(run.path, ignore_errors=True)
    return not run.path.exists()


def _launches(run: RunDir) -> list[dict[str, Any]]:
    with refusing(run.run_json, "restore it, or start a new run"):
        return parse_object(read_bytes(run.run_json), {"launches": list})["launches"]


def _write_launches(run: RunDir, launches: list[dict[str, Any]]) -> None:
    write_whole(run.run_json, json.dumps({"shoal": __version__, "launches": launches}, indent=2))


def _write_params(run: RunDir, plan: TrainPlan) -> None:
    """Write the configuration as `train --config` reads it: whole in train.yaml, its two big parts beside it."""
    plain = {name: value for name, value in to_plain(plan.config).items() if name not in NOT_REPEATED}
    for file, names in ((run.train_yaml, plain), (run.env_yaml, ("task", "env")), (run.agent_yaml, ("task", "agent"))):
        part = {name: plain[name] for name in names}
        write_whole(file, yaml.safe_dump(part, sort_keys=False, default_flow_style=None, width=110))


def _keep_models(run: RunDir, plan: TrainPlan) -> None:
    """Copy the MJCF and other files of the environment, unless they are this run's copies already."""
    for field in filter(partial(getattr, plan.config.env), plan.config.env.model_fields):
        from shoal.sim.engines.model_files import copy_model, find_robot

        with suppress(UsageError):  # The environment raises it when it is built.
            file = find_robot(getattr(plan.config.env, field))
            if not file.resolve().is_relative_to(run.models_dir.resolve()):
                copy_model(file, run.models_dir / field, MODEL_FILE)


def _remove_unfinished(run: RunDir) -> None:
    """Remove what a crash has left of checkpoints that were being written or removed."""
    for named in (run.unfinished_dir(0), run.dropped_dir(0)):
        for left in run.checkpoints_dir.glob(named.name.replace("000000", "*")):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:  # Not Shoal's, but in the way.
                left.unlink()


def _drop_iterations_after(iteration: int, run: RunDir) -> None:
    """Drop the metrics of iterations that are repeated, since the checkpoint is older than the end of the run."""
    rows = list(read_lines(run.metrics_jsonl, {"iteration": int | float}, "remove it, or start a new run"))
    kept = [row for row in rows if row["iteration"] <= iteration]
    if len(kept) < len(rows):
        write_whole(run.metrics_jsonl, "".join(json.dumps(row) + "\n" for row in kept))
