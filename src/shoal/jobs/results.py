"""Results of an output directory: statistics of each job, and of each policy over all seeds, as JSON and CSV."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.config.plain import from_plain
from shoal.errors import UsageError
from shoal.files import Folder
from shoal.jobs.ledger import EPISODE, REMEDY, read_failures, state_of
from shoal.jobs.statistics import CONFIDENCE, Pool, summarize
from shoal.plan.changes import flatten
from shoal.plan.job import Job, JobFiles
from shoal.reading import parse_object, read_bytes, read_lines, refusing


def is_control(job: Job) -> bool:
    """Return whether a job is the zero-action control, which shows what the robot does without a policy."""
    return job.policy == "zero" and job.name.endswith("-control")


def _read_manifest(out: Path) -> tuple[dict[str, Any], list[Job]]:
    path = out / "manifest.json"
    with refusing(path, "pass the output of an evaluation"):
        manifest = parse_object(read_bytes(path), {"jobs": list, "command": list | None})
        jobs = [from_plain(Job, plain, f"jobs[{number}]") for number, plain in enumerate(manifest["jobs"])]
    # Results are written below these names.
    outside = [job.name for job in jobs if Path(job.name).name != job.name or job.name in {"", ".."}]
    if outside:
        raise UsageError(f"{path} has a job named {outside[0]!a:.60}, which is no name of a directory: rename it.")
    return manifest, jobs


def read_jobs(out: Path) -> list[Job]:
    """Return the jobs of an output directory, in the order of its queue.

    Raises:
        UsageError: It is no output directory.
    """
    return _read_manifest(out)[1]


def iterate_episodes(out: Path, job: Job) -> Iterator[dict[str, Any]]:
    """Return the episodes of a job by index, and none of a job that has not finished.

    Raises:
        UsageError: The file is damaged.
    """
    return read_lines(JobFiles(out / job.name).episodes, EPISODE, REMEDY, is_whole=True)


def write_summary(out: Path, job: Job) -> dict[str, Any]:
    """Write, and return, the statistics of a finished job."""
    summary = summarize(iterate_episodes(out, job))
    Folder(out).write(JobFiles(out / job.name).summary, json.dumps(summary, indent=2))
    return summary


def write_results(out: Path) -> dict[str, Any]:
    """Write `results.json` and `results.csv`, and return the former.

    Its `groups` pool the episodes of jobs that differ in their seeds only: task, policy and variation are equal. An
    episode that several jobs of a group have run counts once, by its seed and index. A summary is None if no job has
    finished. A job failed if one of its parts was tried as often as its retries allow.

    Raises:
        UsageError: It is no output directory, or a file in it is damaged.
        OSError: They cannot be written.
    """
    manifest, jobs = _read_manifest(out)
    members: dict[str, list[Job]] = {}
    for job in jobs:
        members.setdefault(json.dumps(_conditions(job), sort_keys=True), []).append(job)
    summaries: dict[str, dict[str, Any]] = {}
    groups = [_group(out, group, summaries) for group in members.values()]
    rows = [_row(out, job, summaries.get(job.name)) for job in jobs]
    about = {key: manifest.get(key) for key in ("shoal", "started", "command")}
    results = {**about, "confidence": CONFIDENCE, "jobs": rows, "groups": groups}
    Folder(out).write(out / "results.json", json.dumps(results, indent=2))
    Folder(out).write(out / "results.csv", _csv(rows))
    return results


def _conditions(job: Job) -> dict[str, Any]:
    names = ("task", "policy", "config", "variation")
    return {name: getattr(job, name) for name in names} | {"control": is_control(job)}


def _group(out: Path, jobs: list[Job], summaries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the pooled results of jobs, and add the summary of each that has finished to `summaries`."""
    pooled = Pool()
    counted: set[tuple[int, int]] = set()
    finished = [job for job in jobs if JobFiles(out / job.name).episodes.is_file()]
    for job in finished:
        alone = Pool()
        new: set[tuple[int, int]] = set()  # Not yet counted, so that equal indices within a job all count.
        for episode in iterate_episodes(out, job):
            alone.add(episode)
            key = (episode["seed"], episode["index"])
            if key not in counted:
                pooled.add(episode)
                new.add(key)
        counted |= new
        summaries[job.name] = alone.summary()
    return {
        **_conditions(jobs[0]),
        "seeds": sorted({job.seed for job in jobs}),
        "jobs": [job.name for job in jobs],
        "finished": [job.name for job in finished],
        "summary": pooled.summary() if finished else None,
    }


def _row(out: Path, job: Job, summary: dict[str, Any] | None) -> dict[str, Any]:
    failures = read_failures(out, job)
    return {
        "name": job.name,
        **_conditions(job),
        "seed": job.seed,
        "state": state_of(out, job),
        "failed_attempts": len(failures),
        "last_error": failures[-1].get("error") if failures else None,
        "summary": summary,
    }


def _csv(rows: list[dict[str, Any]]) -> str:
    """Return a table with a line for each job, and a column for each value that any of them has."""
    flat: list[dict[str, Any]] = []
    for row in rows:
        named = {name: json.dumps(row[name]) for name in ("config", "variation")}  # By users.
        values = flatten(row | (row["summary"] or {}) | named | {"summary": None}, left_out=())
        flat.append({name: value for name, value in values.items() if value not in (None, {})})
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(name for row in flat for name in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
