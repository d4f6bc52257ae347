"""The file of a sweep: reading, refusing what no trial could be trained with, and the configuration of a trial."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from shoal.config import LaunchConfig, TrainConfig
from shoal.config.plain import from_plain
from shoal.config.sweep import Parameter, SweepFile
from shoal.errors import UsageError
from shoal.plan.changes import decides_return, nested
from shoal.plan.rundir import refuse_bad_name
from shoal.reading import read_plain_file, refusing
from shoal.tasks import registry
from shoal.user_code import absolute

_OF_THE_SWEEP = {each.name for each in fields(LaunchConfig)} - {"num_envs"}
_OF_THE_SWEEP |= {"resume", "run_name", "max_restarts", "min_workers", "dry_run"}
"""Flags of `train` that no trial has for itself."""
_CPU = "cpu"
_MOST_TRIALS = 10_000
_RETURNS = ("Eval/return", "Train/mean_reward", "Train/mean_whole_reward")
"""Metrics that are weighted sums of rewards: without exploration noise, and with it."""
_EVALUATIONS = 10
"""Evaluations of each trial, at least, where its score is of one and the file tells no `eval_interval`."""


def read_sweep(file: Path) -> SweepFile:
    """Read the file of a sweep, and check that trials can be configured with each single value.

    Raises:
        UsageError: It cannot be read, or has an unknown key, an unknown flag or a value out of range.
    """
    data: Any = read_plain_file("The sweep", file, example="sweep.yaml")
    with refusing(file, "give other numbers"):
        sweep = from_plain(SweepFile, data)
        sweep = replace(
            sweep,
            task=absolute(sweep.task),
            parameters={name.replace("-", "_"): value for name, value in sweep.parameters.items()},
            fixed={name.replace("-", "_"): value for name, value in sweep.fixed.items()},
        )
        _check(sweep)
    return sweep


def _check(sweep: SweepFile) -> None:
    """Refuse a sweep of which no trial could be configured."""
    refuse_bad_name("name", sweep.name)
    for name in (*sweep.parameters, *sweep.fixed):
        if name in _OF_THE_SWEEP:
            raise UsageError(f"'{name}' is no flag of a single trial: set it for the whole sweep, or leave it out.")
    both = next((name for name in sweep.parameters if name in sweep.fixed), None)
    if both is not None:
        raise UsageError(f"'{both}' is given under parameters and under fixed: leave it out of one of them.")
    config_of(sweep, {})
    for name, parameter in sweep.parameters.items():
        ends = (cast_to(sweep, name, end) for end in (parameter.low, parameter.high) if end is not None)
        for value in parameter.choices or ends:
            config_of(sweep, {name: value})
    measure, own = metric_of(sweep), next(filter(decides_return, sweep.parameters), None)
    if own is not None and measure in _RETURNS:
        raise UsageError(
            f"'{own}' decides what a return counts, so that {measure} would measure each trial by another scale: give "
            "the key metric, such as Eval/length, Eval/success or a metric of the task."
        )
    if sweep.sampler == "grid":
        grid_of(sweep)
    elif sweep.trials is None:
        raise UsageError("the key 'trials' is missing: give the number of trials. Only a grid may do without.")


def config_of(sweep: SweepFile, parameters: Mapping[str, Any]) -> TrainConfig:
    """Return the training of a trial, as far as it does not depend on the machine. It exports no policy by default."""
    base = registry.resolve(sweep.task).defaults(sweep.task, sweep.learner and absolute(sweep.learner))
    given = {**sweep.fixed, **parameters}
    config = from_plain(replace(base, export=False), nested(given))
    if "eval_interval" not in given and (sweep.metric or _RETURNS[0]).startswith("Eval/"):
        most, saved = max(1, config.max_iterations // _EVALUATIONS), config.agent.save_interval
        config = replace(config, eval_interval=max(each for each in range(1, most + 1) if saved % each == 0))
    return config


def training_of(sweep: SweepFile, parameters: Mapping[str, Any], launch: LaunchConfig, device: str) -> TrainConfig:
    """Return the training of a trial on one device of a launch."""
    return replace(
        config_of(sweep, parameters),
        gpu_ids=("None",) if device == _CPU else (device.partition(":")[2],),
        log_root=launch.log_root,
        startup_timeout=launch.startup_timeout,
        stall_timeout=launch.stall_timeout,
    )


def is_whole(sweep: SweepFile, name: str) -> bool:
    """Whether the values of a range are whole numbers: its ends are, and the flag takes no others."""
    parameter = sweep.parameters[name]
    try:
        config_of(sweep, {name: parameter.low})
    except UsageError:
        if not all(float(end).is_integer() for end in (parameter.low, parameter.high, parameter.step) if end):
            raise
        return True
    return False


def cast_to(sweep: SweepFile, name: str, value: float) -> float:
    """Return a number of a parameter's range as its flag takes it."""
    return int(value) if is_whole(sweep, name) else value


def grid_of(sweep: SweepFile) -> list[dict[str, Any]]:
    """Return all combinations of values, of which the last parameter's changes fastest.

    Raises:
        UsageError: A range has no step.
    """
    values = [list(_grid_values(sweep, name, parameter)) for name, parameter in sweep.parameters.items()]
    if math.prod(map(len, values)) > _MOST_TRIALS:
        raise UsageError(f"the grid has more than {_MOST_TRIALS:,} trials: give longer steps, or fewer values.")
    return [dict(zip(sweep.parameters, each, strict=True)) for each in itertools.product(*values)]


def _grid_values(sweep: SweepFile, name: str, parameter: Parameter) -> Iterator[Any]:
    if parameter.choices:
        yield from parameter.choices
        return
    if parameter.log or (parameter.step is None and not is_whole(sweep, name)):
        raise UsageError(f"'{name}' has a range without steps, but the sampler is grid: give it a step, or choices.")
    kind = int if is_whole(sweep, name) else float
    for number in range(min(round(parameter.steps), _MOST_TRIALS) + 1):
        yield kind(round((parameter.low or 0.0) + number * (parameter.step or 1.0), 12))


def number_of_trials(sweep: SweepFile) -> int:
    """Return the number of trials of a whole sweep. A grid has no more than it has combinations."""
    if sweep.sampler != "grid":
        return sweep.trials or 0
    combinations = len(grid_of(sweep))
    return min(sweep.trials or combinations, combinations)


def metric_of(sweep: SweepFile) -> str:
    """Return the metric that is the score."""
    return sweep.metric or (_RETURNS[0] if config_of(sweep, {}).eval_interval else _RETURNS[1])
