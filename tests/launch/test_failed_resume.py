"""A resume that fails before all ranks have restored leaves the run as it was, in process and with two workers."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import arm_task
from support.commands import TRAIN, rows_of, run, start, wait_until
from support.equal_runs import assert_same, everything_in, told

from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.commands import Ended, Running

pytestmark = [pytest.mark.spawn, pytest.mark.slow]

TASK = """
import os, sys, threading
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
sys.path.insert(0, {tests!r})
import mujoco
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.terms import Action, Event, Obs
from support import arm_task

@dataclass(frozen=True, kw_only=True)
class MineConfig(TermsConfig):
    model_fields: ClassVar[tuple[str, ...]] = ("robot",)
    robot: str = ""

terms = arm_task.terms(torch=False)
policy = terms["observations"]["policy"]
{change}

class Mine(arm_task.Arm):
    config = task_config(
        MineConfig, physics_dt=0.005, decimation=2, episode_length_s=0.4,
        actions={{"targets": Action("joint_position", actuators=".*", scale=0.5)}},
        events={{"start": Event(arm_task.start_near, "reset", joints=".*", spread=0.5)}}, **terms
    )

    @classmethod
    def build_model(cls, config):
        return mujoco.MjModel.from_xml_path(config.robot)

    def allocate(self):
        started = Path(os.environ.get("SHOAL_TEST_STARTED", "none"))
        if started.is_dir() and self.num_envs == 8:  # In workers; the plan checks indices with fewer environments.
            (started / os.environ.get("RANK", "0")).write_text(str(os.getpid()), encoding="utf-8")
            while True:
                threading.Event().wait(0.1)  # A signal that comes just before signal.pause() would not end it.
        {fault}
        super().allocate()
"""
"""An arm whose model is a file, and that waits while it starts where it is asked to."""

FLAGS = ("--gpu-ids", "None", "--no-export", "--agent.num-steps-per-env", "8", "--num-envs", "8")
MORE = '"more": Obs(arm_task.speeds, joints=".*")'
RUNNING_FILES = {"ranks", "torchrunx", "lock"}
"""What a launch may write before all ranks have restored."""


def write_task(where: Path, *, change: str = "", fault: str = "pass") -> None:
    """Write the task's file."""
    tests = str(Path(arm_task.__file__).parents[1])
    (where / "task.py").write_text(TASK.format(tests=tests, change=change, fault=fault), encoding="utf-8")


def content(run_dir: Path) -> dict[str, bytes]:
    """Return all files of a run but those of a launch that is starting, and its directories."""
    found = {path.relative_to(run_dir): path for path in sorted(run_dir.rglob("*"))}
    kept = {name: path for name, path in found.items() if name.parts[0] not in RUNNING_FILES}
    return {str(name): path.read_bytes() if path.is_file() else b"" for name, path in kept.items()}


@dataclass(frozen=True)
class Trained:
    """A run that has lost its newest checkpoint in a crash, in which it also began the next one."""

    where: Path
    workers: str
    run: Path

    def words(self, run_dir: Path, *flags: str) -> tuple[str, ...]:
        """Return the words of a resume."""
        task = f"{self.where / 'task.py'}:Mine"
        return (*TRAIN, task, *FLAGS, "--nproc-per-node", self.workers, "--resume", str(run_dir), *flags)

    def resume(self, *flags: str) -> Ended:
        """Resume the run."""
        return run(self.words(self.run, "--max-iterations", "4", *flags), self.where)


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("one"), "1")


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("two"), "2")


@pytest.fixture
def trained(mode: str, request: pytest.FixtureRequest) -> Trained:
    """The run of a mode, which all tests of the module share."""
    return request.getfixturevalue(mode)


def train(where: Path, workers: str) -> Trained:
    """Train, and lose the newest checkpoint."""
    write_task(where)
    for name, text in (("arm.xml", arm_task.MODEL), ("other.xml", arm_task.MODEL.replace("0.03", "0.04"))):
        (where / name).write_text(text, encoding="utf-8")
    shutil.copy(where / "arm.xml", where / "same.xml")
    words = (*TRAIN, f"{where / 'task.py'}:Mine", *FLAGS, "--env.robot", str(where / "arm.xml"))
    ended = run((*words, "--nproc-per-node", workers, "--max-iterations", "3", "--save-interval", "2"), where)
    assert ended.code == 0, ended.stderr
    run_dir = RunDir(ended.run)
    shutil.rmtree(run_dir.checkpoint_dir(3))
    run_dir.unfinished_dir(4).mkdir()
    (run_dir.ranks_dir / "rank_00000.diverged.npz").write_bytes(b"what led to it")
    (run_dir.ranks_dir / "rank_00000.stacks.txt").write_bytes(b"where it hung")
    shutil.copytree(run_dir.path, where / "untouched")
    return Trained(where, workers, run_dir.path)


@dataclass(frozen=True)
class Failure:
    """A resume that fails."""

    code: int
    sentence: str
    flags: tuple[str, ...] = ()
    change: str = ""
    fault: str = "pass"
    prepare: Callable[[RunDir], None] | None = None


def edit_robot(run_dir: RunDir) -> None:
    """Change the run's own copy of its robot."""
    (run_dir.models_dir / "robot" / "model.xml").write_text("<mujoco/>", encoding="utf-8")


FAILURES = {
    "another network": Failure(
        2,
        "--agent.actor.hidden-dims 32 was asked for, but the networks of the run {run} were trained with "
        "--agent.actor.hidden-dims 256 256 256, and",
        ("--agent.actor.hidden-dims", "32"),
    ),
    "another robot": Failure(
        2,
        "--env.robot {where}/other.xml was asked for, but the run {run} is of {run}/models/robot/model.xml, from which "
        "{where}/other.xml differs: leave the flag out, or start a new run: train {where}/task.py:Mine --config "
        "{run}/params/train.yaml --checkpoint {run}/checkpoints/000002 --env.robot {where}/other.xml",
        ("--env.robot", "{where}/other.xml"),
    ),
    "an edited robot": Failure(
        2,
        "{run}/models/robot/model.xml is no longer as the checkpoint {run}/checkpoints/000002/model.pt was trained",
        prepare=edit_robot,
    ),
    "a new term": Failure(
        2,
        "000002/model.pt was trained with (policy/more is new): undo that, or train a new",
        change=f"policy |= {{{MORE}}}",
    ),
    "a missing term": Failure(
        2,
        "env.observations.policy.speeds is given, but Policy_Group has no such field. It has: tip. Undo what changed "
        "since, or start a new run from its weights: train {where}/task.py:Mine --checkpoint {run}",
        change="del policy['speeds']",
    ),
    "terms in another order": Failure(
        2,
        "(their order changed): undo that, or start a new run from its weights: train {where}/task.py:Mine --config ",
        change="terms['observations']['policy'] = dict(reversed(policy.items()))",
    ),
    "a task file that cannot be imported": Failure(2, "task.py", change="raise KeyError('oh')"),
    "an exception while it starts": Failure(2, "cannot be built, see", fault="raise KeyError('oh')"),
}


MODES = pytest.mark.parametrize("mode", [pytest.param("in_process", marks=pytest.mark.soak), "two_workers"])
CASES = [
    ("in_process", "another network"),
    ("in_process", "a new term"),
    ("in_process", "a missing term"),
    ("in_process", "an edited robot"),
    pytest.param("two_workers", "an exception while it starts", marks=pytest.mark.soak),
]
"""One for each that refuses: plan, worker, the task's configuration, files of the run, and workers beside others."""
RARE_CASES = [*(("in_process", name) for name in FAILURES), ("two_workers", "a new term")]


@pytest.mark.parametrize(
    ("mode", "name"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in RARE_CASES if case not in CASES)],
)
def test_a_resume_that_fails_leaves_the_run_as_it_was(name: str, trained: Trained) -> None:
    case, names = FAILURES[name], {"where": trained.where, "run": trained.run}
    before = content(trained.run)
    if case.prepare is not None:
        case.prepare(RunDir(trained.run))
    changed = content(trained.run)
    write_task(trained.where, change=case.change, fault=case.fault)
    try:
        ended = trained.resume(*(flag.format(**names) for flag in case.flags))
    finally:
        write_task(trained.where)
        after = content(trained.run)
        for file in changed.keys() & before.keys():
            if changed[file] != before[file]:
                (trained.run / file).write_bytes(before[file])
    assert ended.code == case.code, ended.stdout + ended.stderr
    assert case.sentence.format(**names) in ended.last_line
    assert "Traceback" not in ended.stderr
    assert after == changed


def starting(trained: Trained, tmp_path: Path) -> tuple[Running, int]:
    """Resume, and wait until a rank builds its environments, as one at a time does; return its process."""
    running = start(
        trained.words(trained.run, "--max-iterations", "4"), trained.where, {"SHOAL_TEST_STARTED": str(tmp_path)}
    )
    assert wait_until(lambda: any(file.read_bytes() for file in tmp_path.iterdir()), timeout=60)
    return running, next(int(file.read_bytes()) for file in tmp_path.iterdir())


@MODES
def test_ctrl_c_while_it_starts_leaves_the_run_as_it_was(trained: Trained, tmp_path: Path) -> None:
    before = content(trained.run)
    running, _ = starting(trained, tmp_path)
    running.signal_all(signal.SIGINT)
    ended = running.end()
    assert ended.code == 130, ended.stdout + ended.stderr
    assert content(trained.run) == before


@MODES
@pytest.mark.soak
def test_a_worker_that_is_killed_while_it_starts_leaves_the_run_as_it_was(trained: Trained, tmp_path: Path) -> None:
    before = content(trained.run)
    running, worker = starting(trained, tmp_path)
    os.kill(worker, signal.SIGKILL)
    ended = running.end()
    assert ended.code == (-signal.SIGKILL if trained.workers == "1" else 75), ended.stdout + ended.stderr
    assert content(trained.run) == before


@MODES
@pytest.mark.soak
def test_then_a_resume_goes_on_as_if_none_had_failed(trained: Trained) -> None:
    ranks = trained.run / "ranks"  # Failed launches have made room for their own.
    assert (ranks / "launch_1_rank_00000.diverged.npz").read_bytes() == b"what led to it"
    assert (ranks / "launch_1_rank_00000.stacks.txt").read_bytes() == b"where it hung"
    ended = trained.resume("--env.robot", str(trained.where / "same.xml"), "--env.rewards.reach.weight", "1.0")
    assert ended.code == 0, ended.stdout + ended.stderr
    untouched = trained.where / "untouched"
    straight = run(trained.words(untouched, "--max-iterations", "4"), trained.where)
    assert straight.code == 0, straight.stdout + straight.stderr
    assert told(trained.run) == told(untouched)
    assert [row["iteration"] for row in rows_of(trained.run)] == [1, 2, 3, 4]
    assert_same(everything_in(trained.run, 4), everything_in(untouched, 4))
    assert not RunDir(trained.run).unfinished_dir(4).exists()
    assert "[3/4]" in ended.stdout
    assert "[4/4]" in ended.stdout
