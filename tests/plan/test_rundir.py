"""The layout of a run's directory, names of new runs, and finding old ones."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchrunx.utils.log_handling import file_handlers

from shoal.config import LaunchConfig
from shoal.errors import UsageError
from shoal.plan.launch import Plan
from shoal.plan.nodes import NodePlan
from shoal.plan.rundir import (
    RunDir,
    experiment_dir,
    find_run,
    list_all_runs,
    list_runs,
    refuse_bad_name,
    run_names,
)

NOW = datetime(2026, 3, 9, 7, 5, 1, 999_999, tzinfo=UTC)
NAMES = st.text(st.characters(codec="utf-8"), max_size=220)


# Layout


def test_everything_lies_where_the_design_says() -> None:
    run = RunDir(Path("logs/Cartpole/2026-03-09_07-05-01"))
    relative = {
        "run.json": run.run_json,
        "params": run.params_dir,
        "params/env.yaml": run.env_yaml,
        "params/agent.yaml": run.agent_yaml,
        "params/train.yaml": run.train_yaml,
        "metrics.jsonl": run.metrics_jsonl,
        "checkpoints": run.checkpoints_dir,
        "checkpoints/000100": run.checkpoint_dir(100),
        "checkpoints/12345678": run.checkpoint_dir(12_345_678),
        "videos": run.videos_dir,
        "exports": run.exports_dir,
        "exports/policy.onnx": run.policy_onnx,
        "exports/best.onnx": run.best_onnx,
        "torchrunx": run.torchrunx_dir,
        "ranks": run.ranks_dir,
    }
    assert {name: run.path / name for name in relative} == relative
    assert run.name == "2026-03-09_07-05-01"


def test_looking_at_the_layout_makes_nothing(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    assert not run.checkpoint_dir(1).exists()
    assert list(tmp_path.iterdir()) == []


# Names


@pytest.mark.parametrize(
    ("run_name", "first"), [("", "2026-03-09_07-05-01"), ("big net", "2026-03-09_07-05-01_big net")]
)
def test_names_of_one_second_are_numbered_from_two(run_name: str, first: str) -> None:
    names = list(itertools.islice(run_names(NOW, run_name), 3))
    assert names == [first, f"{first}-2", f"{first}-3"]


@pytest.mark.parametrize("name", ["", "baseline", "seed-1", "lr=3e-4", "größer", "a.b", "x" * 200])
def test_a_plain_name_is_taken(name: str) -> None:
    refuse_bad_name("--run-name", name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a/b", "--run-name 'a/b' has a slash in it, and a name is no path"),
        ("..", "--run-name '..' begins with a dot, which hides the directory"),
        ("../x", "--run-name '../x' has a slash in it, and a name is no path"),
        ("a\\b", r"--run-name 'a\\b' has a slash in it, and a name is no path"),
        (".x", "--run-name '.x' begins with a dot, which hides the directory"),
        ("a\nb", r"--run-name 'a\nb' has a character in it that cannot be printed"),
        ("a\x00", r"--run-name 'a\x00' has a character in it that cannot be printed"),
        ("\udcff", r"--run-name '\udcff' has a character in it that cannot be printed"),
        (" x", "--run-name ' x' begins or ends with a space"),
        ("x ", "--run-name 'x ' begins or ends with a space"),
        ("x" * 201, f"--run-name '{'x' * 201}' is 201 bytes long, and 200 is the most"),
        ("ü" * 101, f"--run-name '{'ü' * 101}' is 202 bytes long, and 200 is the most"),
    ],
)
def test_a_name_that_no_directory_should_carry_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        refuse_bad_name("--run-name", name)
    assert str(refusal.value) == f"{sentence}: choose another name, such as 'baseline'."


def test_an_experiment_is_one_directory() -> None:
    with pytest.raises(UsageError) as refusal:
        experiment_dir("logs", "a/b")
    assert str(refusal.value) == (
        "The experiment's name 'a/b' has a slash in it, and a name is no path: choose another name, such as 'baseline'."
    )


def test_an_experiment_has_a_name() -> None:
    with pytest.raises(UsageError) as refusal:
        experiment_dir("logs", "")
    assert str(refusal.value) == "The experiment's name is empty: give it at least one letter."


def test_an_experiment_lies_below_the_log_root() -> None:
    assert experiment_dir("logs", "Cartpole") == experiment_dir(Path("logs"), "Cartpole") == Path("logs/Cartpole")


@given(name=NAMES)
def test_whatever_name_is_taken_makes_a_directory_that_is_listed(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        refuse_bad_name("--run-name", name)
    except UsageError:
        return
    names = list(itertools.islice(run_names(NOW, name), 2))
    experiment = tmp_path_factory.mktemp("experiment")
    for each in names:
        (experiment / each).mkdir()
    assert sorted(run.name for run in list_runs(experiment)) == sorted(names)


# Finding


def find(log_root: str | Path, word: str) -> RunDir:
    """Find a run of one experiment."""
    experiment = experiment_dir(log_root, "Cartpole")
    return find_run(experiment, list_runs(experiment), word)


def find_any(log_root: Path, word: str) -> RunDir:
    """Find a run of any experiment."""
    return find_run(log_root, list_all_runs(log_root), word)


def make_runs(experiment: Path, *names: str) -> None:
    """Make directories of runs that began and did nothing."""
    for name in names:
        (experiment / name).mkdir(parents=True)
        RunDir(experiment / name).run_json.touch()


def test_runs_are_listed_oldest_first_by_second_and_number(tmp_path: Path) -> None:
    in_order = [
        "2025-12-31_23-59-59_z",
        "2026-01-01_00-00-00",
        "2026-01-01_00-00-00_b",
        "2026-01-01_00-00-00-2",
        "2026-01-01_00-00-00_b-2",
        "2026-01-01_00-00-00-9",
        "2026-01-01_00-00-00-10",
        "2026-01-01_00-00-01_a",
    ]
    make_runs(tmp_path, *reversed(in_order))
    assert [run.name for run in list_runs(tmp_path)] == in_order


def test_what_is_no_run_is_passed_over(tmp_path: Path) -> None:
    make_runs(
        tmp_path,
        "wandb",
        ".hidden",
        "2026-01-01",
        "2026-13-01_00-00-00",
        "2026-01-01_00-00-00x",
        "2026-01-01_00-00-00-1",
        "2026-01-01_00-00-00-02",
    )
    (tmp_path / "2026-01-01_00-00-00").touch()
    (tmp_path / "2026-01-01_00-00-01").symlink_to(tmp_path / "gone")
    assert list_runs(tmp_path) == []


def test_an_experiment_without_a_directory_has_no_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "missing") == []


def test_an_experiment_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "Cartpole"
    file.touch()
    with pytest.raises(UsageError) as refusal:
        list_runs(file)
    assert str(refusal.value) == (
        f"{file} should hold the runs of an experiment, but cannot be read (Not a directory): "
        "pass another --log-root, or mend it."
    )


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "2026-01-01_00-00-00_big"
    run = RunDir(tmp_path / "Cartpole" / name)
    make_runs(tmp_path / "Cartpole", name)
    assert find(tmp_path, name) == run
    assert find(tmp_path / "elsewhere", str(run.path)) == run
    monkeypatch.chdir(run.path)
    assert find(tmp_path / "elsewhere", ".") == RunDir(Path())


def test_a_directory_with_checkpoints_is_a_run_even_without_its_record(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "copied from elsewhere")
    run.checkpoints_dir.mkdir(parents=True)
    assert find("logs", str(run.path)) == run


@pytest.mark.parametrize(
    ("word", "suggested"),
    [
        ("big", "2026-01-05_00-00-00_big"),
        ("BIG", "2026-01-05_00-00-00_big"),
        ("2026-01-02_00-00-00_smal", "2026-01-02_00-00-00_small"),
        ("2026-01-02_00-00-00_smlal", "2026-01-02_00-00-00_small"),
        ("logs/Cartpole/2026-01-02/", "2026-01-02_00-00-00_small"),
        ("qqq", None),
        ("~nobody-of-this-name/x", None),
        ("x" * 5000, None),
    ],
)
def test_a_missing_run_is_refused_with_near_and_new_names(tmp_path: Path, word: str, suggested: str | None) -> None:
    directory = tmp_path / "Cartpole"
    days = ("01_00-00-00_big", "02_00-00-00_small", "03_00-00-00", "04_00-00-00", "05_00-00-00_big")
    make_runs(directory, *(f"2026-01-{day}" for day in days))
    with pytest.raises(UsageError) as refusal:
        find(tmp_path, word)
    hint = f" Did you mean '{suggested}'?" if suggested else ""
    assert str(refusal.value) == (
        f"The run '{word}' does not exist.{hint} The newest in {directory}: "
        "2026-01-05_00-00-00_big, 2026-01-04_00-00-00, 2026-01-03_00-00-00. Pass one of them, or a path."
    )


def test_a_missing_run_of_an_experiment_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        find(tmp_path, "big")
    assert str(refusal.value) == (
        f"The run 'big' does not exist. There are no runs in {tmp_path / 'Cartpole'} yet: "
        "train first, or pass --log-root."
    )


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        find(tmp_path, str(tmp_path))
    assert str(refusal.value) == (
        f"{tmp_path} is no run: it has neither run.json nor checkpoints. "
        f"There are no runs in {tmp_path / 'Cartpole'} yet: train first, or pass --log-root."
    )


# In any experiment


def test_runs_of_all_experiments_are_listed_oldest_first(tmp_path: Path) -> None:
    make_runs(tmp_path / "B", "2026-01-01_00-00-00", "2026-01-03_00-00-00")
    make_runs(tmp_path / "A", "2026-01-02_00-00-00", "no run")
    (tmp_path / "notes.txt").touch()
    names = [str(run.path.relative_to(tmp_path)) for run in list_all_runs(tmp_path)]
    assert names == ["B/2026-01-01_00-00-00", "A/2026-01-02_00-00-00", "B/2026-01-03_00-00-00"]
    assert list_all_runs(tmp_path / "nowhere") == list_all_runs(tmp_path / "notes.txt") == []


def test_a_run_is_found_by_name_in_whatever_experiment_it_is(tmp_path: Path) -> None:
    name = "2026-01-01_00-00-00_big"
    make_runs(tmp_path / "Cartpole", name)
    make_runs(tmp_path / "Ant", "2026-01-02_00-00-00")
    run = RunDir(tmp_path / "Cartpole" / name)
    assert find_any(tmp_path, name) == run
    assert find_any(tmp_path / "nowhere", str(run.path)) == run
    with pytest.raises(UsageError) as refusal:
        find_any(tmp_path, "big")
    assert str(refusal.value) == (
        f"The run 'big' does not exist. Did you mean '{name}'? The newest in {tmp_path}: 2026-01-02_00-00-00, {name}. "
        "Pass one of them, or a path."
    )


def test_a_name_that_two_experiments_have_is_refused(tmp_path: Path) -> None:
    name = "2026-01-01_00-00-00"
    make_runs(tmp_path / "Cartpole", name)
    make_runs(tmp_path / "Ant", name)
    with pytest.raises(UsageError) as refusal:
        find_any(tmp_path, name)
    paths = f"{tmp_path / 'Ant' / name} or {tmp_path / 'Cartpole' / name}"
    assert str(refusal.value) == f"The run '{name}' is there more than once: pass {paths}."


# Rank files


def test_rank_files_are_named_as_torchrunx_names_them(tmp_path: Path) -> None:
    handlers = file_handlers(["localhost"], [2], log_dir=tmp_path)
    for handler in handlers:
        handler.close()
    (launch,) = tmp_path.iterdir()
    nodes = (NodePlan(devices=("cpu", "cpu")),)
    plan = Plan(config=LaunchConfig(task=None), launch_mode="spawned", nodes=nodes, world_size=2)
    assert {path.name for path in launch.iterdir()} == {
        "localhost.log",  # torchrunx's agent, which has no rank
        *(plan.log_file(rank).name for rank in range(2)),
    }
