"""`Job`: one policy in one variation of a task, and `Part`, the episodes of it that one worker runs at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.plan.rundir import Below


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job, of plain values, with every name resolved: all workers run the same."""

    name: str
    """Unique among the jobs of a queue, and the name of the job's directory."""
    task: str
    policy: str
    """Absolute path of a `model.pt`, an ONNX file or a torch program, `zero`, `random`, or `package.module:Class`."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the policy's class."""
    learner: str | None = None
    """Learner of a `model.pt`."""
    agent: dict[str, Any] | None = None
    """Its configuration, from which the networks are rebuilt."""
    env: dict[str, Any] = field(default_factory=dict[str, Any])
    """The whole configuration of the environment."""
    variation: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `env` that this job was asked to change, by their dotted names."""
    num_envs: int = 64
    """Environments side by side, and episodes of a part."""
    num_episodes: int | None = None
    first_episode: int = 0
    """Index of the first episode."""
    num_steps: int | None = None
    """Steps of each environment, instead of a number of episodes."""
    rebuilds: int = 1
    """Number of times that the environments are built, each with another seed."""
    seed: int = 1
    timeout: float | None = None
    """Longest time of a part [s]."""
    retries: int = 1
    """How often a part is tried again."""
    policy_device: str | None = None
    record: bool = False
    """Keep observations, actions and rewards of each step."""
    video: bool = False
    """Film the first episode."""

    def parts(self) -> list["Part"]:
        """Return the parts of this job, in order. None spans two builds of the environments."""
        return list(self._parts())

    def _parts(self) -> Iterator["Part"]:
        if self.num_episodes is None:
            for build in range(self.rebuilds):
                yield Part(number=build, first=build * self.num_envs, count=self.num_envs, build=build)
            return
        number = 0
        for build in range(self.rebuilds):
            first = build * self.num_episodes // self.rebuilds
            end = (build + 1) * self.num_episodes // self.rebuilds
            while first < end:
                count = min(self.num_envs, end - first)
                yield Part(number=number, first=self.first_episode + first, count=count, build=build)
                number, first = number + 1, first + count


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Episodes that one worker runs side by side, or, of a job with `num_steps`, environments."""

    number: int
    first: int
    """Index of the first episode. An episode's random numbers follow from the job's seed and its index alone."""
    count: int
    build: int
    """Which build of the environments, from 0: they are built with the job's seed plus this."""


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
