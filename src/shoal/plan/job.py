"""What workers take bit by bit: the jobs of an evaluation, with their parts and files, and the trials of a sweep.

A `Job` is one policy in one variation of a task, and a `Part` are the episodes of it that one worker runs at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from shoal.config.checks import NOT_NAN
from shoal.config.evaluate import EvaluateConfig, JobSettings
from shoal.config.sweep import SweepFile
from shoal.errors import UsageError
from shoal.machine.gpus import VisibleGpus
from shoal.plan.launch import Plan, plan_launch, refuse_unwritable
from shoal.plan.nodes import Nodes
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
    video = Below("episode_000000.mp4")
    """The video of the first episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatePlan(Plan):
    """What one `evaluate` command will do: its workers take parts of the jobs. The run's directory has the results."""

    config: EvaluateConfig
    jobs: tuple[Job, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Those of the jobs."""
        return tuple(sorted({job.task for job in self.jobs}))

    @property
    def num_parts(self) -> int:
        """Parts of all jobs."""
        return sum(len(job.parts()) for job in self.jobs)

    def summary(self) -> dict[str, Any]:
        """Return what is decided, for `--dry-run`."""
        return {
            "launch_mode": self.launch_mode,
            "devices": list(self.devices),
            "world_size": self.world_size,
            "assignment": self.config.assignment,
            "jobs": [f"{job.name} ({len(job.parts())} parts)" for job in self.jobs],
        }


def plan_evaluation(
    config: EvaluateConfig,
    jobs: Sequence[Job],
    environ: Mapping[str, str],
    gpus: VisibleGpus,
    probe_hosts: Callable[[], Nodes] | None = None,
) -> EvaluatePlan:
    """Decide where the workers of these jobs run."""
    launch = plan_launch(config, environ, gpus, probe_hosts)
    apart = next((node.host for node in launch.nodes if not node.shares_runs), None)
    if apart is not None:
        raise UsageError(
            f"Node {apart} does not see --log-root {config.log_root}, where workers take their jobs from: pass "
            "--log-root with a directory that all nodes share."
        )
    # The jobs need no process group. Ranks that a launcher started have one, which their policies may use.
    backend = None if launch.rank is None else launch.backend
    plan = EvaluatePlan(**launch.shared(config=config, backend=backend), jobs=tuple(jobs))
    refuse_unwritable("--out", Path(config.out or config.log_root))
    plan.refuse_unwritable_logs(environ)
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan(Plan):
    """What one `sweep` command will do: each worker trains one trial at a time."""

    sweep: SweepFile
    file: str
    """Path of the file."""
