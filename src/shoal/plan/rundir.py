"""The run directory: its layout, the names of new runs, and how old ones are found again.

Directories are read here and never written: the launching process makes the run directory, and what lies in
it is written by its owner. `docs/architecture.md` shows the layout as a tree.
"""

from __future__ import annotations

import difflib
import itertools
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MODEL_FILE = "model.xml"
"""What the copy of an MJCF file is called."""

_STAMP_FORMAT = "%Y-%m-%d_%H-%M-%S"
_RUN = re.compile(
    r"(?P<stamp>[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2})"
    r"(?:_(?P<name>.+?))??(?:-(?P<suffix>[2-9]|[1-9][0-9]+))?"
)
_LONGEST_NAME_BYTES = 200  # file systems allow 255 for a name; the stamp and a suffix need some of them
_NAMED_AT_MOST = 3  # runs listed in a refusal


@dataclass(frozen=True, slots=True)
class RunDir:
    """One training's directory, and where everything in it lies."""

    path: Path
    """The directory itself."""

    @property
    def name(self) -> str:
        """When the run began, what the user called it, and a number where two had the same name."""
        return self.path.name

    @property
    def lock(self) -> Path:
        """Locked by the process that trains; its id and host are in it."""
        return self.path / "lock"

    @property
    def run_json(self) -> Path:
        """What was asked, the plan, versions, and how it ended."""
        return self.path / "run.json"

    @property
    def params_dir(self) -> Path:
        """The configuration, in files that `train --config` reads back."""
        return self.path / "params"

    @property
    def env_yaml(self) -> Path:
        """The environment's configuration."""
        return self.params_dir / "env.yaml"

    @property
    def agent_yaml(self) -> Path:
        """The learner's configuration."""
        return self.params_dir / "agent.yaml"

    @property
    def train_yaml(self) -> Path:
        """Everything else that was asked."""
        return self.params_dir / "train.yaml"

    @property
    def models_dir(self) -> Path:
        """Copies of the MJCF files that the environment's configuration names, by the field."""
        return self.path / "models"

    def saved_model(self, field: str) -> Path | None:
        """Return the copy of the MJCF file that a field of the environment names, if there is one."""
        return next((self.models_dir / field).rglob(MODEL_FILE), None)

    @property
    def metrics_jsonl(self) -> Path:
        """Pooled metrics, one line an iteration. TensorBoard's event files lie beside it."""
        return self.path / "metrics.jsonl"

    @property
    def wandb_run_id(self) -> Path:
        """The id under which W&B knows this run. What wandb itself keeps of it lies in `wandb/` beside it."""
        return self.path / "wandb_run_id"

    @property
    def checkpoints_dir(self) -> Path:
        """One directory for each checkpoint."""
        return self.path / "checkpoints"

    def checkpoint_dir(self, iteration: int) -> Path:
        """Return the directory of the checkpoint after `iteration` iterations."""
        return self.checkpoints_dir / f"{iteration:06d}"

    def unfinished_dir(self, iteration: int) -> Path:
        """Return where a checkpoint is written. The leading dot hides it from all that looks for checkpoints."""
        return self.checkpoints_dir / f".unfinished-{iteration:06d}"

    def dropped_dir(self, iteration: int) -> Path:
        """Return where a checkpoint is hidden while it is removed."""
        return self.checkpoints_dir / f".dropped-{iteration:06d}"

    @property
    def videos_dir(self) -> Path:
        """Films of one environment."""
        return self.path / "videos"

    @property
    def exports_dir(self) -> Path:
        """The policy in other formats."""
        return self.path / "exports"

    @property
    def policy_onnx(self) -> Path:
        """The exported policy."""
        return self.exports_dir / "policy.onnx"

    @property
    def best_onnx(self) -> Path:
        """The exported policy of the best checkpoint, where that is not the last one."""
        return self.exports_dir / "best.onnx"

    @property
    def torchrunx_dir(self) -> Path:
        """Where rank files go by default."""
        return self.path / "torchrunx"

    @property
    def ranks_dir(self) -> Path:
        """Heartbeat, failure note, stack dump and lost environments of each rank."""
        return self.path / "ranks"

    def lost_npz(self, rank: int) -> Path:
        """Return where a rank leaves what led to the environments that it has lost, for `shoal replay`."""
        return self.ranks_dir / f"rank_{rank:05d}.lost.npz"


def refuse_links(run: RunDir) -> None:
    """Refuse a run in which a link stands where a training writes.

    Raises:
        UsageError: Names it: what is written there would land elsewhere.
    """
    written = (run.params_dir, run.models_dir, run.checkpoints_dir, run.ranks_dir, run.exports_dir, run.torchrunx_dir)
    films = run.videos_dir.glob("*") if run.videos_dir.is_dir() else ()
    for path in (*written, run.videos_dir, run.path / "wandb", run.wandb_run_id, run.metrics_jsonl, *films):
        if path.is_symlink():
            message = (
                f"{path} is a link to {path.readlink()}, and what is written there would land elsewhere: put what it "
                "leads to in its place, or take another run."
            )
            raise UsageError(message)


def experiment_dir(log_root: str | Path, experiment: str) -> Path:
    """Return the directory that holds the runs of an experiment.

    Raises:
        UsageError: The experiment's name cannot be a directory's.
    """
    _refuse_bad_name("The experiment's name", experiment)
    if not experiment:
        message = "The experiment's name is empty: give it at least one letter."
        raise UsageError(message)
    return Path(log_root) / experiment


def validate_run_name(run_name: str) -> None:
    """Make sure that a directory can carry this name. An empty one is fine: the run then has only its stamp.

    Raises:
        UsageError: It cannot.
    """
    _refuse_bad_name("--run-name", run_name)


def _refuse_bad_name(what: str, name: str) -> None:
    """Refuse what some file system does not take, and what would hide the directory or lead elsewhere."""
    trouble = None
    if "/" in name or "\\" in name:
        trouble = "has a slash in it, and a name is no path"
    elif name.startswith("."):
        trouble = "begins with a dot, which hides the directory"
    elif not name.isprintable():
        trouble = "has a character in it that cannot be printed"
    elif name != name.strip():
        trouble = "begins or ends with a space"
    elif len(name.encode()) > _LONGEST_NAME_BYTES:
        trouble = f"is {len(name.encode())} bytes long, and {_LONGEST_NAME_BYTES} is the most"
    if trouble:
        message = f"{what} {name!r} {trouble}: choose another name, such as 'baseline'."
        raise UsageError(message)


def run_names(now: datetime, run_name: str) -> Iterator[str]:
    """Return names for a new run's directory, best first, without end. The first free one should be taken.

    Args:
        now: When the run begins, in local time.
        run_name: What the user calls it, or an empty string.

    Raises:
        UsageError: No directory can carry `run_name`.
    """
    validate_run_name(run_name)
    first = now.strftime(_STAMP_FORMAT) + (f"_{run_name}" if run_name else "")
    return itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))


def list_runs(experiment: Path) -> list[RunDir]:
    """Return the runs in an experiment's directory, oldest first. What is no run is passed over.

    Raises:
        UsageError: The directory cannot be read.
    """
    try:
        found = [(key, path) for path in experiment.iterdir() if (key := _age(path.name)) and path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        message = (
            f"{experiment} should hold the runs of an experiment, but cannot be read ({error.strerror}): "
            "pass another --log-root, or mend it."
        )
        raise UsageError(message) from error
    return [RunDir(path) for _key, path in sorted(found)]


def _age(name: str) -> tuple[str, int, str] | None:
    """Return what sorts runs by age: second, number among its namesakes, name. None for what is no run."""
    match = _RUN.fullmatch(name)
    if match is None:
        return None
    try:
        datetime.strptime(match["stamp"], _STAMP_FORMAT)  # noqa: DTZ007  Only whether there is such a date.
    except ValueError:
        return None
    return match["stamp"], int(match["suffix"] or 1), name


def find_run(log_root: str | Path, experiment: str, name_or_path: str) -> RunDir:
    """Return the run that a user means: one of the experiment by its name, or any by its path.

    Raises:
        UsageError: There is no such run.
    """
    directory = experiment_dir(log_root, experiment)
    return _find(directory, list_runs(directory), name_or_path)


def list_all_runs(log_root: str | Path) -> list[RunDir]:
    """Return the runs of all experiments, oldest first.

    Raises:
        UsageError: An experiment's directory cannot be read.
    """
    runs = [run for experiment in sorted(Path(log_root).glob("*/")) for run in list_runs(experiment)]
    return sorted(runs, key=lambda run: _age(run.name) or ())


def find_any_run(log_root: str | Path, name_or_path: str) -> RunDir:
    """Return the run that a user means, by its path, or by its name in whatever experiment it is.

    Raises:
        UsageError: There is no such run, or more than one.
    """
    return _find(Path(log_root), list_all_runs(log_root), name_or_path)


def _find(directory: Path, runs: Sequence[RunDir], name_or_path: str) -> RunDir:
    """Return the one of `runs`, all below `directory`, that has this name, or any run by its path."""
    named = [run for run in runs if run.name == name_or_path]
    if len(named) > 1:
        message = (
            f"The run '{name_or_path}' is there more than once: pass {' or '.join(str(run.path) for run in named)}."
        )
        raise UsageError(message)
    if named:
        return named[0]
    path = _directory(name_or_path)
    if path is not None:
        run = RunDir(path)
        if run.run_json.is_file() or run.checkpoints_dir.is_dir():
            return run
        what = f"{path} is no run: it has neither run.json nor checkpoints."
    else:
        what = f"The run '{name_or_path}' does not exist.{_near(name_or_path, runs)}"
    message = f"{what} {_what_there_is(directory, runs)}"
    raise UsageError(message)


def _directory(word: str) -> Path | None:
    """Return the directory that `word` is the path of. None when there is none, or when it can be no path."""
    try:
        path = Path(word).expanduser()
        return path if path.is_dir() else None
    except (OSError, RuntimeError):  # too long for a path, or the home of a user who does not exist
        return None


def _what_there_is(directory: Path, runs: Sequence[RunDir]) -> str:
    if not runs:
        return f"There are no runs in {directory} yet: train first, or pass --log-root."
    newest = ", ".join(run.name for run in reversed(runs[-_NAMED_AT_MOST:]))
    return f"The newest in {directory}: {newest}. Pass one of them, or a path."


def _near(word: str, runs: Sequence[RunDir]) -> str:
    """Suggest the newest run whose name holds `word`, or else one that is spelt nearly so."""
    wanted = Path(word).name.lower()
    newest_first = [run.name for run in reversed(runs)]
    holding = [name for name in newest_first if wanted and wanted in name.lower()]
    near = holding or difflib.get_close_matches(wanted, newest_first, n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""


def torchrunx_log_dir(environ: Mapping[str, str], flag: str | None, run: RunDir) -> Path | None:
    """Return where rank files go, or None when there are to be none.

    Args:
        environ: Environment variables. `TORCHRUNX_LOG_DIR`, even an empty one, wins over the flag.
        flag: Value of `--torchrunx-log-dir`, None when it was not given. It wins over the default, which is a
            directory in the run's own.
        run: The run.
    """
    asked = environ.get("TORCHRUNX_LOG_DIR", flag)
    if asked is None:
        return run.torchrunx_dir
    return Path(asked) if asked else None


def launch_stamp(now: datetime) -> str:
    """Return the name of one launch's directory of rank files: its second, in ISO 8601, without a zone."""
    return now.replace(tzinfo=None).isoformat(timespec="seconds")


def rank_log_name(host: str, local_rank: int) -> str:
    """Return the name of a rank's file, such as ``localhost[0].log``, the one that torchrunx 0.4 gives."""
    return f"{host}[{local_rank}].log"
