"""Finding checkpoints, and validating them by their manifests, without torch. Writing is `shoal.learn.checkpoints`."""

import hashlib
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shoal.config import TrainConfig
from shoal.errors import UsageError
from shoal.plan.rundir import RunDir
from shoal.reading import opened, parse_json, read_bytes

MODEL = "model.pt"
MANIFEST = "manifest.json"
_NAME = re.compile(r"[0-9]{6}|[1-9][0-9]{6,}")
_FILE = re.compile(r"\w[\w.-]{,99}", re.ASCII)  # No path, and no control characters.
_RANK_FILE = re.compile(r"rank_[0-9]{5,}\.pt")
_MOST = 2**63  # More than any file has bytes.


def rank_file(rank: int) -> str:
    """Return the name of the file with a rank's environments and random states."""
    return f"rank_{rank:05d}.pt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint directory, valid or damaged, named after the number of finished iterations."""

    path: Path

    @property
    def iteration(self) -> int:
        """Number of finished iterations."""
        return int(self.path.name)

    @property
    def model(self) -> Path:
        """The file with weights, normalisers and optimizer."""
        return self.path / MODEL

    def manifest(self) -> dict[str, Any]:
        """Return the manifest; empty where it cannot be read, which `damage` reports."""
        try:
            manifest = parse_json(read_bytes(self.path / MANIFEST))
        except (OSError, ValueError):
            return {}
        return cast("dict[str, Any]", manifest) if isinstance(manifest, dict) else {}

    @property
    def score(self) -> float | None:
        """Value of `metric` when it was written; None where it is unknown."""
        value = self.manifest().get("score")
        if self.metric is None or isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if abs(value) <= sys.float_info.max else None  # JSON's integers have no end.

    @property
    def metric(self) -> str | None:
        """Name of the metric that is its score; None without one."""
        name = self.manifest().get("metric")
        return name if isinstance(name, str) and name.isprintable() else None  # It is printed on terminals.

    def compares_with(self, other: "Checkpoint") -> bool:
        """Whether their scores are of the same metric and, if it is a return, of the same rewards, where both tell."""
        counted, others = (each.manifest().get("counted") for each in (self, other))
        return self.metric == other.metric and (counted == others or None in (counted, others))

    @property
    def world_size(self) -> int | None:
        """Number of ranks that trained it; None where it is unknown."""
        number = self.manifest().get("world_size")
        return number if _is_count(number) else None

    @property
    def has_rank_files(self) -> bool:
        """Whether it has environments and random states of all ranks, from which a run resumes exactly."""
        files = self.manifest().get("files")
        return isinstance(files, dict) and rank_file(0) in files

    def damage(self) -> str | None:
        """Return what is wrong with this checkpoint, as a clause. None when every file agrees with the manifest."""
        try:
            manifest: dict[str, Any] = parse_json(read_bytes(self.path / MANIFEST))
            files: dict[str, dict[str, Any]] = manifest["files"]
            sums = {name: (file["bytes"], file["sha256"]) for name, file in files.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"its manifest cannot be read ({type(error).__name__})"
        error = _manifest_error(manifest, sums)
        if error is not None:
            return f"its manifest {error}"
        found = (_damage_of(self.path / name, *expected) for name, expected in sums.items())
        damage = next((damage for damage in found if damage is not None), None)
        if damage is not None and self.manifest() not in ({}, manifest):
            return self.damage()  # The training has removed its rank files meanwhile.
        return damage


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST


def _manifest_error(manifest: dict[str, Any], sums: Mapping[str, tuple[Any, Any]]) -> str | None:
    """Return what is invalid in a manifest, or None. Readers of a valid checkpoint's manifest rely on it."""
    for name, (size, checksum) in sums.items():
        if not _FILE.fullmatch(name):
            return f"names {name!a:.60}, which is no file beside it"
        if not (_is_count(size) or size == 0) or not isinstance(checksum, str):
            return f"tells no size and sum of {name}"
    if MODEL not in sums:
        return f"does not name {MODEL}"
    for key in ("world_size", "num_envs"):
        value = manifest.get(key)
        if value is not None and not _is_count(value):
            plain = isinstance(value, str | int | float)
            return f"says that {key} is {ascii(value) if plain else type(value).__name__:.60}"
    if any(map(_RANK_FILE.fullmatch, sums)):
        ranks = range(manifest.get("world_size") or 0)
        lacking = next((name for name in map(rank_file, ranks) if name not in sums), None)
        return lacking and f"does not name {lacking}"
    return None


def _damage_of(file: Path, size: int, checksum: str) -> str | None:
    """Return what is wrong with one file, or None."""
    try:
        if not file.is_file():
            return f"{file.name} is missing"
        if file.stat().st_size != size:
            return f"{file.name} has {file.stat().st_size} bytes instead of {size}"
        if sha256(file) != checksum:
            return f"{file.name} does not have the SHA-256 sum that its manifest names"
    except OSError as error:
        return f"{file.name} cannot be read ({error.strerror})"
    return None


def sha256(file: Path) -> str:
    """Return the SHA-256 sum of a file, in hexadecimal."""
    with opened(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def model_sums(run: RunDir) -> dict[str, str]:
    """Return the SHA-256 sums of a run's copies of MJCF and other files, by their paths in `models/`."""
    files = filter(Path.is_file, sorted(run.models_dir.rglob("*")))
    return {str(file.relative_to(run.models_dir)): sha256(file) for file in files}


def list_checkpoints(run: RunDir) -> list[Checkpoint]:
    """Return the checkpoints of a run, oldest first, damaged ones included."""
    if not run.checkpoints_dir.is_dir():
        return []
    found = (path for path in run.checkpoints_dir.iterdir() if path.is_dir() and _NAME.fullmatch(path.name))
    return sorted((Checkpoint(path) for path in found), key=lambda checkpoint: checkpoint.iteration)


def best_good(*runs: RunDir) -> Checkpoint | None:
    """Return the best valid checkpoint of a run, or of several, oldest first; see `best_first`."""
    checkpoints = [each for run in runs for each in list_checkpoints(run)]
    return next((each for each in best_first(checkpoints) if each.damage() is None), None)


def best_first(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Return checkpoints, given oldest first, by descending score, then the newest first.

    Only scores that compare with that of the newest checkpoint count. Checkpoints without one come last.
    """
    newest_first = list(checkpoints)[::-1]
    newest = next((each for each in newest_first if each.manifest()), None)

    def score_of(each: Checkpoint) -> float:
        score = each.score
        return -math.inf if score is None or newest is None or not each.compares_with(newest) else score

    return sorted(newest_first, key=score_of, reverse=True)


def to_drop(run: RunDir, config: TrainConfig) -> list[Checkpoint]:
    """Return the checkpoints of a run to remove, oldest first, damaged ones included.

    The newest valid one and the best one are always kept.
    """
    found = list_checkpoints(run)
    if config.keep_last is None:
        return []
    newest, _ = newest_good(run)
    kept = {*found[-config.keep_last :], newest, best_good(run)}
    return [each for each in found if each not in kept]


def to_strip(run: RunDir, config: TrainConfig) -> list[Checkpoint]:
    """Return the checkpoints of a run whose rank files are to be removed, oldest first."""
    older = list_checkpoints(run)[: -config.keep_rank_files] if config.keep_rank_files else []
    return [each for each in older if any(each.path.glob("rank_*.pt"))]


def newest_good(run: RunDir) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest valid checkpoint of a run, and a sentence about each newer, damaged one."""
    passed_over: list[str] = []
    for checkpoint in reversed(list_checkpoints(run)):
        damage = checkpoint.damage()
        if damage is None:
            return checkpoint, passed_over
        passed_over.append(f"Checkpoint {checkpoint.path} is damaged and was passed over: {damage}.")
    return None, passed_over


def checkpoint_at(path: Path) -> Path:
    """Return the model file of `path`: a `.pt` file, or a valid checkpoint directory."""
    if path.suffix in (".onnx", ".pt2"):
        raise UsageError(
            f"{path} is an exported policy, and a checkpoint is needed: pass a directory below <run>/checkpoints or a "
            ".pt file. `evaluate` runs exported policies."
        )
    if path.is_file():
        return path
    if (path / MODEL).is_file():
        damage = Checkpoint(path).damage()
        if damage is not None:
            raise UsageError(f"The checkpoint {path} is damaged: {damage}. Pass another one.")
        return path / MODEL
    what = f"The checkpoint {path} does not exist"
    if path.is_dir():
        what = f"{path} is a directory, but no checkpoint, which would hold a {MODEL}"
    raise UsageError(
        f"{what}: pass a directory below <run>/checkpoints, a .pt file, 'latest', 'best', 'best-of-runs' or 'shipped'."
    )


def run_of(model: Path) -> RunDir | None:
    """Return the run of a checkpoint's model file, or None for another file."""
    run = RunDir(model.absolute().parent.parent.parent)
    return run if run.train_yaml.is_file() else None


def check_learner(saved: Mapping[str, Any], learner: str) -> None:
    """Refuse the state, or the manifest, of another learner. Those of other programs are rsl_rl's.

    Raises:
        UsageError: It is of another learner.
    """
    trained_by = str(saved.get("learner", "rsl_rl"))
    if Path(trained_by).name != Path(learner).name:  # A learner in a file may have moved.
        raise UsageError(
            f"The checkpoint is of the learner {trained_by}, and not of {learner}: pass --learner {trained_by}."
        )
