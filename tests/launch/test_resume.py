"""Runs that go on, runs that start from another's weights, and runs that are repeated; in the test's own process."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
import yaml
from support.commands import rows_of
from support.stories import carry_out, plan_of

from shoal.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.rundir import RunDir

TASK = "Cartpole-Swingup"
# An impossible target makes the adaptive schedule lower the learning rate in each iteration, so that it tells the time.
FALLING = ("--agent.algorithm.desired-kl", "1e-9", "--agent.algorithm.num-learning-epochs", "1")
FALLING += ("--agent.algorithm.num-mini-batches", "2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run of four iterations, with a checkpoint of every second."""
    log_root = tmp_path_factory.mktemp("trained")
    return carry_out(log_root, TASK, "--max-iterations", "4", "--agent.save-interval", "2", *FALLING).run


@pytest.fixture
def log_root(trained: RunDir, tmp_path: Path) -> Path:
    """A log root with a copy of that run in it."""
    shutil.copytree(trained.path.parents[1], tmp_path / "logs")
    return tmp_path / "logs"


@pytest.fixture
def run(log_root: Path) -> Path:
    """The copy of the run."""
    (run,) = log_root.glob("*/*")
    return run


def damage(checkpoint: Path) -> None:
    """Cut the model in half, as a full disk or a broken copy does."""
    model = checkpoint / "model.pt"
    model.write_bytes(model.read_bytes()[: model.stat().st_size // 2])


def test_a_run_goes_on_in_its_own_directory(log_root: Path, run: Path) -> None:
    outcome = carry_out(log_root, TASK, "--resume", "--max-iterations", "6")
    assert outcome.run.path.samefile(run)
    assert list(log_root.glob("*/*")) == [run]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000002", "000004", "000006"]


def test_iterations_and_totals_go_on_without_a_gap_or_a_repetition(log_root: Path, run: Path) -> None:
    carry_out(log_root, TASK, "--resume", "--max-iterations", "6")
    rows = rows_of(run)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["Train/total_steps"] for row in rows] == [128 * count for count in range(1, 7)]
    times = [row["Train/total_time"] for row in rows]
    assert times == sorted(times)
    assert all(row["max_iterations"] == 6 for row in rows[4:])


def test_the_learning_rate_goes_on(log_root: Path, run: Path) -> None:
    carry_out(log_root, TASK, "--resume", "--max-iterations", "6")
    rates = [row["Loss/learning_rate"] for row in rows_of(run)]
    assert rates == sorted(set(rates), reverse=True)
    assert len(rates) == 6


def test_a_run_goes_on_with_the_flags_that_it_was_started_with(log_root: Path) -> None:
    config = plan_of(log_root, TASK, "--resume", "--max-iterations", "6").config
    assert config.agent.algorithm.desired_kl == 1e-9
    assert config.agent.save_interval == 2


def test_the_record_tells_of_both_launches(log_root: Path, run: Path) -> None:
    carry_out(log_root, TASK, "--resume", "--max-iterations", "6")
    launches = json.loads((run / "run.json").read_text(encoding="utf-8"))["launches"]
    assert [launch["plan"]["start_iteration"] for launch in launches] == [0, 4]
    assert [launch["ended"]["exit_code"] for launch in launches] == [0, 0]
    assert launches[0]["ended"]["digests"] != launches[1]["ended"]["digests"]


def test_iterations_after_the_checkpoint_are_done_again_and_told_once(log_root: Path, run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "000004")
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"iteration": 5.0, "Loss/va')  # killed in the middle of a line
    carry_out(log_root, TASK, "--resume")
    rows = rows_of(run)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert [row["Train/total_steps"] for row in rows] == [128, 256, 384, 512]


def test_a_damaged_newest_checkpoint_is_named_and_passed_over(log_root: Path, run: Path) -> None:
    damage(run / "checkpoints" / "000004")
    plan = plan_of(log_root, TASK, "--resume")
    assert plan.start_iteration == 2
    assert any(f"{run / 'checkpoints' / '000004'} is damaged and was passed over" in note for note in plan.notes)
    carry_out(log_root, TASK, "--resume")
    assert [row["iteration"] for row in rows_of(run)] == [1, 2, 3, 4]


@pytest.mark.parametrize("how", ["name", "path"])
def test_a_run_is_resumed_by_its_name_or_its_path(log_root: Path, run: Path, how: str) -> None:
    newer = run.with_name("2999-01-01_00-00-00")
    shutil.copytree(run, newer)
    assert plan_of(log_root, TASK, "--resume", "--max-iterations", "6").continued.path == newer  # pyright: ignore[reportOptionalMemberAccess]
    word = run.name if how == "name" else str(run)
    plan = plan_of(log_root, TASK, "--max-iterations", "6", "--resume", word)
    assert plan.continued is not None
    assert plan.continued.path.samefile(run)


def test_a_run_without_a_good_checkpoint_is_passed_over_by_a_plain_resume(log_root: Path, run: Path) -> None:
    newer = run.with_name("2999-01-01_00-00-00")
    shutil.copytree(run, newer)
    for checkpoint in (newer / "checkpoints").iterdir():
        damage(checkpoint)
    plan = plan_of(log_root, TASK, "--resume", "--max-iterations", "6")
    assert plan.continued is not None
    assert plan.continued.path == run


def test_a_finished_run_is_refused(log_root: Path) -> None:
    with pytest.raises(UsageError, match=r"is finished: 4 of 4 iterations done. Pass --max-iterations 8"):
        plan_of(log_root, TASK, "--resume")


def test_a_run_without_any_good_checkpoint_is_refused(log_root: Path, run: Path) -> None:
    for checkpoint in (run / "checkpoints").iterdir():
        damage(checkpoint)
    with pytest.raises(UsageError, match="There is no run with a checkpoint"):
        plan_of(log_root, TASK, "--resume")
    with pytest.raises(UsageError, match="has no checkpoint to go on from"):
        plan_of(log_root, TASK, "--resume", run.name)


def test_a_file_that_no_longer_fits_the_code_is_named(log_root: Path, run: Path) -> None:
    file = run / "params" / "train.yaml"
    told = yaml.safe_load(file.read_text(encoding="utf-8"))
    told["env"]["gravitas"] = 9.81
    file.write_text(yaml.safe_dump(told), encoding="utf-8")
    with pytest.raises(UsageError, match=r"In .*train\.yaml: env\.gravitas is given.* Did you mean 'gravity'\?"):
        plan_of(log_root, TASK, "--resume")


@pytest.mark.parametrize("which", ["latest", "directory", "file"])
def test_a_checkpoint_starts_a_new_run_from_its_weights(log_root: Path, run: Path, which: str) -> None:
    directory = run / "checkpoints" / "000004"
    words = {"latest": "latest", "directory": str(directory), "file": str(directory / "model.pt")}
    outcome = carry_out(log_root, TASK, "--max-iterations", "1", "--checkpoint", words[which])
    assert not outcome.run.path.samefile(run)
    (row,) = rows_of(outcome.run.path)
    assert (row["iteration"], row["Train/total_steps"]) == (1, 128)


def test_the_weights_are_those_of_the_checkpoint(log_root: Path, run: Path) -> None:
    # At a learning rate of nothing the new run ends with the weights that it began with.
    still = ("--agent.algorithm.schedule", "fixed", "--agent.algorithm.learning-rate", "1e-30")
    outcome = carry_out(log_root, TASK, "--max-iterations", "1", "--checkpoint", "latest", *still)
    old, new = (
        torch.load(model, weights_only=True)["actor_state_dict"]
        for model in (run / "checkpoints/000004/model.pt", outcome.run.path / "checkpoints/000001/model.pt")
    )
    layers = [name for name in old if "mlp" in name]
    assert layers
    assert all(torch.equal(old[name], new[name]) for name in layers)


def test_a_saved_configuration_repeats_its_run(trained: RunDir, tmp_path: Path) -> None:
    first = json.loads(trained.run_json.read_text(encoding="utf-8"))["launches"][0]["ended"]["digests"]["0"]
    again = carry_out(tmp_path, "--config", str(trained.train_yaml))
    assert again.reports[0].digest == first
    assert [row["Loss/value"] for row in rows_of(again.run.path)] == [
        row["Loss/value"] for row in rows_of(trained.path)
    ]


def test_flags_override_a_saved_configuration(trained: RunDir, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "--config", str(trained.train_yaml), "--seed", "7")
    assert plan.config.seed == 7
    assert plan.config.agent.save_interval == 2
    assert plan.config.task == TASK
