"""Plans as JSON: what a launching process sends to nodes and workers, and rank 0 to the other ranks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from shoal.config import LaunchConfig, TrainConfig
from shoal.config.checks import foreign_code
from shoal.config.evaluate import EvaluateConfig
from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError
from shoal.plan.job import EvaluatePlan, SweepPlan
from shoal.plan.launch import Plan
from shoal.plan.training import TrainPlan
from shoal.tasks import registry

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (TrainPlan, EvaluatePlan, SweepPlan)}

PlanT = TypeVar("PlanT", bound=Plan)


def to_json(plan: Plan) -> str:
    """Return a plan as a string, without the notes, which are for the user."""
    return json.dumps({"kind": type(plan).__name__, **to_plain(replace(plan, notes=()))})


def from_json(text: str, own: PlanT | None = None) -> PlanT:
    """Return the plan that `to_json` made into a string. Imports the task that it names.

    From a process that is not trusted it may name only code that `own`, this process's plan, names too.
    """
    data: dict[str, Any] = json.loads(text)
    kind = _KINDS[data.pop("kind")]
    if own is not None:
        found = foreign_code(_code_in(kind, to_plain(own)), _code_in(kind, data))
        if found is not None:
            raise UsageError(
                f"Rank 0 would import '{found[1]}' ({found[0]}), which this rank was not asked for: type the same "
                "command for every rank, with the task and the classes of the run that goes on."
            )
    return from_plain(kind, data | {"config": _read_config(kind, data["config"], own and own.config)})


def _code_in(kind: type[Plan], plan: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the parts of a plan's values that may name code: mappings with `task`, `env`, `learner`, `agent`."""
    if kind is EvaluatePlan:
        return plan["jobs"]
    if kind is SweepPlan:  # All flags, by their dotted names.
        choices = {name: parameter["choices"] for name, parameter in plan["sweep"]["parameters"].items()}
        return [plan["config"], plan["sweep"]["fixed"], choices]
    return [plan["config"]]


def _read_config(kind: type[Plan], config: dict[str, Any], own: LaunchConfig | None) -> LaunchConfig:
    """Return the configuration of a plan; of a training with the classes of its task and learner."""
    if kind is TrainPlan:
        task, learner = config["task"], config["learner"]
        known = own if isinstance(own, TrainConfig) else registry.resolve(task).defaults(task, learner)
        return from_plain(known, config)
    # Of an evaluation, environment and learner are those of each job.
    kept = {name: value for name, value in config.items() if name not in ("env", "agent")}
    return from_plain(EvaluateConfig if kind is EvaluatePlan else LaunchConfig, kept)


def read_workers(data: Mapping[str, Any]) -> Plan:
    """Return where the workers run, of the values of `to_json`, without importing a task."""
    config = from_plain(LaunchConfig, {each.name: data["config"][each.name] for each in fields(LaunchConfig)})
    return from_plain(Plan, {each.name: data[each.name] for each in fields(Plan)} | {"config": config})
