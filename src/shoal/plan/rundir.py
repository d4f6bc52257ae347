"""The run directory: its layout, the names of new runs, and finding old ones. Nothing is written here."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal.errors import UsageError, did_you_mean
from shoal.files import Folder

MODEL_FILE = "model.xml"
"""Name of the copy of an MJCF file."""

_STAMP_FORMAT = "%Y-%m-%d_%H-%M-%S"
_RUN = re.compile(
    r"(?P<stamp>[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2})"
    r"(?:_(?P<name>.+?))??(?:-(?P<suffix>[2-9]|[1-9][0-9]+))?"
)
_LONGEST_NAME_BYTES = 200  # file systems allow 255 for a name, including the stamp and a suffix
_NAMED_AT_MOST = 3  # runs listed in an error


class Below:
    """A path below a directory, as an attribute of a class that has the directory as its `path`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, directory: Any, _owner: type) -> Path:  # noqa: ANN401  Any class with a `path`.
        return directory.path / self._name


@dataclass(frozen=True, slots=True)
class RunDir:
    """The directory of one run, and the paths in it."""

    path: Path

    lock = Below("lock")
    """Locked by the process that trains; holds its id and host."""
    run_json = Below("run.json")
    """Command, plan, versions, and how each launch ended."""
    manifest_json = Below("manifest.json")
    """The jobs of an evaluation, whose results have a directory of their own."""
    params_dir = Below("params")
    """The configuration, in files that `train --config` reads back."""
    env_yaml = Below("params/env.yaml")
    agent_yaml = Below("params/agent.yaml")
    train_yaml = Below("params/train.yaml")
    """Configuration besides that of the environment and of the learner."""
    models_dir = Below("models")
    """Copies of the MJCF files that the environment's configuration names, by field."""
    metrics_jsonl = Below("metrics.jsonl")
    """Pooled metrics, one line an iteration. TensorBoard's event files are beside it."""
    wandb_run_id = Below("wandb_run_id")
    """Id of the W&B run. wandb's own files are in `wandb/` beside it."""
    checkpoints_dir = Below("checkpoints")
    """One directory for each checkpoint."""
    videos_dir = Below("videos")
    exports_dir = Below("exports")
    """The policy in other formats."""
    policy_onnx = Below("exports/policy.onnx")
    best_onnx = Below("exports/best.onnx")
    """The policy of the best checkpoint, where that is not the last one."""
    torchrunx_dir = Below("torchrunx")
    """Default directory of the per-rank log files."""
    ranks_dir = Below("ranks")
    """Heartbeat, exit record, stack dump and diverged environments of each rank."""

    @property
    def folder(self) -> Folder:
        """What writes in it."""
        return Folder(self.path)

    @property
    def name(self) -> str:
        """Time stamp, run name, and a number where two runs had the same."""
        return self.path.name

    @property
    def experiment(self) -> str:
        """Name of the directory that holds the runs of its task."""
        return self.path.parent.name

    def saved_model(self, field: str) -> Path | None:
        """Return the copy of the MJCF or other file that a field of the environment names, if there is one."""
        directory, stem = self.models_dir / field, Path(MODEL_FILE).stem
        return next(itertools.chain(directory.rglob(MODEL_FILE), directory.glob(f"{stem}.*")), None)

    def checkpoint_dir(self, iteration: int) -> Path:
        """Return the directory of a checkpoint."""
        return self.checkpoints_dir / f"{iteration:06d}"

    def unfinished_dir(self, iteration: int) -> Path:
        """Return the directory of a checkpoint that is being written. The leading dot excludes it from lists."""
        return self.checkpoints_dir / f".unfinished-{iteration:06d}"

    def dropped_dir(self, iteration: int) -> Path:
        """Return the directory of a checkpoint that is being removed."""
        return self.checkpoints_dir / f".dropped-{iteration:06d}"

    def diverged_npz(self, rank: int) -> Path:
        """Return the file of a rank's diverged environments, for `shoal replay`."""
        return self.ranks_dir / f"rank_{rank:05d}.diverged.npz"


def refuse_links(run: RunDir) -> None:
    """Refuse a run with a symbolic link where a training writes."""
    written = (run.params_dir, run.models_dir, run.checkpoints_dir, run.ranks_dir, run.exports_dir, run.torchrunx_dir)
    videos = run.videos_dir.glob("*") if run.videos_dir.is_dir() else ()
    for path in (*written, run.videos_dir, run.path / "wandb", run.wandb_run_id, run.metrics_jsonl, run.lock, *videos):
        if path.is_symlink():
            raise UsageError(
                f"{path} is a link to {path.readlink()}, and what is written there would land elsewhere: put what it "
                "leads to in its place, or take another run."
            )


def experiment_dir(log_root: str | Path, experiment: str) -> Path:
    """Return the directory that holds the runs of an experiment."""
    refuse_bad_name("The experiment's name", experiment)
    if not experiment:
        raise UsageError("The experiment's name is empty: give it at least one letter.")
    return Path(log_root) / experiment


def refuse_bad_name(what: str, name: str) -> None:
    """Refuse a name that is no valid file name everywhere, is hidden, or is a path. It may be empty."""
    reason = None
    if "/" in name or "\\" in name:
        reason = "has a slash in it, and a name is no path"
    elif name.startswith("."):
        reason = "begins with a dot, which hides the directory"
    elif not name.isprintable():
        reason = "has a character in it that cannot be printed"
    elif name != name.strip():
        reason = "begins or ends with a space"
    elif len(name.encode()) > _LONGEST_NAME_BYTES:
        reason = f"is {len(name.encode())} bytes long, and {_LONGEST_NAME_BYTES} is the most"
    if reason:
        raise UsageError(f"{what} {name!r} {reason}: choose another name, such as 'baseline'.")


def run_names(now: datetime, run_name: str) -> Iterator[str]:
    """Yield names for a new run's directory, with `--run-name`, of which the first free one is taken."""
    first = now.strftime(_STAMP_FORMAT) + (f"_{run_name}" if run_name else "")
    return itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))


def list_runs(experiment: Path) -> list[RunDir]:
    """Return the runs in an experiment's directory, oldest first."""
    try:
        found = [(key, path) for path in experiment.iterdir() if (key := _age(path.name)) and path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(
            f"{experiment} should hold the runs of an experiment, but cannot be read ({error.strerror}): "
            "pass another --log-root, or mend it."
        ) from error
    return [RunDir(path) for _key, path in sorted(found)]


def _age(name: str) -> tuple[str, int, str] | None:
    """Return the sort key of a run: time stamp, number, name. None for other directories."""
    match = _RUN.fullmatch(name)
    if match is None:
        return None
    try:
        datetime.strptime(match["stamp"], _STAMP_FORMAT)  # noqa: DTZ007  Only whether there is such a date.
    except ValueError:
        return None
    return match["stamp"], int(match["suffix"] or 1), name


def list_all_runs(log_root: str | Path) -> list[RunDir]:
    """Return the runs of all experiments, oldest first. Results of evaluations are none."""
    found = [run for experiment in sorted(Path(log_root).glob("*/")) for run in list_runs(experiment)]
    runs = [run for run in found if not run.manifest_json.exists()]
    return sorted(runs, key=lambda run: _age(run.name) or ())


def names_run(word: str) -> bool:
    """Whether a word names a run rather than a task: `latest`, a name that runs have, or the directory of one."""
    return word == "latest" or _age(Path(word).name) is not None or _is_run(Path(word))


def _is_run(path: Path) -> bool:
    # Unlike pathlib's, these take a word that can be no path.
    return os.path.isfile(RunDir(path).run_json) or os.path.isdir(RunDir(path).checkpoints_dir)  # noqa: PTH112, PTH113


def find_run(directory: Path, runs: Sequence[RunDir], name_or_path: str) -> RunDir:
    """Return the one of `runs`, which are below `directory`, with this name, or any run by its path."""
    named = [run for run in runs if run.name == name_or_path]
    if len(named) > 1:
        raise UsageError(
            f"The run '{name_or_path}' is there more than once: pass {' or '.join(str(run.path) for run in named)}."
        )
    if named:
        return named[0]
    path = Path(os.path.expanduser(name_or_path))  # noqa: PTH111  Pathlib's refuses a user who does not exist.
    if _is_run(path):
        return RunDir(path)
    if os.path.isdir(path):  # noqa: PTH112
        what = f"{path} is no run: it has neither run.json nor checkpoints."
    else:
        what = f"The run '{name_or_path}' does not exist.{_near(name_or_path, runs)}"
    newest = ", ".join(run.name for run in reversed(runs[-_NAMED_AT_MOST:]))
    choice = f"The newest in {directory}: {newest}. Pass one of them, or a path."
    if not runs:
        choice = f"There are no runs in {directory} yet: train first, or pass --log-root."
    raise UsageError(f"{what} {choice}")


def _near(word: str, runs: Sequence[RunDir]) -> str:
    """Suggest the newest run whose name contains `word`, or else the most similar one."""
    wanted = Path(word).name.lower()
    newest_first = [run.name for run in reversed(runs)]
    holding = [name for name in newest_first if wanted and wanted in name.lower()]
    return f" Did you mean '{holding[0]}'?" if holding else did_you_mean(wanted, newest_first)
