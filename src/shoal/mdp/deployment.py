"""What a controller needs to act as a task of terms does: read from its declarations and its model.

Everything is plain values, which exports carry as metadata. Keys that mjlab's exports have keep their names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import mujoco

from shoal.mdp.accesses import python_of
from shoal.mdp.actuators import acts_on_scalar_joint, joint_gains, joint_targets
from shoal.mdp.config import members
from shoal.mdp.values import numbers_by_name

if TYPE_CHECKING:
    from shoal.mdp.binding import Bound
    from shoal.mdp.task import TermsTask
    from shoal.mdp.terms import DelayedTerm, Term

_UNIT = re.compile(r"\[([^\]]+)\]")


def deployment_of(task: TermsTask[Any]) -> dict[str, Any]:
    """Return observations, actions, commands and the numbers of joints, by the keys of docs/guide/export.md."""
    actions = {name: _action(task, name, bound) for name, bound in task.bound.actions.items()}
    return _joints(task) | {
        "physics_step_s": float(task.model.opt.timestep),
        "integrator": mujoco.mjtIntegrator(task.model.opt.integrator).name.removeprefix("mjINT_").lower(),
        "default_qpos": task.home().tolist(),
        "actions": actions,
        "action_scale": [number for each in actions.values() for number in each["scale"]],
        "command_names": list(task.bound.commands),
        "commands": {name: _command(task, name) for name in task.bound.commands},
        "roles": dict(task.roles()),
        "observations": {
            group: [_observation(task, group, name, bound) for name, bound in bounds.items()]
            for group, bounds in task.bound.observations.items()
        },
    }


def _described(bound: Bound, term: Term) -> dict[str, Any]:
    """Return function, parameters, unit and columns of a term; the unit is the one in its function's docstring."""
    python = python_of(bound.function)
    unit = _UNIT.search(python.__doc__ or "")
    return {
        "function": python.__name__,
        "parameters": {name: getattr(term, name) for name in term.parameters},
        "unit": unit[1] if unit else "",
        "columns": list(bound.columns) if not bound.shape else [],
    }


def _action(task: TermsTask[Any], name: str, bound: Bound) -> dict[str, Any]:
    term, binder = task.config.terms("actions")[name], task.binder
    position = binder.positions.get(f"actions.{name}.scale")
    scales = [None if position is None else binder.numbers[position]] * len(bound.columns)
    arrays = {each: binder.arrays.get(f"{bound.name}_{each}") for each in ("scale", "swing", "shift")}
    numbers = {"scale": scales} | {each: array.numpy().tolist() for each, array in arrays.items() if array is not None}
    return {**_described(bound, term), "clip": term.clip, **numbers, **_lags(term)}


def _observation(task: TermsTask[Any], group: str, name: str, bound: Bound) -> dict[str, Any]:
    term = members(task.config.terms("observations")[group])[name]
    limits = term.clip
    if not isinstance(limits, tuple):
        limit = _by_column(f"{name}.clip", limits, bound) if limits else None
        limits = limit and ([-each for each in limit] if isinstance(limit, list) else -limit, limit)
    treated = {"clip": limits and list(limits), "scale": _by_column(f"{name}.scale", term.scale, bound)}
    if bound.shape:
        treated["shape"] = [bound.width * term.num_values, *bound.shape]
    return {"name": name, **_described(bound, term), **treated, **_lags(term), "history_length": term.num_values}


def _by_column(path: str, numbers: Any, bound: Bound) -> Any:
    """Return one number for all columns, or a list of one for each."""
    return numbers if isinstance(numbers, int | float) else numbers_by_name(path, numbers, bound.columns)


def _lags(term: DelayedTerm) -> dict[str, int]:
    """Return the least and the largest delay in the training [steps]."""
    return {"delay_min_lag": term.delay_min_lag, "delay_max_lag": term.delay_max_lag}


def _command(task: TermsTask[Any], name: str) -> list[dict[str, Any]]:
    """Return name, range and unit of each column of a command; a range is the parameter of the column's name.

    Where a curriculum has changed it, it is the one that the curriculum has come to.
    """
    first, term = task.binder.commands[name], task.config.terms("commands")[name]
    shown = list(task.commands)[first : first + len(term.columns)]
    held = {each.path: each.value for each in task.curricula.reached()}

    def ends(column: str) -> list[float | None]:
        declared = getattr(term, column) if column in term.parameters else (None, None)
        return [held.get(f"commands.{name}.{column}.{at}", each) for at, each in enumerate(declared)]

    ranges = [ends(each) for each in term.columns]
    return [
        {"name": column, "low": low, "high": high, "unit": unit}
        for column, (low, high), unit in zip(shown, ranges, term.units, strict=True)
    ]


def _joints(task: TermsTask[Any]) -> dict[str, Any]:
    """Return names and numbers of the joints that actuators act on, in the order of these; and the default pose."""
    model, home = task.model, task.home()
    addresses = zip(task.binder.names.names("joint"), model.jnt_qposadr, strict=True)
    indices = [index for index in range(model.nactuator) if acts_on_scalar_joint(model, index)]
    joints = model.actuator_trnid[indices, 0]
    kp, kd, limits = joint_gains(model, indices)
    dofs = model.jnt_dofadr[joints]
    return {
        "actuator_names": [model.actuator(index).name for index in indices],
        "joint_names": [model.joint(int(joint)).name for joint in joints],
        "default_joint_pos": home[model.jnt_qposadr[joints]].tolist(),
        "default_pose": {name: float(home[address]) for name, address in addresses if name},
        "joint_stiffness": (kp + 0.0).tolist(),  # Not -0 of an actuator that is no position actuator.
        "joint_damping": (kd + 0.0).tolist(),
        "joint_torque_limits": limits.tolist(),
        "joint_armature": model.dof_armature[dofs].tolist(),
        "joint_frictionloss": model.dof_frictionloss[dofs].tolist(),
        "joint_viscous_damping": model.dof_damping[dofs].tolist(),
        "joint_target_limits": joint_targets(model, indices).tolist(),
    }
