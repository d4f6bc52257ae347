"""The ledger: parts are run once, by whoever is free, and what a killed process has written stays."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.episode import EPISODE

from shoal.errors import UsageError
from shoal.files import UnsafePathError, try_lock
from shoal.jobs.ledger import (
    Claim,
    Ledger,
    forget_failures,
    prepare,
    read_failures,
    record_loss,
    seconds_of,
    state_of,
)
from shoal.plan.job import Job, JobFiles
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from pathlib import Path

JOB = Job(name="job", task="Cartpole-Swingup", policy="zero", num_envs=4, num_episodes=10)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    RunDir(tmp_path).ranks_dir.mkdir()
    prepare(tmp_path, [JOB, replace(JOB, name="other")])
    return tmp_path


def ledger(out: Path, rank: int = 0, *jobs: Job) -> Ledger:
    return Ledger(out=out, jobs=jobs or (JOB,), rank=rank, world_size=2)


def write(claim: Claim, *indices: int) -> None:
    for index in indices or range(claim.part.first, claim.part.first + claim.part.count):
        claim.write(EPISODE | {"index": index})


def indices_in(out: Path, job: Job = JOB) -> list[int]:
    lines = JobFiles(out / job.name).episodes.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["index"] for line in lines]


def take(queue: Ledger) -> Claim:
    claim = queue.claim()
    assert claim is not None
    return claim


def test_parts_have_the_size_of_the_environments_and_span_no_build() -> None:
    assert [(each.first, each.count) for each in JOB.parts()] == [(0, 4), (4, 4), (8, 2)]
    rebuilt = replace(JOB, rebuilds=3, first_episode=100)
    assert [(each.first, each.count, each.build) for each in rebuilt.parts()] == [
        *((100, 3, 0), (103, 3, 1), (106, 4, 2)),
    ]
    steps = replace(JOB, num_episodes=None, num_steps=50, rebuilds=2)
    assert [(each.first, each.count, each.build) for each in steps.parts()] == [(0, 4, 0), (4, 4, 1)]


def test_two_ranks_share_the_parts_of_a_job_and_its_episodes_are_merged_by_index(out: Path) -> None:
    first, second = ledger(out), ledger(out, 1)
    one, other, last = take(first), take(second), take(first)
    assert [one.part.number, other.part.number, last.part.number] == [0, 1, 2]
    assert second.claim() is None
    assert not second.is_done()
    write(last)
    first.complete(last, 1.0)
    write(other, 7, 5, 4, 6)
    second.complete(other, 2.0)
    assert state_of(out, JOB) == "unfinished"
    write(one)
    first.complete(one, 3.0)
    assert indices_in(out) == list(range(10))
    assert first.is_done()
    assert second.is_done()
    assert not JobFiles(out / JOB.name).parts.exists()
    assert seconds_of(out, JOB) == 6.0
    assert ledger(out).claim() is None


def test_static_assignment_is_the_job_number_modulo_ranks(out: Path) -> None:
    jobs = (JOB, replace(JOB, name="other"))
    second = Ledger(out=out, jobs=jobs, rank=1, world_size=2, assignment="static")
    assert take(second).job.name == "other"


def hold_a_part(out: Path, ready: int) -> None:
    """Claim a part, write an episode and half of another, and wait to be killed."""
    claim = take(ledger(out, 1))
    claim.write(EPISODE | {"index": 2})
    os.write(claim.opened.fileno(), b'{"index": 1, "retu')
    os.write(ready, b"x")
    signal.pause()


def test_the_part_of_a_killed_process_is_free_with_the_episodes_that_it_has(out: Path) -> None:
    ready, written = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=hold_a_part, args=(out, written))
    process.start()
    os.read(ready, 1)
    queue = ledger(out)
    assert take(queue).part.number == 1, "the first one is locked"
    process.kill()
    process.join()
    claim = take(queue)
    assert (claim.part.number, claim.done) == (0, {2})
    write(claim)
    assert [json.loads(line)["index"] for line in claim.file.read_text(encoding="utf-8").splitlines()] == [2, 0, 1, 3]
    assert record_loss(out, 1, "Lost rank 1") == 1
    assert [(each["part"], each["rank"], each["error"]) for each in read_failures(out, JOB)] == [(0, 1, "Lost rank 1")]


def test_a_part_that_failed_is_left_to_others_and_the_job_fails_after_its_retries(out: Path) -> None:
    first, second = ledger(out), ledger(out, 1)
    first.fail(take(first), "broken", "Traceback")
    claim = first.claim(avoid_own_failures=True)
    assert claim is not None
    assert claim.part.number == 1
    claim.release()
    assert state_of(out, JOB) == "unfinished"
    second.fail(take(second), "broken", "Traceback of the second")
    assert state_of(out, JOB) == "failed"
    assert first.is_done()
    assert first.claim() is None
    assert JobFiles(out / JOB.name).traceback.read_text(encoding="utf-8") == "Traceback of the second"
    forget_failures(out, [JOB])
    assert state_of(out, JOB) == "unfinished"
    assert take(ledger(out)).part.number == 0


def test_progress_counts_parts_of_all_jobs(out: Path) -> None:
    jobs = (JOB, replace(JOB, name="other"))
    queue = ledger(out, 0, *jobs)
    assert queue.progress() == (0, 6)
    claim = take(queue)
    write(claim)
    queue.complete(claim, 1.0)
    assert queue.progress() == (1, 6)


@pytest.mark.parametrize("line", ["word", "[]", "{}", '{"index": "one"}', '{"seconds": "long"}'])
def test_lines_of_nonsense_are_refused_with_their_file(line: str, out: Path) -> None:
    claim = take(ledger(out))
    with claim.file.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    claim.release()
    with pytest.raises(UsageError, match=r"000000\.part cannot be read \(line 1: .+\): remove it, and evaluate again"):
        take(ledger(out))
    (out / JOB.name / "timing.jsonl").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"timing\.jsonl cannot be read \(line 1: .+\): remove it"):
        seconds_of(out, JOB)


# An output directory that was unpacked from anywhere


@pytest.fixture
def kept(out: Path) -> Path:
    """A directory of the user beside it, with what nothing of an evaluation may touch."""
    beside = out.parent / f"{out.name}-kept"
    (beside / "parts").mkdir(parents=True)
    for name in ("file", "parts/file"):
        (beside / name).write_text("kept", encoding="utf-8")
    return beside


def everything_in(directory: Path) -> dict[str, str]:
    files = [each for each in directory.rglob("*") if each.is_file()]
    return {str(each.relative_to(directory)): each.read_text(encoding="utf-8") for each in files}


def run_all(out: Path) -> None:
    """Do what a worker does with a job of one part, with a failure before it."""
    job = replace(JOB, num_episodes=4)
    prepare(out, [job])
    queue = ledger(out, 0, job)
    queue.fail(take(queue), "It broke", "Traceback")
    claim = take(queue)
    write(claim)
    queue.complete(claim, 1.0)


@pytest.mark.parametrize(
    "name",
    [
        *("episodes.unmerged", "failures.jsonl", "timing.jsonl", "traceback.txt", "parts/000000.part"),
        "../ranks/rank_00000.part",
    ],
)
def test_a_file_that_is_a_link_is_replaced_or_refused_and_not_written_through(out: Path, kept: Path, name: str) -> None:
    before = everything_in(kept)
    (out / "job" / name).symlink_to(kept / "file")
    with suppress(UnsafePathError):
        run_all(out)
    assert everything_in(kept) == before


@pytest.mark.parametrize("name", ["job", "job/parts", "ranks"])
def test_a_directory_that_is_a_link_is_refused_and_nothing_in_its_target_is_written_or_removed(
    out: Path, kept: Path, name: str
) -> None:
    before = everything_in(kept)
    shutil.rmtree(out / name)
    (out / name).symlink_to(kept / ("parts" if name == "job/parts" else ""))
    with suppress(UnsafePathError):
        run_all(out)
    assert everything_in(kept) == before
    if name != "ranks":  # Which part a rank runs is told to the launcher only if that can be written.
        with pytest.raises(UnsafePathError, match=f"{name} is no directory, and nothing is written there"):
            run_all(out)


def test_a_part_of_a_job_that_another_worker_has_just_finished_is_not_run_again(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment when its file is opened and that when it is locked, the parts were merged and removed."""
    job = replace(JOB, num_episodes=4)
    first, late = ledger(out, 0, job), ledger(out, 1, job)
    claim = take(first)
    write(claim)

    def lock_late(file: Any) -> bool:
        if JobFiles(out / job.name).parts.exists():
            first.complete(claim, 1.0)
        return try_lock(file)

    monkeypatch.setattr("shoal.jobs.ledger.try_lock", lock_late)
    assert late.claim() is None
    assert late.is_done()
    assert indices_in(out, job) == [0, 1, 2, 3]
