"""A training that is interrupted and resumed is, bit for bit, the one that was never interrupted."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import arm_task
from support.commands import TRAIN, Ended, rows_of, run
from support.equal_runs import assert_same, everything_in, told
from support.hostile import vouch_for, write_hostile

from shoal.plan.checkpoints import newest_good
from shoal.plan.rundir import RunDir

pytestmark = [pytest.mark.spawn, pytest.mark.slow]

BASE = ("--gpu-ids", "None", "--no-export", "--logger", "none", "--agent.num-steps-per-env", "8")
ARM = arm_task.__file__
CARTPOLE = ("Cartpole-Swingup", "--num-envs", "16", "--env.episode-length-s", "0.3")
NETWORK = ("class-name", "RNNModel"), ("rnn-hidden-dim", "8"), ("hidden-dims", "8")
RND = "--agent.algorithm.rnd."
CASES = {
    "kernels": CARTPOLE,
    "mujoco": (
        *("Quadruped-Velocity-Rough", "--num-envs", "16", "--env.episode-length-s", "0.4", "--env.terrain-levels", "3"),
        *("--env.commands.twist.resampling-time", "0.1", "0.2"),
    ),
    # Its curricula go on in the middle of what is tried: at steps 12 and 30 of 48.
    "terms": (f"{ARM}:TorchArm", "--env.curricula.reach.steps", "0", "30"),
    "metric": (
        *(f"{ARM}:Arm", "--env.curricula.reach.steps", "--env.curricula.reach.when", "Train/mean_episode_length"),
        *("--env.curricula.reach.above", "0.5", "9"),
    ),
    "motion": ("Humanoid-Tracking-Flat", "--num-envs", "16", "--env.episode-length-s", "0.4"),
    "manipulation": ("Arm-Lift-Cube", "--num-envs", "16", "--env.episode-length-s", "0.4"),
    "recurrent": (
        *CARTPOLE,
        *(word for who in ("actor", "critic") for name, value in NETWORK for word in (f"--agent.{who}.{name}", value)),
        *("--agent.critic.rnn-type", "gru", "--agent.critic.rnn-num-layers", "2"),
        *("--agent.actor.obs-normalization", "--agent.critic.obs-normalization"),
    ),
    "curious": (
        *(*CARTPOLE, f"{RND}enabled", f"{RND}state-normalization", f"{RND}reward-normalization", f"{RND}weight", "5"),
        *(f"{RND}weight-schedule.mode", "linear", f"{RND}weight-schedule.initial-step", "10"),
        *(f"{RND}weight-schedule.final-step", "40", f"{RND}weight-schedule.final-value", "0.5"),
    ),
}
"""A task of kernels and one with MuJoCo, with episodes that end in the middle of all that is tried here; and with the
first of them a policy with memories of both kinds, and one that is rewarded for what is new, ever less of it."""


def trained(where: Path, case: str, *flags: str) -> Ended:
    """Train, and see that it went well."""
    ended = run((*TRAIN, *CASES[case], *BASE, *flags), where)
    assert ended.code == 0, ended.stderr
    return ended


# What a learner remembers is saved by each rank alike, and two workers share normalisers besides: they alone are tried.
@pytest.mark.parametrize(
    ("case", "workers"),
    [
        ("kernels", "2"),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in [
                ("kernels", "1"),
                ("mujoco", "1"),
                ("mujoco", "2"),
                ("terms", "2"),
                ("metric", "2"),
                ("motion", "2"),
                ("manipulation", "2"),
                ("recurrent", "2"),
                ("curious", "2"),
            ]
        ),
    ],
)
def test_a_resumed_training_is_the_one_that_never_stopped(case: str, workers: str, tmp_path: Path) -> None:
    flags = ("--nproc-per-node", workers)
    straight = trained(tmp_path / "straight", case, *flags, "--max-iterations", "6")
    trained(tmp_path / "resumed", case, *flags, "--max-iterations", "3")
    resumed = trained(tmp_path / "resumed", case, *flags, "--max-iterations", "6", "--resume")
    assert told(resumed.run) == told(straight.run)
    assert len(told(straight.run)) == 6
    assert_same(everything_in(straight.run, 6), everything_in(resumed.run, 6))
    ranks = [name for name in everything_in(straight.run, 6) if name.endswith("/rows/task/rng")]
    assert len(ranks) == int(workers)


def random_states_in(ended: Ended, iteration: int) -> torch.Tensor:
    """The random states of all environments of a checkpoint, rank by rank."""
    files = sorted((ended.run / "checkpoints" / f"{iteration:06}").glob("rank_*.pt"))
    return torch.cat([torch.load(file, weights_only=True)["rows"]["task/rng"] for file in files])


@pytest.mark.soak
def test_a_training_goes_on_with_other_workers_and_says_what_that_changes(tmp_path: Path) -> None:
    task = "Cartpole-Swingup"
    flags = ("--num-envs-total", "24", "--max-iterations")
    base = (*TRAIN, task, *BASE, "--env.episode-length-s", "0.3")
    first = run((*base, *flags, "2", "--nproc-per-node", "2"), tmp_path)
    assert first.code == 0, first.stderr
    second = run((*base, *flags, "3", "--nproc-per-node", "1", "--resume"), tmp_path)
    assert second.code == 0, second.stderr
    said = (
        "The checkpoint is of 2 workers with 12 environments each, and this is 1 worker with 24 environments: "
        "24 environments in all, all of them go on; 192 samples an iteration, 192 before; other random actions."
    )
    assert said in " ".join((second.stdout + second.stderr).split())
    assert [row["iteration"] for row in second.rows] == [1, 2, 3]
    assert second.rows[-1]["Train/total_steps"] == 3 * 24 * 8
    assert len(random_states_in(second, 3)) == 24


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.unlink(), "rank_00001.pt is missing"),
        (flip, "rank_00001.pt does not have the SHA-256 sum"),
    ],
    ids=["missing", "flipped"],
)
def test_a_damaged_part_of_a_rank_sends_a_resume_to_the_checkpoint_before(
    damage: Any, why: str, two_checkpoints: Path
) -> None:
    """The whole story is `tests/plan`'s; here it is that ranks' files count."""
    run_dir = RunDir(two_checkpoints)
    damage(run_dir.checkpoint_dir(2) / "rank_00001.pt")
    newest, passed_over = newest_good(run_dir)
    assert newest is not None
    assert newest.iteration == 1
    assert re.search(f"000002 is damaged and was passed over: {why}", passed_over[0])


def resumed(run_dir: Path, *flags: str) -> Ended:
    """Go on with a run of two workers."""
    words = (*TRAIN, *CASES["kernels"], *BASE, "--nproc-per-node", "2", "--max-iterations", "3", *flags)
    return run((*words, "--resume", str(run_dir)), run_dir.parent)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["model.pt", "rank_00001.pt"])
def test_code_in_a_checkpoint_that_its_manifest_vouches_for_is_not_run(name: str, two_checkpoints: Path) -> None:
    file = RunDir(two_checkpoints).checkpoint_dir(2) / name
    marker = write_hostile(file, torch.load(file, weights_only=True))
    vouch_for(file)
    ended = resumed(two_checkpoints)
    assert ended.code == 2, ended.stdout + ended.stderr
    assert re.search(rf"{name} cannot be loaded as plain tensors \(UnpicklingError\)", ended.last_line)
    assert "Traceback" not in ended.stdout + ended.stderr
    assert not marker.exists()
    assert (ended.left_processes, ended.left_files) == ([], [])


def test_a_resume_names_what_it_passes_over_and_never_starts_anew(two_checkpoints: Path) -> None:
    run_dir = RunDir(two_checkpoints)
    (run_dir.checkpoint_dir(2) / "manifest.json").write_text('{"files": {"../../run.json": {}}}', encoding="utf-8")
    flip(run_dir.checkpoint_dir(1) / "rank_00001.pt")
    (run_dir.checkpoints_dir / "00012x").mkdir()
    run_dir.checkpoint_dir(9).touch()
    ended = resumed(two_checkpoints)
    assert ended.code == 2, ended.stdout + ended.stderr
    assert f"The run {two_checkpoints} has no checkpoint to go on from. " in ended.last_line
    for iteration in (1, 2):
        assert f"Checkpoint {run_dir.checkpoint_dir(iteration)} is damaged and was passed over: " in ended.last_line
    flip(run_dir.checkpoint_dir(1) / "rank_00001.pt")
    ended = resumed(two_checkpoints)
    assert ended.code == 0, ended.stdout + ended.stderr
    said = " ".join((ended.stdout + ended.stderr).split())
    assert f"Checkpoint {run_dir.checkpoint_dir(2)} is damaged and was passed over: its manifest cannot be " in said
    assert [row["iteration"] for row in rows_of(two_checkpoints)] == [1, 2, 3]


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two workers with two checkpoints."""
    where = tmp_path_factory.mktemp("two")
    flags = ("--nproc-per-node", "2", "--max-iterations", "2", "--agent.save-interval", "1")
    return trained(where, "kernels", *flags).run


@pytest.fixture
def two_checkpoints(trained_once: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(trained_once, tmp_path / "run"))
