"""Configuration of evaluation jobs: the keys of an entry in the file of `evaluate --jobs`."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from shoal.config.checks import SEED, Config, Rule, above, at_least, each
from shoal.errors import UsageError

_NAMED = Rule("not be empty", lambda value: len(value) > 0 and all(value))
_SEED = Rule(
    f"{SEED.must}, or be a list of such numbers",
    lambda value: each(SEED).holds(value if isinstance(value, tuple) else (value,)),
)


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
    """Film the first episode."""


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
        """Refuse values out of range, and two lengths."""
        Config.__post_init__(self)
        if self.num_steps is not None and self.num_episodes is not None:
            raise UsageError(
                f"num_steps is {self.num_steps} and num_episodes is {self.num_episodes}, but they exclude each other: "
                "give one of them."
            )
