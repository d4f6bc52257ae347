"""Tries a kernel task out while it is being built, and says what is wrong with it in words.

A kernel that forgets to write a column trains badly and silently; here it is told apart from one that works.
All of this happens before the first step: nothing is checked, and nothing is read back to the host, on the
step path.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import warp as wp

from shoal.errors import ShoalError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.config.env import EnvConfig
    from shoal.sim.kernel_task import KernelTask

Snapshot = dict[str, np.ndarray]

_TOLERANCE = 1e-4
"""Relative and absolute. Sums made with atomics on a GPU differ in their last digits from launch to launch."""

_HOST = "host/"
"""What the names of the simulator's own arrays begin with in a snapshot."""


def check_declarations(task: type[KernelTask[Any]], config: EnvConfig) -> None:
    """Hold what a task class declares against what the base class needs.

    Raises:
        ShoalError: If a declaration is missing or cannot be meant.
    """
    name = task.__name__
    for attribute, example in (
        ("observations", '{"policy": 5}'),
        ("num_actions", "1"),
        ("reward_terms", '("upright",)'),
    ):
        if not getattr(task, attribute, None):
            message = f"The task {name} does not declare '{attribute}': add {attribute} = {example}, say, to the class."
            raise ShoalError(message)
    known = [field.name for field in fields(config)]
    for term in task.reward_terms:
        weight = f"{term}_weight"
        if weight not in known:
            message = (
                f"The task {name} has the reward term '{term}', but its {type(config).__name__} has no field "
                f"'{weight}'.{did_you_mean(weight, known)} Add it: its value is the weight of the term."
            )
            raise ShoalError(message)


def rehearse(task: KernelTask[Any]) -> None:
    """Run every stage of a step once, on arrays filled with NaN, and look at what was written.

    Afterwards all arrays are as they were.

    Raises:
        ShoalError: If a stage left something unwritten, or touched what it must not.
    """
    fresh = snapshot(task)
    _check_observations(task)
    _check_terms(task)
    _check_mask(task)
    restore(task, fresh)


def _check_observations(task: KernelTask[Any]) -> None:
    """Begin an episode everywhere, with observations still unwritten, and see that all get written.

    Raises:
        ShoalError: If one did not.
    """
    for array in task.obs.values():
        array.fill_(np.nan)
    task.done.fill_(value=True)
    task.seed_rng(task.seed)
    task.reset()
    task.observe()
    for group in task.observations:
        unwritten = _columns_not_finite(task.obs[group])
        if unwritten:
            message = (
                f"{type(task).__name__}.observe() left columns {unwritten} of the group '{group}' "
                "unwritten or not finite: write every column of every environment, and look at where reset() begins."
            )
            raise ShoalError(message)


def _check_terms(task: KernelTask[Any]) -> None:
    """Simulate one step, with reward terms still unwritten, and see that all get written.

    Raises:
        ShoalError: If one did not.
    """
    task.terms.fill_(np.nan)
    task.simulate()
    unwritten = _columns_not_finite(task.terms)
    if unwritten:
        names = ", ".join(task.reward_terms[column] for column in unwritten)
        message = (
            f"{type(task).__name__}.simulate() left the reward terms {names} unwritten or not finite: write "
            "every column of `terms` for every environment, in the order of `reward_terms`."
        )
        raise ShoalError(message)


def compare_records(task: KernelTask[Any]) -> None:
    """Compare a replay of each record of the step with the same step launched kernel by kernel.

    Raises:
        ShoalError: If they differ, as they do when a method does more than launch kernels.
    """
    if not task.is_recorded:
        return
    before = snapshot(task)
    for index in range(2):
        task.run_stages(index)
        launched = snapshot(task)
        restore(task, before)
        task.replay(index)
        replayed = snapshot(task)
        restore(task, before)
        differing = [name for name, values in launched.items() if not _alike(values, replayed[name])]
        if differing:
            message = (
                f"A recorded step of {type(task).__name__} gives other values in {', '.join(differing)} than the "
                "same step launched kernel by kernel: simulate(), reset() and observe() may only launch kernels, "
                "and what changes from step to step must live in arrays made with self.array()."
            )
            raise ShoalError(message)


def check_declared(task: KernelTask[Any]) -> None:
    """Step once, and see that nothing changes which the task does not know: a checkpoint would go on without it.

    Raises:
        ShoalError: If an array does that was not made with `self.array`.
    """
    before, strays = snapshot(task), _strays(task)
    values = {name: array.numpy().copy() for name, array in strays.items()}
    for index in range(2):
        task.run_stages(index)
    changed = sorted(name for name, array in strays.items() if array.numpy().tobytes() != values[name].tobytes())
    restore(task, before)
    if changed:
        message = (
            f"The kernels of {type(task).__name__} write to self.{changed[0]}, which no checkpoint would hold: make it "
            f"with self.array('{changed[0]}', ...), one row for each environment."
        )
        raise ShoalError(message)


def _strays(task: KernelTask[Any]) -> dict[str, wp.array]:
    """Return the arrays among a task's attributes that are none of its declared ones, by the attribute's name."""
    known = {array.ptr for array in task.arrays.values()}
    found: dict[str, wp.array] = {}
    for name, value in vars(task).items():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        for part in parts:
            if isinstance(part, wp.array) and part.ptr is not None and part.ptr not in known:
                found[name] = part
    return found


def snapshot(task: KernelTask[Any]) -> Snapshot:
    """Return a copy of every array of a task, in the host's memory."""
    wp.synchronize_device(task.device)
    arrays = {name: array.numpy().copy() for name, array in task.arrays.items()}
    return arrays | {f"{_HOST}{name}": array.copy() for name, array in task.host_state.items()}


def restore(task: KernelTask[Any], before: Snapshot) -> None:
    """Put every array of a task back to what `snapshot` found."""
    for name, array in task.arrays.items():
        array.assign(before[name])
    for name, array in task.host_state.items():
        array[...] = before[f"{_HOST}{name}"]
    wp.synchronize_device(task.device)


def _columns_not_finite(array: wp.array) -> Sequence[int]:
    """Return the columns that hold NaN or infinity in any environment."""
    return np.flatnonzero(~np.isfinite(array.numpy()).all(axis=0)).tolist()


def _check_mask(task: KernelTask[Any]) -> None:
    """Reset every second environment and see that the others stayed as they were.

    Raises:
        ShoalError: If one of the others changed.
    """
    chosen = np.arange(task.num_envs) % 2 == 1
    task.done.assign(chosen)
    before = snapshot(task)
    task.reset()
    after = snapshot(task)
    for name in before:
        rows = [values[name][~chosen].tobytes() for values in (before, after)]
        if rows[0] != rows[1]:
            message = (
                f"{type(task).__name__}.reset() changed the array '{name}' of environments whose done flag is not "
                "set: begin the kernel with `if not done[env]: return`."
            )
            raise ShoalError(message)


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays hold the same values, up to the last digits of floating-point numbers."""
    if one.dtype.kind == "f":
        return np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
    return one.tobytes() == other.tobytes()
