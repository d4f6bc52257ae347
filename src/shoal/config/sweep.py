"""Configuration of sweeps: the keys of the file of `shoal sweep`, and the flags of the command."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from shoal.config.checks import SEED, Config, Rule, above, at_least
from shoal.config.flags import LogRootFlags, WorkerFlags
from shoal.errors import UsageError

_NOT_EMPTY = Rule("not be empty", lambda value: len(value) > 0)
_ROUNDING = 1e-9
"""Part of a step by which numbers may miss it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter(Config):
    """A flag of `train` that each trial has with another value: of a range of numbers, or of choices."""

    low: float | None = None
    """Least value."""
    high: float | None = None
    """Largest value."""
    step: Annotated[float | None, above(0)] = None
    """Distance between two values. Default: 1 for whole numbers, otherwise any value of the range."""
    log: bool = False
    """Propose logarithms of the values, so that each decade of the range gets equally many."""
    choices: tuple[Any, ...] = ()
    """All values, instead of a range."""

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.choices:
            if (self.low, self.high, self.step, self.log) != (None, None, None, False):
                raise UsageError("choices are given with a range, but they exclude each other: give one of them.")
            return
        if self.low is None or self.high is None:
            raise UsageError("it needs low and high, or choices: give them, such as {low: 0.1, high: 1.0}.")
        if self.low >= self.high:
            raise UsageError(f"low is {self.low:g}, but high is {self.high:g}: give a lower one.")
        if self.log and (self.low <= 0 or self.step is not None):
            raise UsageError("log is true, but low is not above 0, or step is given: leave log or step out.")
        if self.step is not None and abs(self.steps - round(self.steps)) > _ROUNDING * self.steps:
            raise UsageError(
                f"from low {self.low:g} no number of steps {self.step:g} leads to high {self.high:g}: give another one."
            )

    @property
    def steps(self) -> float:
        """Number of steps of 1, or of `step`, from `low` to `high`."""
        return ((self.high or 0.0) - (self.low or 0.0)) / (self.step or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile(Config):
    """The file of `shoal sweep`."""

    name: Annotated[str, _NOT_EMPTY]
    """Name of the sweep, and of its directory."""
    task: str
    """Task of all trials: a registered name, or `path/to/file.py:Class`."""
    learner: str | None = None
    """Learner of all trials. Default: the task's."""
    metric: str | None = None
    """Metric that the score of a trial is. Default: `Eval/return`, or `Train/mean_reward` with `eval_interval: 0`."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Whether a high score is good."""
    trials: Annotated[int | None, at_least(1)] = None
    """Number of trials, failed and pruned ones included. With the sampler `grid` it may be left out."""
    seed: Annotated[int, SEED] = 1
    """Seed of the proposals. That of the trainings is the parameter `seed`."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """What proposes values: the tree-structured Parzen estimator, chance, or all combinations in order."""
    pruner: Literal["median", "asha", "none"] = "median"
    """What ends trials early: a score below the median of earlier trials, or successive halving. No trial ends in the
    first tenth of its iterations."""
    parameters: Annotated[dict[str, Parameter], _NOT_EMPTY]
    """Flags of `train` without their dashes, such as `agent.algorithm.learning_rate`, and the values to try."""
    fixed: dict[str, Any] = field(default_factory=dict[str, Any])
    """Flags that all trials share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig(LogRootFlags, WorkerFlags):
    """Flags of `shoal sweep`."""

    file: str
    """The file of the sweep: YAML or JSON, see docs/guide/sweeps.md. Each worker trains one trial at a time, and the
    results are in `<log root>/sweeps/<name>`."""
    dry_run: bool = False
    """Check the file, print the plan and stop."""
