"""`Job`: one policy in one variation of a task, and `Part`, the episodes of it that one worker runs at a time."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from shoal.config.checks import NOT_NAN
from shoal.config.jobs import JobSettings
from shoal.plan.rundir import Below

_Resolved = Annotated[dict[str, Any], NOT_NAN]
"""Values that were checked where they were given; some are infinite by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(JobSettings):
    """One job, of plain values, with every name resolved: all workers run the same."""

    name: str
    """Unique among the jobs of a queue, and the name of the job's directory."""
    task: str
    policy: str
    """Absolute path of a `model.pt`, an ONNX file or a torch program, `zero`, `random`, or `package.module:Class`."""
    config: _Resolved = field(default_factory=dict[str, Any])
    """Keyword arguments of the policy's class."""
    learner: str | None = None
    """Learner of a `model.pt`."""
    agent: _Resolved | None = None
    """Its configuration, from which the networks are rebuilt."""
    env: _Resolved = field(default_factory=dict[str, Any])
    """The whole configuration of the environment."""
    variation: _Resolved = field(default_factory=dict[str, Any])
    """Fields of `env` that this job was asked to change, by their dotted names."""
    num_episodes: int | None = None
    first_episode: int = 0
    """Index of the first episode."""
    seed: int = 1

    def parts(self) -> list["Part"]:
        """Return the parts of this job, in order. None spans two builds of the environments."""
        builds, size = range(self.rebuilds), self.num_envs
        if self.num_episodes is None:
            return [Part(number=build, first=build * size, count=size, build=build) for build in builds]
        parts: list[Part] = []
        for build in builds:
            begin, end = (each * self.num_episodes // self.rebuilds for each in (build, build + 1))
            for first in range(begin, end, size):
                count = min(size, end - first)
                parts.append(Part(number=len(parts), first=self.first_episode + first, count=count, build=build))
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Episodes that one worker runs side by side, or, of a job with `num_steps`, environments."""

    number: int
    first: int
    """Index of the first episode. An episode's random numbers follow from the job's seed and its index alone."""
    count: int
    build: int
    """Which build of the environments, from 0: each from a seed of its own, derived from the job's."""


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Files of one job below the output directory."""

    path: Path

    parts = Below("parts")
    """Directory of the parts in progress: `000003.jsonl`, a line an episode as it ends."""
    episodes = Below("episodes.jsonl")
    """All episodes of a finished job, by index, one JSON object a line."""
    failures = Below("failures.jsonl")
    """One JSON object a line for each attempt that failed: `part`, `rank`, `host`, `error`, `time`."""
    traceback = Below("traceback.txt")
    """Traceback of the last failure."""
    timing = Below("timing.jsonl")
    """One JSON object a line about the time of each part."""
    summary = Below("summary.json")
    """Statistics of the job."""
    film = Below("episode_000000.mp4")
    """The film of the first episode."""
