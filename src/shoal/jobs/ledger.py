"""The ledger: which parts of which jobs are done, in progress, failed or left. It is a directory, not a server.

A worker that runs a part holds the lock of the part's file and appends each episode as it ends. The kernel drops the
lock with the process, so that the part of a killed worker is free at once, with the episodes that it has. The directory
may be shared by machines whose file system has locks (`flock`).
"""

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from shoal.config.evaluate import Assignment
from shoal.files import Folder, try_lock, write_all
from shoal.plan.job import Job, JobFiles, Part
from shoal.plan.rundir import RunDir
from shoal.provenance import now
from shoal.reading import parse_object, read_bytes, read_lines, refusing

State = Literal["finished", "failed", "unfinished"]

REMEDY = "remove it, and evaluate again"
EPISODE: dict[str, Any] = dict.fromkeys(("return", "length"), int | float) | {"index": int, "seed": int, "ended": str}
EPISODE |= {"success": bool | None, "met_at_reset": bool, "terms": dict, "metrics": dict}
"""Types of the fields of an episode."""


@dataclass(slots=True, kw_only=True)
class Claim:
    """A part that this process runs, with its file locked."""

    job: Job
    part: Part
    file: Path
    opened: IO[bytes]
    done: set[int]
    """Indices of the episodes that an earlier attempt has written."""

    def write(self, episode: Mapping[str, Any]) -> None:
        """Append an episode, unless it is there already."""
        if episode["index"] not in self.done:
            self.done.add(episode["index"])
            self.opened.write((json.dumps(episode) + "\n").encode())

    def recording_file(self, rank: int) -> Path:
        """Return the file of this part's steps, as a rank records them."""
        return self.file.with_suffix(f".rank{rank:05d}.hdf5")

    def release(self) -> None:
        """Give the part back: what it has of episodes stays."""
        self.opened.close()


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The jobs of one queue, as one rank sees them."""

    out: Path
    jobs: Sequence[Job]
    rank: int = 0
    world_size: int = 1
    assignment: Assignment = "queue"
    left: dict[str, list[Part]] = field(default_factory=dict[str, list[Part]])
    """Parts of each job that were not yet seen to be done."""

    def __post_init__(self) -> None:
        of_rank = self.jobs[self.rank :: self.world_size] if self.assignment == "static" else self.jobs
        self.left = {job.name: job.parts() for job in of_rank}

    @property
    def folder(self) -> Folder:
        """What writes in the output directory."""
        return Folder(self.out)

    def claim(self, *, avoid_own_failures: bool = False) -> Claim | None:
        """Lock and return the next free part; None if there is none at this moment.

        With `avoid_own_failures`, parts that failed on this rank are left to others.
        """
        for job in self._open_jobs():
            failures = read_failures(self.out, job)
            for part in list(self.left[job.name]):
                own = [each for each in failures if each["part"] == part.number]
                if avoid_own_failures and any(each["rank"] == self.rank for each in own):
                    continue
                claimed = self._try(job, part)
                if claimed is not None:
                    with suppress(OSError):  # The launching process reads it when this rank is lost.
                        present = {"job": job.name, "part": part.number}
                        self.folder.write(_present(self.out, self.rank), json.dumps(present))
                    return claimed
        return None

    def _open_jobs(self) -> Iterator[Job]:
        """Yield jobs with parts that may be left, and forget those that are finished or failed."""
        for job in self.jobs:
            if self.left.get(job.name):
                if state_of(self.out, job) != "unfinished":
                    self.left[job.name] = []
                else:
                    yield job

    def is_done(self) -> bool:
        """Whether every job of this rank is finished or failed."""
        return next(self._open_jobs(), None) is None

    def _try(self, job: Job, part: Part) -> Claim | None:
        """Lock a part, unless it is done or locked."""
        file, finished = _part_files(self.out, job, part)
        if finished.exists():
            self.left[job.name].remove(part)
            return None
        try:
            opened = self.folder.open(file, "a+")
        except FileNotFoundError:  # The job was finished just now, and its parts are removed.
            return None
        with ExitStack() as stack:
            stack.callback(opened.close)
            # Another worker may have finished the part meanwhile, or the job, whose parts are removed then.
            if try_lock(opened) and not (finished.exists() or JobFiles(self.out / job.name).episodes.exists()):
                claim = Claim(job=job, part=part, file=file, opened=opened, done=_mend(file, opened.fileno()))
                stack.pop_all()
                return claim
        return None

    def complete(self, claim: Claim, seconds: float) -> None:
        """Mark a part as done, and write the episodes of its job if it was the last."""
        took = {"part": claim.part.number, "rank": self.rank, "seconds": seconds}
        self.folder.append(JobFiles(self.out / claim.job.name).timing, json.dumps(took))
        self.folder.rename(claim.file, _part_files(self.out, claim.job, claim.part)[1])
        claim.release()
        self.left[claim.job.name].remove(claim.part)
        self.folder.remove(_present(self.out, self.rank))
        merge(self.out, claim.job)

    def fail(self, claim: Claim, error: str, traceback: str) -> None:
        """Record that a part failed, and give it back."""
        part, job = claim.part.number, claim.job.name
        record_failure(self.out, job, part=part, rank=self.rank, error=error, traceback=traceback)
        claim.release()
        self.folder.remove(_present(self.out, self.rank))

    def progress(self) -> tuple[int, int]:
        """Return the number of parts that are done, and of all parts of the queue."""
        done = total = 0
        for job in self.jobs:
            parts = job.parts()
            total += len(parts)
            if JobFiles(self.out / job.name).episodes.exists():
                done += len(parts)
            else:
                done += sum(_part_files(self.out, job, part)[1].exists() for part in parts)
        return done, total


def prepare(out: Path, jobs: Sequence[Job]) -> None:
    """Make the directories of all jobs; workers make none, so that nothing of a finished job comes back."""
    for job in jobs:
        files = JobFiles(out / job.name)
        if not files.episodes.exists():
            Folder(out).make(files.parts)


def state_of(out: Path, job: Job) -> State:
    """Return the state of a job: it has failed once a part has failed more often than `retries` allows."""
    if JobFiles(out / job.name).episodes.exists():
        return "finished"
    attempts = [each["part"] for each in read_failures(out, job)]
    return "failed" if any(attempts.count(part) > job.retries for part in set(attempts)) else "unfinished"


def read_failures(out: Path, job: Job) -> list[dict[str, Any]]:
    """Return the attempts of a job that failed, oldest first."""
    kinds = {"part": int, "rank": int, "error": str}
    return list(read_lines(JobFiles(out / job.name).failures, kinds, "remove it, and the job is tried again"))


def record_failure(  # noqa: PLR0913  By name.
    out: Path, job: str, *, part: int, rank: int, error: str, traceback: str = ""
) -> None:
    """Record an attempt that failed, with its traceback."""
    files = JobFiles(out / job)
    failure = {"part": part, "rank": rank, "host": platform.node(), "error": error, "time": now()}
    Folder(out).write(files.traceback, traceback or f"{error}\n")
    Folder(out).append(files.failures, json.dumps(failure))


def record_loss(out: Path, rank: int | None, error: str) -> int:
    """Record that the parts which lost ranks ran have failed, once all ranks have ended; return their number.

    `rank` is the lost one; None where that is unknown, so that all that ran a part are meant.
    """
    recorded = 0
    for file in RunDir(out).ranks_dir.glob("rank_*.part"):
        number = int(file.stem.removeprefix("rank_"))
        if rank in (None, number):
            with refusing(file, "remove it"):
                ran = parse_object(read_bytes(file), {"job": str, "part": int})
            record_failure(out, ran["job"], part=ran["part"], rank=number, error=error)
            recorded += 1
        Folder(out).remove(file)
    return recorded


def seconds_of(out: Path, job: Job) -> float | None:
    """Return the time that the parts of a job of this name took, altogether [s]; None if it is unknown."""
    timing = JobFiles(out / job.name).timing
    times = [each["seconds"] for each in read_lines(timing, {"seconds": int | float}, "remove it")]
    return sum(times) if times else None


def forget_failures(out: Path, jobs: Sequence[Job]) -> None:
    """Give jobs that have failed all their attempts again."""
    for job in jobs:
        if state_of(out, job) == "failed":
            Folder(out).remove(JobFiles(out / job.name).failures)


def merge(out: Path, job: Job) -> None:
    """Write the episodes of a job whose parts are all done, and remove the parts."""
    files, folder = JobFiles(out / job.name), Folder(out)
    finished = [_part_files(out, job, part)[1] for part in job.parts()]
    with suppress(FileNotFoundError), folder.locked(files.parts):  # Another worker may have merged them.
        if files.episodes.exists() or not all(each.exists() for each in finished):
            return
        unmerged = files.episodes.with_suffix(".unmerged")
        with folder.open(unmerged, "w+") as merged:
            for part in finished:
                episodes = sorted(read_lines(part, EPISODE, REMEDY), key=lambda each: each["index"])
                write_all(merged, "".join(json.dumps(episode) + "\n" for episode in episodes))
        if job.record:
            _merge_recordings(folder, files, job)
        folder.rename(unmerged, files.episodes)
        with suppress(OSError):  # Another worker may just be looking into it.
            folder.remove_tree(files.parts)


def _merge_recordings(folder: Folder, files: JobFiles, job: Job) -> None:
    """Write the recorded steps of a job, one file for each rank that ran parts of it."""
    from shoal.jobs.recording import merge_recordings  # It imports torch.

    for rank in sorted({each.suffixes[0] for each in files.parts.glob("*.hdf5")}):
        own = sorted(files.parts.glob(f"*{rank}.hdf5"))
        with folder.open(files.path / f"dataset_{job.name}_{rank[1:]}.hdf5", "w+") as merged:
            merge_recordings(own, merged)


def _part_files(out: Path, job: Job, part: Part) -> tuple[Path, Path]:
    """Return the file of a part in progress, and its name once it is done."""
    directory = JobFiles(out / job.name).parts
    return directory / f"{part.number:06d}.part", directory / f"{part.number:06d}.jsonl"


def _present(out: Path, rank: int) -> Path:
    """Return the file that names the part which a rank runs."""
    return RunDir(out).ranks_dir / f"rank_{rank:05d}.part"


def _mend(file: Path, descriptor: int) -> set[int]:
    """Cut off an incomplete last line, and return the indices of the episodes in the file."""
    indices = {episode["index"] for episode in read_lines(file, EPISODE, REMEDY)}
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    os.ftruncate(descriptor, data.rfind(b"\n") + 1)
    return indices
