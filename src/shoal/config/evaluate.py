"""Configuration of `evaluate`: its jobs, and how they get to workers; and of `shoal compare`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from shoal.config.agent import AgentConfig
from shoal.config.checks import RANGE, SEED, FlagsConfig, above, at_least, each
from shoal.config.commands import AgentKind
from shoal.config.env import BaseEnvConfig
from shoal.config.machines import LaunchConfig
from shoal.config.rsl_rl import RslRlConfig
from shoal.errors import UsageError

Assignment = Literal["queue", "static"]
"""How parts get to workers: a free one takes the next, or each takes the jobs of its rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesConfig(LaunchConfig):
    """Flags of commands that run episodes of several policies on all workers."""

    learner: str = "rsl_rl"
    """Learner that trained them; by default that of each policy's training."""
    num_envs: Annotated[int, at_least(1)] = 64
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
    """Device of the policies, such as `cpu` or `cuda:1`; LOCAL_RANK of a launcher wins.
    Default: that of the environments."""
    trust_run: bool = False
    """Import the classes that a policy's run names even if the run is not below `--log-root`."""
    env: BaseEnvConfig = field(default_factory=BaseEnvConfig)
    """The task's environment; by default as in each policy's training."""
    agent: AgentConfig = field(default_factory=RslRlConfig)
    """The learner, whose networks are rebuilt; by default as in each policy's training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig(PoliciesConfig):
    """Flags of `evaluate`."""

    task: str | None = None
    """Task of the policies: a registered name, or `path/to/file.py:Class`."""
    jobs: str | None = None
    """File with a list of jobs, in YAML or JSON, instead of a task. See docs/guide/evaluation.md."""
    checkpoint: tuple[str, ...] = ("latest",)
    """Policies, a job each: runs, checkpoints, `.pt`, `.onnx` or `.pt2` files;
    `latest`, `best` or `all` of this task's newest run; `package.module:Class`."""
    agent_kind: AgentKind = "trained"
    """Source of the actions: the policies of `--checkpoint`, or `zero` or `random` in [-1, 1]."""
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
    """Film the first episode of each job."""
    assignment: Assignment = "queue"
    """`queue`: a free worker takes the next episodes. `static`: job number modulo workers is the rank that runs it."""
    fail_fast: bool = False
    """End everything when a job has failed."""
    watch: str | None = None
    """A run that may still be training: evaluate each of its checkpoints, new ones as they appear, until it ends."""
    policy_device_id: Annotated[int | None, at_least(0)] = None
    """The device of the policies as the index of a GPU; wins over `--policy-device`."""
    dry_run: bool = False
    """Print the jobs and stop."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and flags that contradict each other."""
        LaunchConfig.__post_init__(self)
        if self.num_steps is not None and self.num_episodes is not None:
            raise UsageError("--num-steps and --num-episodes exclude each other: pass one of them.")
        if self.agent_kind != "trained" and self.checkpoint != ("latest",):
            raise UsageError(
                f"--checkpoint {' '.join(self.checkpoint)} and --agent {self.agent_kind} exclude each other, because "
                f"{self.agent_kind} actions come from no checkpoint: pass one of them."
            )
        if self.watch is not None and (self.jobs is not None or self.checkpoint != ("latest",)):
            raise UsageError("--watch evaluates the checkpoints of one run: leave --jobs and --checkpoint out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig(FlagsConfig):
    """Flags of `shoal compare A B`."""

    a: str
    """Directory of results."""
    b: str
    """Directory of results, whose episodes have the same tasks, variations, seeds and indices."""
    return_range: Annotated[tuple[float, float] | None, RANGE] = None
    """The least and the largest return that an episode can have: makes the interval exact, and mostly shorter."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePoliciesConfig(PoliciesConfig):
    """Flags of `shoal compare TASK A B`."""

    task: str
    """Task of both policies: a registered name, or `path/to/file.py:Class`."""
    a: str = ""
    """A policy: `zero`, `random`, or what `--checkpoint` of `evaluate` takes."""
    b: str = ""
    """The other policy."""
    num_episodes: Annotated[int, at_least(50)] = 1000
    """Most episodes of each policy. Fewer are run if the difference is sure earlier."""
    return_range: Annotated[tuple[float, float] | None, RANGE] = None
    """The least and the largest return that an episode can have: makes the interval exact, and mostly shorter."""
    seed: Annotated[int, SEED] = 1
    """Seed of the environments. Both policies run the same episodes."""
    json: bool = False
    """Print JSON."""
    env: BaseEnvConfig = field(default_factory=BaseEnvConfig)
    """Environment of both policies; by default as in the training of A, or of B if A was not trained."""
