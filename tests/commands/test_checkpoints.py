"""The story of verifying a run's checkpoints: a real run, some of whose checkpoints are damaged."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.stories import carry_out, plan_of

from shoal.cli import main
from shoal.cli.parse import parse
from shoal.commands.checkpoints import verify
from shoal.errors import ShoalError, UsageError
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from shoal.commands.checkpoints import VerifiedRun

TASK = "Cartpole-Swingup"
FLIPPED, TRUNCATED, MISSING, EMPTY = 1, 3, 5, 6
WRITTEN = "2026-01-02T03:04:05+00:00"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A training of five iterations, with a checkpoint after each."""
    return carry_out(tmp_path_factory.mktemp("logs"), TASK, "--max-iterations", "5", "--agent.save-interval", "1").run


@pytest.fixture
def run(trained: RunDir, log_root: Path) -> RunDir:
    """A copy to do damage to."""
    copy = log_root / trained.path.parent.name / trained.name
    return RunDir(Path(shutil.copytree(trained.path, copy)))


def set_entries(run: RunDir, iteration: int, **entries: Any) -> None:
    """Add to the manifest of a checkpoint; None takes away."""
    file = run.checkpoint_dir(iteration) / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8")) | entries
    kept = {key: value for key, value in manifest.items() if value is not None}
    file.write_text(json.dumps(kept), encoding="utf-8")


@pytest.fixture
def damaged(run: RunDir) -> RunDir:
    """The copy with four kinds of damage, and two whole checkpoints."""
    model = run.checkpoint_dir(FLIPPED) / "model.pt"
    data = bytearray(model.read_bytes())
    data[len(data) // 2] ^= 1
    model.write_bytes(data)
    model = run.checkpoint_dir(TRUNCATED) / "model.pt"
    model.write_bytes(model.read_bytes()[:1000])
    (run.checkpoint_dir(MISSING) / "model.pt").unlink()
    run.checkpoint_dir(EMPTY).mkdir()
    set_entries(run, 2, score=12.5)
    set_entries(run, 4, score=-3.0)
    set_entries(run, TRUNCATED, score=99.0)
    return run


def verified(run: RunDir) -> VerifiedRun:
    """Do what `shoal runs RUN` does."""
    config = parse("runs", [str(run.path)])[0]
    assert config.run is not None
    return verify(config.run, config.log_root)


def test_whole_checkpoints_are_found_whole(run: RunDir) -> None:
    found = verified(run)
    assert [each.checkpoint.iteration for each in found.checkpoints] == [1, 2, 3, 4, 5]
    assert [each.damage for each in found.checkpoints] == [None] * 5
    assert [each.checkpoint.world_size for each in found.checkpoints] == [1] * 5
    assert [each.is_exact for each in found.checkpoints] == [False, False, True, True, True]
    assert found.newest is found.checkpoints[-1]
    assert found.error is None
    sizes = [sum(file.stat().st_size for file in each.checkpoint.path.iterdir()) for each in found.checkpoints]
    assert [each.size for each in found.checkpoints] == sizes


def test_each_damage_is_told_and_passed_over(damaged: RunDir) -> None:
    found = verified(damaged)
    size = (damaged.checkpoint_dir(2) / "model.pt").stat().st_size
    assert {each.checkpoint.iteration: each.damage for each in found.checkpoints} == {
        FLIPPED: "model.pt does not have the SHA-256 sum that its manifest names",
        2: None,
        TRUNCATED: f"model.pt has 1000 bytes instead of {size}",
        4: None,
        MISSING: "model.pt is missing",
        EMPTY: "its manifest cannot be read (FileNotFoundError)",
    }
    assert found.newest is found.checkpoints[3]
    assert found.best is found.checkpoints[1]  # A damaged one with a higher score is of no use.
    assert str(found.error) == (
        f"Corrupt checkpoints in {damaged.checkpoints_dir}: 4 of 6. `--resume` goes on from 000004. "
        "Remove them, or copy them again from where they are valid."
    )
    assert isinstance(found.error, ShoalError)
    assert found.error.exit_code == 1


def test_resume_goes_on_from_the_checkpoint_that_is_named(damaged: RunDir) -> None:
    newest = verified(damaged).newest
    assert newest is not None
    words = (TASK, "--resume", damaged.name, "--max-iterations", "5")
    outcome = carry_out(damaged.path.parent.parent, *words)
    assert outcome.run == damaged
    rows = (damaged.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(rows[-1])["iteration"] == newest.checkpoint.iteration + 1 == 5


def test_a_run_goes_on_from_a_checkpoint_whose_rank_files_are_gone(
    run: RunDir, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    for iteration in (3, 4, 5):
        shutil.rmtree(run.checkpoint_dir(iteration))
    words = (TASK, "--resume", run.name, "--max-iterations", "3", "--num-envs", "8")
    plan = plan_of(run.path.parent.parent, *words)
    assert [note for note in plan.notes if "environments" in note] == []  # None of them go on.
    outcome = carry_out(run.path.parent.parent, *words)
    assert outcome.reports[0].iteration == 3
    assert "All environments begin new episodes: the checkpoint has no environments, which" in caplog.text
    assert json.loads(run.metrics_jsonl.read_text(encoding="utf-8").splitlines()[-1])["Train/total_steps"] > 0


def test_a_run_without_a_whole_checkpoint_has_nothing_to_go_on_from(run: RunDir) -> None:
    for path in run.checkpoints_dir.iterdir():
        (path / "manifest.json").write_bytes(b"")
    found = verified(run)
    assert (found.newest, found.best) == (None, None)
    assert "5 of 5." in str(found.error)
    assert "`--resume` has nothing to go on from" in str(found.error)


@pytest.mark.parametrize("time", [None, "yesterday", 5, "0001-01-01T00:00:00+23:59"])
def test_a_manifest_that_says_little_or_nonsense_is_made_up_for(time: Any, run: RunDir) -> None:
    set_entries(run, 5, time=time, world_size=None, score="high")
    os.utime(run.checkpoint_dir(5), (1e9, 1e9))
    last = verified(run).checkpoints[-1]
    assert last.written.timestamp() == 1e9
    assert (last.checkpoint.world_size, last.checkpoint.score, last.damage) == (None, None, None)


def test_the_manifest_tells_when_it_was_written(run: RunDir) -> None:
    set_entries(run, 5, time=WRITTEN, world_size=4, score=7)
    last = verified(run).checkpoints[-1]
    assert last.written == datetime.fromisoformat(WRITTEN)
    assert (last.checkpoint.world_size, last.checkpoint.score) == (4, 7.0)


# What is printed


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def test_the_table_has_a_row_for_each(damaged: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    set_entries(damaged, 4, time=WRITTEN, world_size=None)
    with pytest.raises(ShoalError, match=r"Corrupt checkpoints in .*: 4 of 6\."):
        main.shoal(["runs", str(damaged.path)])
    lines = capsys.readouterr().out.splitlines()
    rows = [" ".join(line.split()) for line in lines if line.strip()[:1].isdigit()]
    assert lines[0] == f"Run directory: {damaged.path}"
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    local = datetime.fromisoformat(WRITTEN).astimezone()
    assert rows[0].endswith("KiB 1 - - corrupt: model.pt does not have the SHA-256 sum that its manifest names")
    assert rows[1].endswith("KiB 1 12.50 learner only valid, best")
    assert rows[3].startswith(f"4 {local:%Y-%m-%d %H:%M:%S} ")
    assert rows[3].endswith("KiB - -3.00 exactly valid, newest")
    assert lines[-1] == "Best by Train/mean_whole_reward."
    assert rows[5].endswith("0 bytes - - - corrupt: its manifest cannot be read (FileNotFoundError)")


def shoal(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "shoal", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_json_is_all_that_is_on_standard_output(damaged: RunDir) -> None:
    done = shoal("runs", str(damaged.path), "--json")
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: Corrupt checkpoints in {damaged.checkpoints_dir}: 4 of 6.")
    printed = json.loads(done.stdout)
    assert (printed["run"], printed["newest"], printed["best"]) == (str(damaged.path), 4, 2)
    assert printed["metric"] == "Train/mean_whole_reward"
    assert [each["iteration"] for each in printed["checkpoints"]] == [1, 2, 3, 4, 5, 6]
    second = printed["checkpoints"][1]
    assert datetime.fromisoformat(second.pop("time")).tzinfo is not None
    assert second.pop("bytes") > 1000
    path = str(damaged.checkpoint_dir(2))
    assert second == {"iteration": 2, "path": path, "world_size": 1, "score": 12.5, "damage": None, "exact": False}


def test_a_good_run_exits_with_zero(trained: RunDir) -> None:
    done = shoal("runs", trained.name, "--log-root", str(trained.path.parent.parent))
    assert (done.returncode, done.stderr) == (0, "")
    assert "valid, newest" in done.stdout


# Which run


def test_latest_is_the_newest_run_with_a_checkpoint(run: RunDir, log_root: Path) -> None:
    (log_root / "Other" / "2999-01-01_00-00-00" / "checkpoints").mkdir(parents=True)
    assert verify("latest", str(log_root)).run == run
    later = RunDir(log_root / "Other" / "2998-01-01_00-00-00")
    shutil.copytree(run.path, later.path)
    assert verify("latest", str(log_root)).run == later


def test_a_run_without_checkpoints_is_refused(run: RunDir) -> None:
    shutil.rmtree(run.checkpoints_dir)
    with pytest.raises(UsageError) as refusal:
        verified(run)
    assert str(refusal.value) == (
        f"The run {run.path} has no checkpoints: pass another run, or train it until it has saved one."
    )
