"""Telling good checkpoints from damaged ones, by their manifests alone. `learn/test_checkpoints` writes real ones."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from shoal.errors import UsageError
from shoal.plan.checkpoints import Checkpoint, checkpoint_at, list_checkpoints, newest_good, sha256
from shoal.plan.rundir import RunDir
from shoal.plan.training import find_model
from shoal.tasks.registry import resolve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DATA = bytes(range(256)) * 16


def make(run: RunDir, iteration: int) -> Path:
    """Write a whole checkpoint."""
    path = run.checkpoint_dir(iteration)
    path.mkdir(parents=True)
    (path / "model.pt").write_bytes(DATA)
    describe(path, {"model.pt": {"bytes": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}})
    return path


def describe(path: Path, files: Any) -> None:
    """Write a manifest."""
    (path / "manifest.json").write_text(json.dumps({"iteration": int(path.name), "files": files}), encoding="utf-8")


def flip_a_bit(path: Path) -> None:
    (path / "model.pt").write_bytes(DATA[:100] + bytes([DATA[100] ^ 1]) + DATA[101:])


# Listing


def test_checkpoints_are_listed_oldest_first_by_number(run_dir: RunDir) -> None:
    for iteration in (999_999, 50, 1_000_000):
        make(run_dir, iteration)
    assert [checkpoint.iteration for checkpoint in list_checkpoints(run_dir)] == [50, 999_999, 1_000_000]


def test_what_is_no_checkpoint_is_not_listed(run_dir: RunDir) -> None:
    make(run_dir, 1)
    for name in (".unfinished", "latest", "00001", "000001-old"):
        (run_dir.checkpoints_dir / name).mkdir()
    (run_dir.checkpoints_dir / "000002").write_text("a file", encoding="utf-8")
    assert [checkpoint.iteration for checkpoint in list_checkpoints(run_dir)] == [1]


def test_a_run_without_checkpoints_has_none(run_dir: RunDir) -> None:
    assert list_checkpoints(run_dir) == []
    assert newest_good(run_dir) == (None, [])


# Damage


def test_a_whole_checkpoint_has_no_damage(run_dir: RunDir) -> None:
    path = make(run_dir, 1)
    assert Checkpoint(path).damage() is None
    assert sha256(path / "model.pt") == hashlib.sha256(DATA).hexdigest()


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (
        lambda path: (path / "model.pt").write_bytes(DATA[:1000]),
        "model.pt has 1000 bytes instead of 4096",
    ),
    "empty": (lambda path: (path / "model.pt").write_bytes(b""), "model.pt has 0 bytes instead of 4096"),
    "flipped": (flip_a_bit, "model.pt does not have the SHA-256 sum that its manifest names"),
    "missing": (lambda path: (path / "model.pt").unlink(), "model.pt is missing"),
    "a directory instead": (
        lambda path: [(path / "model.pt").unlink(), (path / "model.pt").mkdir()],
        "model.pt is missing",
    ),
    "no manifest": (
        lambda path: (path / "manifest.json").unlink(),
        "its manifest cannot be read (FileNotFoundError)",
    ),
    "half a manifest": (
        lambda path: (path / "manifest.json").write_text('{"iteration": 1, "fil', encoding="utf-8"),
        "its manifest cannot be read (JSONDecodeError)",
    ),
    "an empty manifest": (
        lambda path: (path / "manifest.json").write_bytes(b""),
        "its manifest cannot be read (JSONDecodeError)",
    ),
    "a manifest of bytes": (
        lambda path: (path / "manifest.json").write_bytes(b"\xff\xfe\x00"),
        "its manifest cannot be read (UnicodeDecodeError)",
    ),
    "a manifest that is a list": (
        lambda path: (path / "manifest.json").write_text("[]", encoding="utf-8"),
        "its manifest cannot be read (TypeError)",
    ),
    "a manifest without files": (
        lambda path: (path / "manifest.json").write_text("{}", encoding="utf-8"),
        "its manifest cannot be read (KeyError)",
    ),
    "another file of several": (
        lambda path: describe(
            path,
            {
                "model.pt": {"bytes": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()},
                "rank_00001.pt": {"bytes": 1, "sha256": ""},
            },
        ),
        "rank_00001.pt is missing",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_its_reason(kind: str, run_dir: RunDir) -> None:
    damage, reason = DAMAGES[kind]
    make(run_dir, 1)
    newest = make(run_dir, 2)
    damage(newest)
    found, passed_over = newest_good(run_dir)
    assert found is not None
    assert found.iteration == 1
    assert passed_over == [f"Checkpoint {newest} is damaged and was passed over: {reason}."]


@pytest.mark.parametrize(
    "files",
    [{}, {"other.pt": {"bytes": 0, "sha256": ""}}, [], None, {"model.pt": {}}, {"model.pt": None}],
    ids=["none", "others", "a list", "null", "no sum", "no entry"],
)
def test_a_manifest_that_vouches_for_no_model_is_damage(files: Any, run_dir: RunDir) -> None:
    make(run_dir, 1)
    newest = make(run_dir, 2)
    (newest / "other.pt").touch()
    describe(newest, files)
    found, passed_over = newest_good(run_dir)
    assert found is not None
    assert found.iteration == 1
    assert len(passed_over) == 1


def test_every_newer_damaged_checkpoint_is_told(run_dir: RunDir) -> None:
    for iteration in (1, 2, 3):
        make(run_dir, iteration)
    shutil.rmtree(run_dir.checkpoint_dir(3))
    run_dir.checkpoint_dir(3).mkdir()
    flip_a_bit(run_dir.checkpoint_dir(2))
    found, passed_over = newest_good(run_dir)
    assert found is not None
    assert found.iteration == 1
    assert [sentence.split()[1] for sentence in passed_over] == [
        str(run_dir.checkpoint_dir(3)),
        str(run_dir.checkpoint_dir(2)),
    ]


def test_damage_to_an_older_checkpoint_is_nobodys_business(run_dir: RunDir) -> None:
    flip_a_bit(make(run_dir, 1))
    make(run_dir, 2)
    found, passed_over = newest_good(run_dir)
    assert found is not None
    assert found.iteration == 2
    assert passed_over == []


def test_without_a_good_one_all_are_told(run_dir: RunDir) -> None:
    flip_a_bit(make(run_dir, 1))
    found, passed_over = newest_good(run_dir)
    assert found is None
    assert len(passed_over) == 1


# What a user names


def test_a_checkpoint_may_be_named_by_its_directory_or_its_file(run_dir: RunDir) -> None:
    path = make(run_dir, 1)
    assert checkpoint_at(path) == path / "model.pt"
    assert checkpoint_at(path / "model.pt") == path / "model.pt"


def test_a_file_of_plain_rsl_rl_needs_no_manifest(tmp_path: Path) -> None:
    model = tmp_path / "model_100.pt"
    model.write_bytes(DATA)
    assert checkpoint_at(model) == model


def test_a_damaged_directory_is_refused_with_its_reason(run_dir: RunDir) -> None:
    path = make(run_dir, 1)
    flip_a_bit(path)
    with pytest.raises(UsageError, match=r"is damaged: model\.pt does not have the SHA-256 sum .* Pass another one"):
        checkpoint_at(path)


@pytest.mark.parametrize(("word", "trouble"), [("nowhere", "does not exist: p"), (".", r"holds no model\.pt\. P")])
def test_what_is_not_there_is_refused_with_what_to_pass(word: str, trouble: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=rf"{trouble}ass a directory below <run>/checkpoints, a \.pt file, 'latest' or 'best'"
    ):
        checkpoint_at(tmp_path / word)


# The best


def scored(run: RunDir, scores: dict[int, float | None]) -> None:
    """Write whole checkpoints with these scores."""
    for iteration, score in scores.items():
        path = make(run, iteration)
        told = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        (path / "manifest.json").write_text(json.dumps(told | {"score": score}), encoding="utf-8")


def test_the_best_is_the_whole_one_of_the_newest_run_with_the_highest_score(tmp_path: Path) -> None:
    spec = resolve("Cartpole-Swingup")
    older, newer = (RunDir(tmp_path / spec.experiment / f"2026-01-0{day}_00-00-00") for day in (1, 2))
    scored(older, {1: 100.0})
    scored(newer, {1: None, 2: 3.0, 3: float("nan"), 4: 9.0, 5: 2.0})
    assert find_model(str(tmp_path), spec, "best").parent == newer.checkpoint_dir(4)
    flip_a_bit(newer.checkpoint_dir(4))
    assert find_model(str(tmp_path), spec, "best").parent == newer.checkpoint_dir(2)
    assert find_model(str(tmp_path), spec, "latest").parent == newer.checkpoint_dir(5)


def test_without_a_score_there_is_no_best(tmp_path: Path) -> None:
    spec = resolve("Cartpole-Swingup")
    scored(RunDir(tmp_path / spec.experiment / "2026-01-01_00-00-00"), {1: None})
    with pytest.raises(UsageError, match=r"^No checkpoint of the newest run below .* has a score"):
        find_model(str(tmp_path), spec, "best")
