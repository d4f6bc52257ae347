"""Telling good checkpoints from damaged ones, by their manifests alone. `learn/test_checkpoints` writes real ones."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support.stories import plan_of

from shoal.cli import main
from shoal.cli.parse import parse
from shoal.commands.checkpoints import verify
from shoal.errors import ShoalError, UsageError
from shoal.plan.checkpoints import Checkpoint, checkpoint_at, list_checkpoints, newest_good, sha256
from shoal.plan.resume import find_model
from shoal.plan.rundir import RunDir
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
    for name in (
        *(".unfinished", "latest", "00001", "000001-old", "00000x", "0000003", "-00003", "٠٠٠٠٠٣", "0x0003"),
        *(".unfinished-000003", ".dropped-000003"),
    ):
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


MODEL = {"bytes": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
"""What a sound manifest says of the model."""


def of_two_ranks(**told: Any) -> str:
    """A manifest that is sound, but for what is told."""
    ranks = {f"rank_0000{rank}.pt": {"bytes": 0, "sha256": hashlib.sha256().hexdigest()} for rank in range(2)}
    return json.dumps({"world_size": 2, "num_envs": 4, "files": {"model.pt": MODEL} | ranks} | told)


def with_file(name: str, **told: Any) -> str:
    """A manifest that is sound, but for one file more."""
    return json.dumps({"files": {"model.pt": MODEL, name: MODEL | told}})


NONSENSE = {
    "a number": ("5", "cannot be read (TypeError)"),
    "no end of lists": ("[" * 100_000, "cannot be read (ValueError)"),
    "a number of 5000 digits": (f'{{"files": {"9" * 5000}}}', "cannot be read (ValueError)"),
    "files that are numbers": ('{"files": {"model.pt": 5}}', "cannot be read (TypeError)"),
    "a sum that is a number": (
        '{"files": {"model.pt": {"bytes": 4096, "sha256": 5}}}',
        "tells no size and sum of model.pt",
    ),
    "a size that is a word": (with_file("a.pt", bytes="4096"), "tells no size and sum of a.pt"),
    "a size below nothing": (with_file("a.pt", bytes=-1), "tells no size and sum of a.pt"),
    "a size that is true": (with_file("a.pt", bytes=True), "tells no size and sum of a.pt"),
    "an infinite size": (with_file("a.pt", bytes=float("inf")), "tells no size and sum of a.pt"),
    "a way out": (with_file("../../secret"), "names '../../secret', which is no file beside it"),
    "the directory above": (with_file(".."), "names '..', which is no file beside it"),
    "an absolute path": (with_file("/dev/zero"), "names '/dev/zero', which is no file beside it"),
    "no name": (with_file(""), "names '', which is no file beside it"),
    "a null character": (with_file("a\0b"), "names 'a\\x00b', which is no file beside it"),
    "what no stream can print": (with_file("\ud800"), "names '\\ud800', which is no file beside it"),
    "what clears a terminal": (with_file("\x1b[2J"), "names '\\x1b[2J', which is no file beside it"),
    "a long name": (with_file("a" * 5000), f"names '{'a' * 59}, which is no file beside it"),
    "ranks in words": (of_two_ranks(world_size="two"), "says that world_size is 'two'"),
    "half a rank": (of_two_ranks(world_size=1.5), "says that world_size is 1.5"),
    "a list of environments": (of_two_ranks(num_envs=[4]), "says that num_envs is list"),
    "no environments": (of_two_ranks(num_envs=-4), "says that num_envs is -4"),
    "a rank too few": (of_two_ranks(world_size=3), "does not name rank_00002.pt"),
    "many ranks too few": (of_two_ranks(world_size=10**15), "does not name rank_00002.pt"),
}
"""Manifests that are valid JSON or nearly so, and what is said of them."""


@pytest.mark.parametrize("kind", NONSENSE)
def test_a_manifest_of_nonsense_is_damage_to_all_that_read_it(
    kind: str, run_dir: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text, reason = NONSENSE[kind]
    make(run_dir, 1)
    newest = make(run_dir, 2)
    for name in ("a.pt", "rank_00000.pt", "rank_00001.pt"):
        (newest / name).touch()
    (newest / "manifest.json").write_text(text, encoding="utf-8")
    found, passed_over = newest_good(run_dir)
    assert found is not None
    assert found.iteration == 1
    assert passed_over == [f"Checkpoint {newest} is damaged and was passed over: its manifest {reason}."]
    assert Checkpoint(newest).score is None
    printed: list[str] = []
    for words in ((), ("--json",)):
        with pytest.raises(ShoalError, match=r"1 of 2\. `--resume` goes on from 000001\."):
            main.shoal(["runs", str(run_dir.path), *words])
        printed.append(capsys.readouterr().out)
    table, plain = printed
    assert f"corrupt: its manifest {reason}" in " ".join(table.split())
    assert json.loads(plain)["checkpoints"][1]["damage"] == f"its manifest {reason}"


def test_a_sound_manifest_of_two_ranks_is_none(run_dir: RunDir) -> None:
    path = make(run_dir, 1)
    for name in ("rank_00000.pt", "rank_00001.pt"):
        (path / name).touch()
    (path / "manifest.json").write_text(of_two_ranks(), encoding="utf-8")
    assert Checkpoint(path).damage() is None
    assert Checkpoint(path).world_size == 2


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(run_dir: RunDir) -> None:
    for iteration, name in ((1, "model.pt"), (2, "manifest.json")):
        path = make(run_dir, iteration)
        (path / name).unlink()
        os.mkfifo(path / name)
    found, (second, first) = newest_good(run_dir)
    assert found is None
    assert second.endswith("passed over: its manifest cannot be read (IsADirectoryError).")
    assert first.endswith("passed over: model.pt is missing.")
    assert Checkpoint(run_dir.checkpoint_dir(2)).manifest() == {}


@pytest.mark.parametrize(
    ("told", "score"),
    [(5, 5.0), (-0.5, -0.5), (True, None), ("5", None), ([5], None), (float("nan"), None)],
)
def test_a_score_is_any_finite_number(told: Any, score: float | None, run_dir: RunDir) -> None:
    scored(run_dir, {1: told})
    assert Checkpoint(run_dir.checkpoint_dir(1)).score == score
    (listed,) = verify(str(run_dir.path), "logs").checkpoints
    assert (listed.checkpoint.score, listed.damage) == (score, None)


@pytest.mark.parametrize("metric", [None, 5, "\x1b[2J"])
def test_a_score_without_a_metric_that_can_be_printed_is_none(metric: Any, run_dir: RunDir) -> None:
    # Older checkpoints, too: their score was the mean return of episodes of random starting ages.
    scored(run_dir, {1: 5.0}, metric=metric)
    (listed,) = verify(str(run_dir.path), "logs").checkpoints
    assert (listed.checkpoint.score, listed.damage) == (None, None)


def test_every_newer_damaged_checkpoint_is_reported(run_dir: RunDir) -> None:
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


def test_damage_to_an_older_checkpoint_is_not_reported(run_dir: RunDir) -> None:
    flip_a_bit(make(run_dir, 1))
    make(run_dir, 2)
    found, passed_over = newest_good(run_dir)
    assert found is not None
    assert found.iteration == 2
    assert passed_over == []


def test_without_a_valid_one_all_are_reported(run_dir: RunDir) -> None:
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


@pytest.mark.parametrize(("word", "trouble"), [("nowhere", "does not exist"), (".", r"would hold a model\.pt")])
def test_what_is_not_there_is_refused_with_what_to_pass(word: str, trouble: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=rf"{trouble}: pass a directory below <run>/checkpoints, a \.pt file, "
        r"'latest', 'best', 'best-of-runs' or 'shipped'\.",
    ):
        checkpoint_at(tmp_path / word)


# The best


def scored(
    run: RunDir,
    scores: dict[int, float | None],
    metric: str | None = "Train/mean_whole_reward",
    counted: dict[str, float] | None = None,
) -> None:
    """Write whole checkpoints with these scores."""
    told_of_all = {"metric": metric, "counted": counted}
    for iteration, score in scores.items():
        path = make(run, iteration)
        told = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        (path / "manifest.json").write_text(json.dumps(told | told_of_all | {"score": score}), encoding="utf-8")


def test_the_best_is_the_whole_one_of_the_newest_run_with_the_highest_score(tmp_path: Path) -> None:
    spec = resolve("Cartpole-Swingup")
    older, newer = (RunDir(tmp_path / spec.experiment / f"2026-01-0{day}_00-00-00") for day in (1, 2))
    scored(older, {1: 100.0})
    scored(newer, {1: None, 2: 3.0, 3: float("nan"), 4: 9.0, 5: 2.0})
    assert find_model(str(tmp_path), spec, "best").parent == newer.checkpoint_dir(4)
    flip_a_bit(newer.checkpoint_dir(4))
    assert find_model(str(tmp_path), spec, "best").parent == newer.checkpoint_dir(2)
    assert find_model(str(tmp_path), spec, "latest").parent == newer.checkpoint_dir(5)


def test_the_best_of_all_runs_is_whole_and_has_a_score_by_the_newest_runs_metric(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = resolve("Cartpole-Swingup")
    runs = [RunDir(tmp_path / spec.experiment / f"2026-01-0{day}_00-00-00") for day in (1, 2, 3)]
    scored(runs[0], {1: 7.0, 2: 8.0})
    scored(runs[1], {900: 99.0}, metric="Metrics/terrain_level")
    scored(runs[2], {1: 3.0, 2: None})
    assert find_model(str(tmp_path), spec, "best-of-runs").parent == runs[0].checkpoint_dir(2)
    assert caplog.messages == [
        f"Of 3 runs {runs[0].checkpoint_dir(2)} is taken, the best, whose Train/mean_whole_reward is 8.00."
    ]
    flip_a_bit(runs[0].checkpoint_dir(2))
    assert find_model(str(tmp_path), spec, "best-of-runs").parent == runs[0].checkpoint_dir(1)


def test_a_return_of_rewards_with_other_weights_makes_no_run_the_best(tmp_path: Path) -> None:
    spec = resolve("Cartpole-Swingup")
    runs = [RunDir(tmp_path / spec.experiment / f"2026-01-0{day}_00-00-00") for day in (1, 2, 3)]
    scored(runs[0], {1: 7.0}, counted={"env.upright_weight": 1.0})
    scored(runs[1], {1: 99.0}, counted={"env.upright_weight": 100.0})
    scored(runs[2], {1: 3.0}, counted={"env.upright_weight": 1.0})
    assert find_model(str(tmp_path), spec, "best-of-runs").parent == runs[0].checkpoint_dir(1)
    scored(runs[0], {2: 8.0}, counted=None)  # Of an older version, which did not tell.
    assert find_model(str(tmp_path), spec, "best-of-runs").parent == runs[0].checkpoint_dir(2)


def test_a_policy_is_that_of_the_run_whose_configuration_was_read(log_root: Path) -> None:
    spec = resolve("Cartpole-Swingup")
    runs = [RunDir(log_root / spec.experiment / f"2026-01-0{day}_00-00-00") for day in (1, 2)]
    scored(runs[0], {1: 7.0})
    scored(runs[1], {1: 3.0})
    words = (spec.name, "--checkpoint", "best-of-runs", "--log-root", str(log_root))
    configs = (parse("play", words)[0], parse("export", words)[0])
    scored(runs[1], {2: 9.0})  # A training goes on meanwhile.
    for config in configs:
        assert find_model(config.log_root, spec, config.checkpoint).parent == runs[0].checkpoint_dir(1)


def test_where_no_score_can_be_compared_the_best_of_all_runs_is_the_newest_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = resolve("Cartpole-Swingup")
    runs = [RunDir(tmp_path / spec.experiment / f"2026-01-0{day}_00-00-00") for day in (1, 2)]
    scored(runs[0], {900: 9.0})
    scored(runs[1], {1: None, 2: None}, metric=None)
    assert find_model(str(tmp_path), spec, "best-of-runs").parent == runs[1].checkpoint_dir(2)
    assert caplog.messages[-1].endswith("is taken, the newest, since no scores can be compared.")


def test_where_no_score_can_be_compared_the_best_is_the_last_whole_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = resolve("Cartpole-Swingup")
    run = RunDir(tmp_path / spec.experiment / "2026-01-01_00-00-00")
    scored(run, {1: 9.0, 2: 8.0}, metric="Train/mean_whole_reward")
    assert find_model(str(tmp_path), spec, "best").parent == run.checkpoint_dir(1)
    assert caplog.messages == []
    scored(run, {3: None, 4: None, 5: None}, metric=None)  # From here on with a curriculum, say.
    flip_a_bit(run.checkpoint_dir(5))
    assert find_model(str(tmp_path), spec, "best").parent == run.checkpoint_dir(4)
    assert caplog.messages == [f"No score of {run.path} can be compared: its best checkpoint is the last one."]
    assert verify(str(run.path), "logs").metric is None
    scored(run, {6: 2.0, 7: 1.0}, metric="Metrics/terrain_level")
    assert find_model(str(tmp_path), spec, "best").parent == run.checkpoint_dir(6)
    assert verify(str(run.path), "logs").metric == "Metrics/terrain_level"
    (run.checkpoint_dir(7) / "manifest.json").write_bytes(b"")
    assert find_model(str(tmp_path), spec, "best").parent == run.checkpoint_dir(6)


# The newest run


def test_a_newer_run_without_a_valid_checkpoint_is_reported_and_skipped(log_root: Path) -> None:
    spec = resolve("Cartpole-Swingup")
    older, newer, empty = (RunDir(log_root / spec.experiment / f"2026-01-0{day}_00-00-00") for day in (1, 2, 3))
    make(older, 1)
    flip_a_bit(make(newer, 1))
    empty.checkpoints_dir.mkdir(parents=True)
    plan = plan_of(log_root, spec.name, "--resume")
    assert plan.continued == older
    (told,) = (note for note in plan.notes if "damaged" in note)
    assert told.startswith(f"Checkpoint {newer.checkpoint_dir(1)} is damaged and was passed over: ")


@pytest.mark.parametrize(
    "words", [("--resume",), ("--checkpoint", "latest"), ("--checkpoint", "best"), ("--checkpoint", "best-of-runs")]
)
def test_when_no_run_has_a_valid_checkpoint_each_damage_is_reported(words: tuple[str, ...], log_root: Path) -> None:
    spec = resolve("Cartpole-Swingup")
    damaged = [RunDir(log_root / spec.experiment / f"2026-01-0{day}_00-00-00") for day in (1, 2)]
    for run in damaged:
        flip_a_bit(make(run, 1))
    with pytest.raises(UsageError) as refusal:
        plan_of(log_root, spec.name, *words)
    told = str(refusal.value)
    assert told.startswith(f"No run in {log_root / spec.experiment} has a whole checkpoint. Checkpoint ")
    assert all(f"Checkpoint {run.checkpoint_dir(1)} is damaged and was passed over: " in told for run in damaged)
    assert told.endswith(" Pass a path, or train from the beginning without this flag.")


def test_a_named_run_without_a_whole_checkpoint_is_refused_with_its_damage(log_root: Path) -> None:
    spec = resolve("Cartpole-Swingup")
    run = RunDir(log_root / spec.experiment / "2026-01-01_00-00-00")
    flip_a_bit(make(run, 1))
    with pytest.raises(UsageError, match=r"has no checkpoint to go on from\. Checkpoint .*000001 is damaged and was"):
        plan_of(log_root, spec.name, "--resume", run.name)
