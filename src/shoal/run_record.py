"""The run directory, made and locked by the launching process, and the record of a launch and of its result."""

import itertools
import json
import os
import platform
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal import __version__
from shoal.errors import UsageError, refusing_os_errors
from shoal.files import Folder, make_first_free, try_lock
from shoal.learn.metrics import Row
from shoal.learn.run_json import write_launch
from shoal.plan.changes import flag_words, flatten
from shoal.plan.checkpoints import Checkpoint, model_sums
from shoal.plan.ranks import agent_dir
from shoal.plan.resume import new_run_words, saved_section
from shoal.plan.rundir import RunDir, experiment_dir, run_names
from shoal.plan.training import TrainPlan
from shoal.provenance import git_state, now, versions
from shoal.reading import parse_object, read_bytes, refusing
from shoal.timing import POLL_S, RUN_LOCK_S, wait_for

_ATTEMPTED = "shoal_run"
"""File in the agent's directory, which only its user can enter, with the path of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The result of a worker that finished, in plain values."""

    rank: int
    host: str
    device: str
    iteration: int = 0
    digest: str = ""
    """Fingerprint of the learner at the end, equal on every rank."""
    last_row: Row = field(default_factory=dict[str, float])
    """Pooled metrics of the last iteration; empty without one."""
    collective_latency: dict[str, float] = field(default_factory=dict[str, float])
    """Measurements of `learn.collective_latency`, if `probe` is set."""


def make_run_dir(plan: TrainPlan) -> RunDir:
    """Make the directory of a new run, which no other run has, even one started in the same second."""
    experiment = experiment_dir(plan.config.log_root, plan.spec.experiment)
    failure = f"The run directory cannot be made in {experiment.absolute()}"
    with refusing_os_errors(failure, "pass --log-root with a directory that you can write to"):
        return RunDir(make_first_free(experiment, run_names(datetime.now().astimezone(), plan.config.run_name)))


def make_log_dir(run: RunDir, base: Path | None) -> Path | None:
    """Make the directory of one launch's rank files, named as torchrunx names it: after the second; None for none."""
    if base is None:
        return None
    stamp = datetime.now().isoformat(timespec="seconds")  # noqa: DTZ005  Local time, as torchrunx has it.
    remedy = "pass --torchrunx-log-dir, or set TORCHRUNX_LOG_DIR, with a directory that you can write to"
    with refusing_os_errors(f"The rank files cannot be written to {base.absolute()}", remedy):
        if base.is_relative_to(run.path):  # It may be a link there, which no user has named.
            run.folder.make(base)
        return make_first_free(base, (stamp if number == 1 else f"{stamp}-{number}" for number in itertools.count(1)))


def lock_run(run: RunDir, stack: ExitStack) -> None:
    """Lock a run against other launches until `stack` is closed or this process ends; refuse one that is locked."""
    with suppress(OSError):  # The record refuses a directory that cannot be written; some file systems have no locks.
        file = stack.enter_context(run.folder.open(run.lock, "a+"))
        descriptor = file.fileno()
        if not wait_for(lambda: try_lock(file), 2 * POLL_S):  # `shoal runs` holds it for a moment.
            owner = ascii(wait_for(lambda: os.pread(descriptor, 200, 0), RUN_LOCK_S).decode(errors="replace"))[1:-1]
            message = f"The run {run.path} is in use by process {owner}: wait until it has ended, or end it."
            raise UsageError(message)
        os.ftruncate(descriptor, 0)
        file.write(f"{os.getpid()} on {platform.node()}".encode())


def is_in_use(run: RunDir) -> bool | None:
    """Whether another process has locked a run; None where the file system does not tell."""
    try:
        with run.folder.open(run.lock, "r") as file:
            return not try_lock(file, shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return None


def trains(run: RunDir) -> bool:
    """Whether a run is training; by its record, where the file system does not tell whether it is locked."""
    held = is_in_use(run)
    if held is not None or not run.run_json.is_file():
        return bool(held)
    with refusing(run.run_json, "restore it"):
        launches = parse_object(read_bytes(run.run_json), {"launches": list})["launches"]
        return bool(launches) and launches[-1]["ended"] is None


def save_for_next_attempt(run: RunDir) -> None:
    """Let the attempts of torchrun's agent that follow go on with `run`."""
    directory = agent_dir()
    if directory is not None:
        Folder(directory).write(directory / _ATTEMPTED, str(run.path))


def run_of_earlier_attempt() -> RunDir | None:
    """Return the run of earlier attempts of torchrun's agent; None in the first."""
    directory = agent_dir()
    file = directory / _ATTEMPTED if directory else None
    return RunDir(Path(os.fsdecode(read_bytes(file)))) if file and file.exists() else None


def write_manifest(run: RunDir, **asked: Any) -> None:  # noqa: ANN401  Plain values.
    """Write what an evaluation or a sweep was asked, with versions, before anything of it is started."""
    about = {"shoal": __version__, "started": now(), "command": sys.argv, "versions": versions(), "git": git_state()}
    run.folder.write(run.manifest_json, json.dumps(about | asked, indent=2))


def record_launch(run: RunDir, plan: TrainPlan, restart_of: str | None = None) -> dict[str, Any]:
    """Return the entry of `run.json` for a launch, and write it, unless rank 0 does once all ranks have restored."""
    refuse_other_models(plan)
    with refusing_os_errors(f"The run {run.path} cannot be written", "mend it, or pass another --log-root"):
        run.folder.make(run.ranks_dir)
        clear_exit_records(run)
    launch: dict[str, Any] = {
        "command": sys.argv,
        "started": now(),
        "restart_of": restart_of,  # When the launch was started that this one replaces, after a loss.
        "host": platform.node(),
        "pid": os.getpid(),
        "plan": plan.summary(),
        "versions": versions(),
        "git": git_state(),
        "ended": None,
    }
    if plan.start is None or plan.start.mode != "continue":
        write_launch(run, plan.config, launch)
    return launch


def clear_exit_records(run: RunDir) -> None:
    """Remove an earlier launch's files in `<run>/ranks`; rename its stack dumps and files of diverged environments."""
    for path in run.ranks_dir.glob("rank_*"):
        if path.name.endswith((".stacks.txt", ".diverged.npz")):
            names = (path.with_name(f"launch_{number}_{path.name}") for number in itertools.count(1))
            run.folder.rename(path, next(name for name in names if not name.exists()))
        else:
            run.folder.remove(path)


def refuse_other_models(plan: TrainPlan) -> None:
    """Refuse to go on with a run with other MJCF or motion files than its own, or with its own after a change."""
    run, start, env = plan.continued, plan.start, plan.config.env
    if run is None or start is None or start.mode != "continue":
        return
    from shoal.sim.engines.model_copies import differing_file
    from shoal.sim.engines.model_files import find_robot

    then = Checkpoint(Path(start.model).parent).manifest().get("models")
    now = model_sums(run) if then else {}
    for name, checksum in then.items() if isinstance(then, dict) else ():
        if now.get(name) != checksum:
            raise UsageError(
                f"{run.models_dir / name} is no longer as the checkpoint {start.model} was trained with: "
                f"put it back, or start a new run: {new_run_words(plan.config, start.model)}"
            )
    saved, files = flatten(saved_section(run, "env")), env.model_files()
    copied = [each.name for each in sorted(run.models_dir.glob("*"))]
    for name in dict.fromkeys((*files, *copied)):
        wanted, copy = files.get(name, ""), run.saved_model(name)
        if copy is None and (wanted or None) == (saved.get(name, wanted) or None):
            continue
        different: Path | None = None
        if copy is not None and wanted:
            with suppress(UsageError):  # There is none: the environment raises it when it is built.
                different = differing_file(find_robot(wanted), copy, run.models_dir / name)
                if different is None:
                    continue
        words = flag_words({f"env.{name}": wanted})
        raise UsageError(
            f"{words} was asked for, but the run {run.path} is of {copy or saved.get(name) or 'the default'}"
            f"{f', from which {different} differs' if different else ''}: leave the flag out, or start a new run: "
            f"{new_run_words(plan.config, start.model)} {words}"
        )


def remove_unlearned(run: RunDir) -> bool:
    """Remove the run directory unless something was learned; return whether it was removed."""
    if run.metrics_jsonl.exists() or any(run.checkpoints_dir.iterdir()):
        return False
    with suppress(OSError):
        Folder(run.path.parent).remove_tree(run.path)
    return not run.path.exists()
