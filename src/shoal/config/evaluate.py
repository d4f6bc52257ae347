"""Configuration of `evaluate`: its flags, and the keys of an entry in its file of jobs; and of `shoal compare`."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from shoal.config.checks import RANGE, SEED, Config, FlagsConfig, Rule, above, at_least, each
from shoal.config.commands import PolicyFlags
from shoal.config.env import BaseEnvConfig
from shoal.config.flags import LaunchConfig
from shoal.errors import UsageError

Assignment = Literal["queue", "static"]
"""How parts get to workers: a free one takes the next, or each takes the jobs of its rank."""
_NAMED = Rule("not be empty", lambda value: len(value) > 0 and all(value))
_SEED = Rule(
    f"{SEED.must}, or be a list of such numbers",
    lambda value: each(SEED).holds(value if isinstance(value, tuple) else (value,)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesConfig(PolicyFlags, LaunchConfig):
    """Flags of commands that run episodes of several policies on all workers."""

    learner: str = "rsl_rl"
    """Learner that trained them; by default that of each policy's training."""
    num_envs: int = 64
    """Environments on each worker, and episodes that it takes at a time. It does not change their results."""
    out: str | None = None
    """Directory of the results. In an existing one only what is missing is run.
    Default: `<log root>/evaluations/<now>`."""
    timeout: Annotated[float | None, above(0)] = None
    """Longest time of `--num-envs` episodes [s]. Default: none, but see `--stall-timeout`."""
    retries: Annotated[int, at_least(0)] = 1
    """How often episodes that failed are tried again."""
    rerun_failed: bool = False
    """Run episodes again that have failed in an earlier run of this command."""
    disturbances: bool = False
    """Keep the pushes and the observation noise of training."""
    policy_device: str | None = None
    """Device of the policies: `cpu`, `cuda:1`, or the index of a GPU, such as `1`; LOCAL_RANK of a launcher wins.
    Default: that of the environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig(PoliciesConfig):
    """Flags of `evaluate`."""

    task: str | None = None
    """Task of the policies: a registered name, or `path/to/file.py:Class`."""
    jobs: str | None = None
    """File with a list of jobs, in YAML or JSON, instead of a task. See docs/guide/evaluation.md."""
    checkpoint: tuple[str, ...] = ("latest",)
    """Policies, a job each: runs, checkpoints, `.pt`, `.onnx` or `.pt2` files; `latest`, `best` or `all` of this
    task's newest run; `package.module:Class`; `zero` or `random` actions in [-1, 1]."""
    num_episodes: Annotated[int | None, at_least(1)] = None
    """Episodes of each job. Default: 100."""
    num_steps: Annotated[int | None, at_least(1)] = None
    """Steps in which episodes begin, instead of a number of episodes."""
    seeds: Annotated[tuple[int, ...], each(SEED)] = (1,)
    """Seeds of the environments, a job each. An episode follows from its seed and its index."""
    rebuilds: Annotated[int, at_least(1)] = 1
    """Number of times that the environments are built, each with another seed."""
    control: bool = False
    """Also run the same episodes with zero actions."""
    record: bool = False
    """Write observations, actions and rewards of each step to `<out>/<job>/dataset_<job>_rank<rank>.hdf5`."""
    video: bool = False
    """Record a video of the first episode of each job."""
    assignment: Assignment = "queue"
    """`queue`: a free worker takes the next episodes. `static`: job number modulo workers is the rank that runs it."""
    fail_fast: bool = False
    """End everything when a job has failed."""
    watch: str | None = None
    """A run that may still be training: evaluate each of its checkpoints, new ones as they appear, until it ends."""
    json: bool = False
    """Print the statistics as JSON instead of a table: a mapping for one job, a list for several."""
    dry_run: bool = False
    """Print the jobs and stop."""

    def __post_init__(self) -> None:
        LaunchConfig.__post_init__(self)
        if self.num_steps is not None and self.num_episodes is not None:
            raise UsageError("--num-steps and --num-episodes exclude each other: pass one of them.")
        if self.watch is not None and (self.jobs is not None or self.checkpoint != ("latest",)):
            raise UsageError("--watch evaluates the checkpoints of one run: leave --jobs and --checkpoint out.")


@dataclass(frozen=True, kw_only=True)
class ComparisonFlags(FlagsConfig):
    """A mix-in: flags of both forms of `shoal compare`."""

    __slots__ = ()
    return_range: Annotated[tuple[float, float] | None, RANGE] = None
    """The least and the largest return that an episode can have: makes the interval exact, and mostly shorter."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig(ComparisonFlags):
    """Flags of `shoal compare A B`."""

    a: str
    """Directory of results."""
    b: str
    """Directory of results, whose episodes have the same tasks, variations, seeds and indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePoliciesConfig(ComparisonFlags, PoliciesConfig):
    """Flags of `shoal compare TASK A B`."""

    task: str
    """Task of both policies: a registered name, or `path/to/file.py:Class`."""
    a: str = ""
    """A policy: `zero`, `random`, or what `--checkpoint` of `evaluate` takes."""
    b: str = ""
    """The other policy."""
    num_episodes: Annotated[int, at_least(50)] = 1000
    """Most episodes of each policy. Fewer are run if the difference is sure earlier."""
    seed: Annotated[int, SEED] = 1
    """Seed of the environments. Both policies run the same episodes."""
    env: BaseEnvConfig = field(default_factory=BaseEnvConfig)
    """Environment of both policies; by default as in the training of A, or of B if A was not trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings(Config):
    """What an entry of a jobs file and each of its jobs have in common."""

    num_envs: Annotated[int, at_least(1)] = 64
    """Environments side by side, and episodes of a part of the job."""
    num_steps: Annotated[int | None, at_least(1)] = None
    """Steps in which episodes begin, instead of a number of episodes."""
    rebuilds: Annotated[int, at_least(1)] = 1
    """Number of times that the environments are built, each with another seed."""
    timeout: Annotated[float | None, above(0)] = None
    """Longest time of a part of the job [s]. Default: no limit."""
    retries: Annotated[int, at_least(0)] = 1
    """How often a part that failed is tried again."""
    policy_device: str | None = None
    """Device of the policy, `cpu` or `cuda`. Default: that of the environments."""
    record: bool = False
    """Keep observations, actions and rewards of each step."""
    video: bool = False
    """Record a video of the first episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry(JobSettings):
    """An entry of a jobs file. Each combination of its lists is a job."""

    name: Annotated[str, _NAMED]
    """Name of the job, and of its directory. Where lists make several, each name says what differs:
    `walk-policy2-seed3-decimation4`."""
    task: Annotated[str | tuple[str, ...], _NAMED]
    """Task, or a list of them: a registered name, or `path/to/file.py:Class`. Paths are relative to the directory in
    which the command is run."""
    policy: Annotated[str | tuple[str, ...], _NAMED] = "latest"
    """Policy, or a list of them: a checkpoint directory, a `.pt` file, a run directory for its newest checkpoint,
    `<run>/checkpoints` for all of them; `latest`, `best` or `all` checkpoints of the task's newest run; an `.onnx` or
    `.pt2` (torch.export) file; `zero` or `random` actions; `package.module:Class` or `path/to/file.py:Class`."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the policy's class."""
    num_episodes: Annotated[int | None, at_least(1)] = None
    """Number of episodes. Default: 100, unless `num_steps` is given."""
    seed: Annotated[int | tuple[int, ...], _SEED] = 1
    """Seed, or a list of them. Jobs with the same seed have the same episodes."""
    variations: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the environment by their names without `env.`, each with a value or a list of values. Where the field
    is a list itself, a list of lists has several values."""
    control: bool = False
    """Add a job `<name>-control` to each, with the same environments and zero actions."""

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.num_steps is not None and self.num_episodes is not None:
            raise UsageError(
                f"num_steps is {self.num_steps} and num_episodes is {self.num_episodes}, but they exclude each other: "
                "give one of them."
            )
