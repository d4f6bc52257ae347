"""A rank killed before each single thing that it does to the disk while it writes a checkpoint.

`support.crash_points` kills; here is what each crash has left. The run had the whole checkpoints 1 and 2 and a damaged
3, which is written again by two ranks, and one checkpoint is kept.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from support.crash_points import BEFORE, NEW, OLDEST, snapshot, sweep
from support.ranks import run_on_ranks
from support.stories import plan_of

from shoal.commands.checkpoints import verify
from shoal.learn.checkpoints import write_snapshot
from shoal.learn.run_json import write_launch
from shoal.plan.checkpoints import list_checkpoints, newest_good
from shoal.plan.rundir import RunDir
from shoal.run_record import make_run_dir, record_launch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.spawn

TASK = "Cartpole-Swingup"
APPEARS = "rename .unfinished-000003"
"""The step with which the checkpoint is there."""


@dataclass(frozen=True)
class Crashes:
    """What was left of a rank that was killed after each number of steps."""

    where: Path
    trail: list[str]

    def __iter__(self) -> Iterator[tuple[int, RunDir]]:
        """Yield how many steps were done, and the run."""
        return ((done, self.run(str(done))) for done in range(len(self.trail)))

    def run(self, name: str) -> RunDir:
        """The run that one crash has left."""
        return RunDir(self.where / name / TASK / "2026-01-01_00-00-00")

    def newest(self, done: int) -> int:
        """Which checkpoint must be the newest whole one."""
        return NEW if APPEARS in self.trail[:done] else BEFORE

    def error_of(self, done: int) -> str:
        """The error of the first rank, when it was not killed itself."""
        return (self.where / f"{done}.error").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Crashes:
    """Rank 0 was killed, which waits for rank 1, lets the checkpoint appear and drops old ones."""
    where = tmp_path_factory.mktemp("first")
    return Crashes(where, *run_on_ranks(1, sweep, str(where), 0))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Crashes:
    """Rank 1 was killed, which rank 0 waits for in vain."""
    where = tmp_path_factory.mktemp("second")
    return Crashes(where, *run_on_ranks(1, sweep, str(where), 1))


def phases(trail: list[str]) -> list[str]:
    """The steps, with those that empty a directory merged into one: their order is the file system's."""
    merged = ["empty it" if step.startswith("remove") and not step.endswith(".sum") else step for step in trail]
    return [step for step, _ in itertools.groupby(merged)]


def test_every_phase_of_the_write_was_struck(first: Crashes, second: Crashes) -> None:
    assert phases(first.trail) == [
        "mkdir .unfinished-000003",
        *("open model.pt", "half of model.pt", "flush model.pt"),
        *("open rank_00000.pt", "half of rank_00000.pt", "flush rank_00000.pt"),
        "remove rank_00001.sum",  # It has waited for this sum.
        *("open manifest.json", "half of manifest.json", "flush manifest.json"),
        "flush .unfinished-000003",
        *("empty it", "rmdir 000003"),  # The damaged one.
        *(APPEARS, "flush checkpoints"),
        *("rename 000001", "empty it", "rmdir .dropped-000001"),
        *("rename 000002", "empty it", "rmdir .dropped-000002"),
    ]
    assert [re.sub(r"\.[0-9]+$", ".<pid>", step) for step in second.trail] == [
        *("open rank_00001.pt", "half of rank_00001.pt", "flush rank_00001.pt"),
        *("remove rank_00001.<pid>", "open rank_00001.<pid>", "half of rank_00001.<pid>", "rename rank_00001.<pid>"),
    ]
    assert [each.name for each in first.run("whole").checkpoints_dir.iterdir()] == ["000003"]
    assert [each.name for each in second.run("whole").checkpoints_dir.iterdir()] == ["000003"]


def test_the_newest_whole_checkpoint_is_the_one_before_until_the_new_one_appears(first: Crashes) -> None:
    for done, run in first:
        found, passed_over = newest_good(run)
        assert found is not None, done
        assert found.iteration == first.newest(done), done
        assert len(passed_over) == (NEW in {each.iteration for each in list_checkpoints(run)} and found.iteration < NEW)
        listed = verify(str(run.path), "logs").newest
        assert listed is not None
        assert listed.checkpoint == found


def test_nothing_but_whole_checkpoints_and_the_damaged_one_has_a_final_name(first: Crashes) -> None:
    for done, run in first:
        whole = {each.iteration for each in list_checkpoints(run) if each.damage() is None}
        damaged = {each.iteration for each in list_checkpoints(run)} - whole
        assert damaged <= ({NEW} if first.newest(done) == BEFORE else set()), done
        hidden = [OLDEST] * ("rename 000001" in first.trail[:done]) + [BEFORE] * ("rename 000002" in first.trail[:done])
        expected = {OLDEST, BEFORE, NEW} - set(hidden) if first.newest(done) == NEW else {OLDEST, BEFORE}
        assert whole == expected, done


def test_a_resume_goes_on_from_it_and_its_launch_sweeps_what_was_left(first: Crashes) -> None:
    for done, run in first:
        log_root = run.path.parent.parent
        make_run_dir(plan_of(log_root, TASK))  # A newer run without a checkpoint, which is passed over.
        plan = plan_of(log_root, TASK, "--resume")
        assert plan.continued == run, done
        assert plan.start_iteration == first.newest(done), done
        write_launch(run, plan.config, record_launch(run, plan))
        assert [name for name in (path.name for path in run.checkpoints_dir.iterdir()) if not name.isdigit()] == []
        run.unfinished_dir(NEW + 1).mkdir()
        for rank in (1, 0):
            write_snapshot(run, snapshot(NEW + 1, rank))
        found, _ = newest_good(run)
        assert found is not None
        assert found.iteration == NEW + 1


def test_when_another_rank_was_killed_the_first_gives_up_and_leaves_nothing(second: Crashes) -> None:
    for done, run in second:
        final = run.checkpoint_dir(NEW)
        assert second.error_of(done) == (
            f"TrainingFailedError: The checkpoint {final} was not finished: rank 1 could not write its part, or not "
            "within 0 s. Pass --resume to go on from the one before."
        )
        assert sorted(path.name for path in run.checkpoints_dir.iterdir()) == ["000001", "000002", "000003"]
        found, (passed_over,) = newest_good(run)
        assert found is not None
        assert found.iteration == BEFORE
        assert passed_over.startswith(f"Checkpoint {final} is damaged and was passed over: model.pt has 0 bytes")
