"""Inputs and outputs of a policy by term, which the manifest of each checkpoint records, and a later start compares."""

import math
from pathlib import Path

from rsl_rl.env import VecEnv

from shoal.config import TrainConfig
from shoal.envs.capabilities import capabilities_of
from shoal.errors import UsageError
from shoal.plan.checkpoints import Checkpoint
from shoal.plan.resume import Start, new_run_words


def interface_of(env: VecEnv) -> dict[str, int]:
    """Return the columns of each observation term, as `group/term`, or of a group without terms; and of the actions."""
    terms, columns = capabilities_of(env).observation_terms, dict[str, int]()
    for group, values in env.get_observations().items():
        found = {f"{group}/{name}": count for name, count in terms.get(group, {}).items()}
        columns |= found or {str(group): math.prod(values.shape[1:])}
    return columns | {"actions": env.num_actions}


def refuse_other_terms(config: TrainConfig, start: Start, model: Path, env: VecEnv) -> None:
    """Refuse environments with other terms than those of a checkpoint; new runs, with other numbers of columns.

    `model` is the checkpoint on this machine.
    """
    saved, now = Checkpoint(model.parent).manifest().get("interface"), interface_of(env)
    if not isinstance(saved, dict):
        return
    then = {name: columns for name, columns in saved.items() if isinstance(columns, int)}
    if list(then.items()) == list(now.items()):
        return
    fits = _sizes(then) == _sizes(now)
    if fits and start.mode == "weights":
        return
    changes = [f"{name} is new" for name in now if name not in then]
    changes += [f"{name} is gone" for name in then if name not in now]
    both = [name for name in now if name in then]
    changes += [f"{name} has {now[name]} columns, not {then[name]}" for name in both if now[name] != then[name]]
    new_run = "train a new run from the beginning, as its weights take no other columns"
    if fits:
        new_run = f"start a new run from its weights: {new_run_words(config, start.model)}"
    raise UsageError(
        f"The terms of {config.task} are not those that the checkpoint {start.model} was trained with "
        f"({'; '.join(changes) or 'their order changed'}): undo that, or {new_run}"
    )


def _sizes(interface: dict[str, int]) -> dict[str, int]:
    """Return the columns of each group, and of the actions."""
    groups = {name.partition("/")[0] for name in interface}
    return {group: sum(n for name, n in interface.items() if name.partition("/")[0] == group) for group in groups}
