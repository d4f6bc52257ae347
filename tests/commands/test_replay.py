"""The story of `shoal replay`: a training stops as an environment diverges, and the file it leaves shows why.

The training is the real one, through the functions of the command, and once as two workers of a process each.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from support import bouncing_task
from support.commands import SMALL, TRAIN, rows_of, run
from support.diverged_envs import RUNAWAY
from support.stories import Listener, carry_out
from support.videos import draws, frames_of

from shoal.cli import main
from shoal.commands.replay import _step_again, replay
from shoal.config import ReplayConfig
from shoal.errors import TrainingFailedError, UsageError
from shoal.plan.rundir import RunDir, list_runs
from shoal.seeds import derived_seed
from shoal.sim.nan.dump import read_dump, write_dump

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from support.commands import Ended

TASK = f"{bouncing_task.__file__}:BouncingTask"
WORDS = (TASK, "--env.on-nan", "stop", "--env.runaway", str(RUNAWAY), "--env.episode-length-s", "60")
WORDS += ("--agent.save-interval", "1", "--max-iterations", "20")
WORDS += ("--agent.actor.hidden-dims", "16", "16", "--agent.critic.hidden-dims", "16", "16")

SEED_OF_RANK_1 = derived_seed(42, 1)


def stopped(log_root: Path, *words: str) -> tuple[RunDir, str]:
    """A training that loses environment 1, and what it says."""
    with pytest.raises(TrainingFailedError) as caught:
        carry_out(log_root, *WORDS, *words)
    (run,) = list_runs(log_root / "BouncingTask")
    return run, str(caught.value)


@pytest.fixture(scope="module", params=["mujoco", pytest.param("mjwarp", marks=pytest.mark.soak)])
def training(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, str]:
    """One with each engine, in this process."""
    return stopped(tmp_path_factory.mktemp(request.param), "--env.engine", request.param)


def weights_of(run: RunDir) -> list[torch.Tensor]:
    """All that the run's checkpoints hold."""
    states = [torch.load(file, weights_only=True) for file in run.checkpoints_dir.glob("*/model.pt")]
    assert states
    return [tensor for state in states for part in ("actor", "critic") for tensor in tensors_in(state, part)]


def tensors_in(state: dict[str, object], part: str) -> list[torch.Tensor]:
    """The tensors of a checkpoint below the keys that begin with `part`."""
    held = [values for name, values in state.items() if name.startswith(part) and isinstance(values, dict)]
    return [tensor for values in held for tensor in values.values()]


def test_it_stops_before_the_weights_are_spoiled(training: tuple[RunDir, str]) -> None:
    run, stderr = training
    assert re.search(r"of environments 1 on rank 0 held NaN or infinity in iteration \d+, and no gradient step", stderr)
    weights = weights_of(run)
    assert len(weights) > 4
    assert all(bool(tensor.isfinite().all()) for tensor in weights)


def test_it_names_the_file_the_command_and_the_environment(training: tuple[RunDir, str]) -> None:
    run, stderr = training
    file = run.diverged_npz(0)
    assert file.is_file()
    step = read_dump(file).envs[0].step
    assert (
        f"`shoal replay {file}` shows how environment 1 of rank 0 diverged in step {step}; --resume goes on" in stderr
    )


def test_the_file_tells_where_it_comes_from(training: tuple[RunDir, str]) -> None:
    run, _ = training
    dump = read_dump(run.diverged_npz(0))
    about, (diverged,) = dump.info, dump.envs
    assert (about.task, about.rank, about.num_envs, about.diverged, about.seed) == (TASK, 0, 16, 1, 42)
    assert (about.decimation, diverged.env) == (4, 1)
    assert (about.iteration - 1) * 8 < diverged.step <= about.iteration * 8
    assert about.versions.keys() >= {"shoal", "python", "mujoco", "mujoco-warp", "warp-lang"}


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `shoal replay WORDS` prints."""
    capsys.readouterr()
    main.shoal(["replay", *words])
    return capsys.readouterr().out


def test_the_command_prints_the_last_steps_and_what_went_wrong(
    training: tuple[RunDir, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = training
    file = run.diverged_npz(0)
    dump = read_dump(file)
    step = dump.envs[0].step
    lines = printed(capsys, str(file), "--env", "1").splitlines()
    title = {"mujoco": "MuJoCo C", "mjwarp": "MuJoCo Warp"}[dump.info.engine]
    assert lines[0].startswith(
        f"{TASK}, simulated by {title}: environment 1 of rank 0, 1 of all, diverged in step {step},"
    )
    rows = [line.split() for line in lines if re.match(r" +\d+ ", line)]
    assert [row[0] for row in rows] == [str(number) for number in range(step - 9, step + 1)]
    assert rows[-1][-3:] == ["joint", "'rail'", "BADQACC"]
    assert re.fullmatch(
        r"Diverged in that step too: qacc of joint 'rail' is -?\d.*e\+\d+ after \d of its 4 physics steps\.", lines[-2]
    )
    true = "to the last bit." if dump.info.engine == "mujoco" else "within 0.001, relatively."
    assert lines[-1] == f"All {len(dump.envs[0].states) - 1} recorded states come out {true}"


def test_the_real_command_exits_with_zero_and_leaves_nothing(training: tuple[RunDir, str], tmp_path: Path) -> None:
    run, _ = training
    words = [sys.executable, "-m", "shoal", "replay", str(run.diverged_npz(0))]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


@draws
def test_its_video_has_one_physics_step_a_frame(training: tuple[RunDir, str], tmp_path: Path) -> None:
    run, _ = training
    video = tmp_path / "diverged.mp4"
    *_, last = replay(ReplayConfig(file=str(run.diverged_npz(0)), video_path=str(video)))
    frames, rate = frames_of(video)
    moved = _step_again(run.diverged_npz(0), read_dump(run.diverged_npz(0)).find(None)).positions
    assert (len(frames), rate) == (len(moved), 30)
    assert last == f"Video: {video}"


@draws
def test_what_has_not_moved_has_no_video(training: tuple[RunDir, str], tmp_path: Path) -> None:
    dump = read_dump(training[0].diverged_npz(0))
    (diverged,) = dump.envs
    spoilt = dataclasses.replace(diverged, states=np.full_like(diverged.states[:1], np.nan), begins=diverged.begins[:1])
    write_dump(dataclasses.replace(dump, envs=(spoilt,)), tmp_path / "x.diverged.npz")
    with pytest.raises(UsageError, match="Environment 1 diverged before anything moved"):
        list(replay(ReplayConfig(file=str(tmp_path / "x.diverged.npz"), video_path=str(tmp_path / "x.mp4"))))


class Obstructing(Listener):
    """Puts a directory where the file would go."""

    def __init__(self, log_root: Path) -> None:
        super().__init__()
        self.log_root = log_root

    def on_row(self, row: Mapping[str, float]) -> None:
        """Do so after each iteration."""
        super().on_row(row)
        (run,) = list_runs(self.log_root / "BouncingTask")
        (run.diverged_npz(0) / "in the way").mkdir(parents=True, exist_ok=True)


def test_a_file_that_cannot_be_written_costs_one_warning(log_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TrainingFailedError, match=r"of environments 1 .* from it\. Look at that task's dynamics"):
        carry_out(log_root, *WORDS, listener=Obstructing(log_root))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.match(r"What led to the diverged environments cannot be kept in .*rank_00000\.diverged\.npz \(", warning)
    (run,) = list_runs(log_root / "BouncingTask")
    assert {path.name for path in run.ranks_dir.iterdir()} == {"rank_00000.json", "rank_00000.diverged.npz"}


def test_by_default_a_training_bears_few_losses_and_leaves_no_file(log_root: Path) -> None:
    # One of 16 environments is more than --env.diverged-limit has by default, but no more than are borne of few.
    flags = ("--env.on-nan", "reset", "--max-iterations", "5", "--env.engine", "mujoco")
    run = carry_out(log_root, *WORDS, *flags).run
    assert max(row["Env/diverged"] for row in rows_of(run.path)) == 1
    assert list(run.ranks_dir.glob("*.npz")) == []


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Two workers, of which rank 1 loses an environment."""
    words: Sequence[str] = (*TRAIN, *WORDS, *SMALL, "--nproc-per-node", "2", "--env.runaway-seed", str(SEED_OF_RANK_1))
    return run(words, tmp_path_factory.mktemp("launch"))


@pytest.mark.spawn
@pytest.mark.soak
def test_of_two_workers_the_one_that_loses_it_leaves_the_file(launch: Ended) -> None:
    assert launch.code == 1, launch.stdout + launch.stderr
    here = RunDir(launch.run)
    assert sorted(path.name for path in here.ranks_dir.glob("*.npz")) == ["rank_00001.diverged.npz"]
    assert "of environments 1 on rank 1 held NaN or infinity" in launch.last_line
    assert f"`shoal replay {here.diverged_npz(1)}` shows how environment 1 of rank 1 diverged" in launch.last_line
    assert all(bool(tensor.isfinite().all()) for tensor in weights_of(here))
    assert (launch.left_processes, launch.left_files) == ([], [])


@pytest.mark.spawn
@pytest.mark.soak
def test_what_two_workers_left_is_replayed_to_the_last_bit(launch: Ended, capsys: pytest.CaptureFixture[str]) -> None:
    file = RunDir(launch.run).diverged_npz(1)
    dump = read_dump(file)
    diverged = dump.find(None)
    replayed = _step_again(file, diverged)
    assert (dump.info.rank, dump.info.seed) == (1, SEED_OF_RANK_1)
    assert replayed.fault is not None
    assert replayed.fault.step == diverged.step
    assert (replayed.differs_in, replayed.difference) == (None, 0.0)
    assert np.isfinite(diverged.states).all()
    assert "environment 1 of rank 1, 17 of all, diverged" in printed(capsys, str(file))
