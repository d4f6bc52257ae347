"""Ranks killed where little is left to tell of them: in start-up, and in the middle of a checkpoint."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
import torch
from support.commands import FAULTY, SMALL, TRAIN, run

from shoal.plan.checkpoints import newest_good
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from pathlib import Path

    from support.commands import Ended

pytestmark = pytest.mark.spawn

SPAWNED = ("--nproc-per-node", "2")


@pytest.fixture(scope="module")
def saving(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A training whose rank 1 straggles, and whose rank 0 is killed while it writes its fourth checkpoint."""
    task, flags = f"{FAULTY}:StragglesAndDiesSaving", ("--agent.save-interval", "1")
    where = tmp_path_factory.mktemp("saving")
    return run((*TRAIN, task, *SMALL, *SPAWNED, *flags), where, {"SHOAL_TEST_FAULTY_RANK": "0"})


@pytest.mark.soak
def test_a_rank_killed_in_start_up_is_named_with_its_phase(tmp_path: Path) -> None:
    ended = run((*TRAIN, f"{FAULTY}:DiesInStartup", *SMALL, *SPAWNED), tmp_path)
    (log,) = ended.run.glob("torchrunx/*/localhost[[]1[]].log")
    assert ended.code == 75, ended.stdout + ended.stderr
    assert "Error: Lost rank 1 on " in ended.last_line
    assert " in compile: killed by SIGKILL (" in ended.last_line
    assert ended.last_line.endswith(" It has no checkpoint yet: start it again.")
    assert log.read_text(encoding="utf-8").endswith("dying\n")
    assert time.time() - log.stat().st_mtime < 10
    assert (ended.left_processes, ended.left_files) == ([], [])


def test_a_rank_killed_while_it_saves_is_named_with_what_it_did_beside(saving: Ended) -> None:
    assert saving.code == 75, saving.stdout + saving.stderr
    assert "Error: Lost rank 0 on " in saving.last_line
    # It is written beside the training, which may have come to the next iteration.
    told = r" in \w+ \(iteration [45]\) while checkpoint 000004 was being written: killed by SIGKILL \("
    assert re.search(told, saving.last_line)
    assert saving.last_line.endswith(" Pass --resume to go on from iteration 3.")
    assert f"Error: {saving.record['ended']['last_line']}" == saving.last_line
    assert (saving.left_processes, saving.left_files) == ([], [])


def test_the_checkpoint_before_is_whole_and_loads(saving: Ended) -> None:
    newest, passed_over = newest_good(RunDir(saving.run))
    assert newest is not None
    assert (newest.iteration, passed_over) == (3, [])
    assert torch.load(newest.model, weights_only=True)["iter"] == 2  # rsl_rl counts from 0.
    assert (saving.run / "checkpoints" / ".unfinished-000004").exists()


def test_a_straggler_is_told_once_within_two_iterations_with_the_times_of_all_and_not_killed(saving: Ended) -> None:
    # It was slow from the second iteration on, which the third made certain.
    (warning,) = (line for line in saving.stdout.splitlines() if "straggled" in line)
    assert "Rank 1 straggled for 2 iterations, " in warning
    assert "The last rollout took: rank 0 " in warning
    assert [row["iteration"] for row in saving.rows][:4] == [1, 2, 3, 4]
