"""Task validation: run the stages of a kernel task while it is built, and refuse a task with an error.

A kernel that leaves a column unwritten trains badly without a message. All checks run before the first step; nothing is
checked, and nothing is read back to the host, on the step path.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import warp as wp

from shoal.errors import ShoalError, did_you_mean
from shoal.sim.bounds import checked_launches
from shoal.sim.graphs import difference, refuse_capture

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shoal.config.env import EnvConfig
    from shoal.sim.bounds import Arguments
    from shoal.sim.kernel_task import KernelTask

Snapshot = dict[str, np.ndarray]

_TOLERANCE = 1e-4
"""Relative and absolute. Sums made with atomics on a GPU differ in their last digits from launch to launch."""
_PLAIN_RUNS = 3
"""How often a step is launched kernel by kernel from one state, to measure how far such runs are apart."""
_NOISE = 10.0
"""How many times that distance a replay may be away from them."""
_ATTEMPTS = 3
"""States from which a replay has to differ before the task is refused: a threshold may be crossed by chance in one."""
_STEPS = 6
"""How many steps are made to see which arrays change."""
_SHALLOW = 2
"""How deep lists and tuples of a task are searched for arrays that its kernels write to."""
_DEPTH = 4
"""How deep arrays are searched for below a task: MuJoCo Warp's contacts are at task.engine._data.contact."""

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
    if task.best_metric is not None and task.best_metric not in task.metrics:
        message = (
            f"The task {name} names '{task.best_metric}' as its best_metric, which is none of its metrics "
            f"({', '.join(task.metrics) or 'it has none'}): name one of them, or leave it out."
        )
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


def check_stages(task: KernelTask[Any]) -> None:
    """Run every stage of a step once, with random actions and on arrays filled with NaN, and check what was written.

    All arrays are restored afterwards.

    Raises:
        ShoalError: A stage left a value unwritten, or wrote one that it must not.
    """
    fresh = snapshot(task)
    _act(task, np.random.default_rng(0))
    with checked_launches(type(task).__name__):
        _check_observations(task)
        _check_terms(task)
        _check_mask(task)
    restore(task, fresh)


def _act(task: KernelTask[Any], rng: np.random.Generator) -> None:
    """Draw actions as an untrained policy does."""
    task.actions.assign(rng.standard_normal(task.actions.shape, dtype=np.float32))


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


def check_capture(task: KernelTask[Any]) -> None:
    """Check that a replay of the captured step does what the step does when its kernels are launched one by one.

    The launches are compared exactly: the step is captured again some steps later, and has to launch the same kernels
    with the same arguments. The numbers are compared from the beginning of an episode. MuJoCo Warp orders contacts by
    atomic counters, so that two runs of a step on a GPU differ; plain runs show by how much.

    All arrays are restored afterwards.

    Raises:
        ShoalError: A replay does something else, as it does where a method does more than launch kernels.
    """
    if not task.is_recorded:
        return
    fresh = snapshot(task)
    task.restart(task.seed)
    _act(task, np.random.default_rng(1))
    suspects: dict[int, set[str]] = {}
    for _ in range(_ATTEMPTS):
        for index in range(2):
            differing = _differing_numbers(task, index)
            suspects[index] = suspects.get(index, differing) & differing
        if not any(suspects.values()):
            break
    _compare_launches(task)
    restore(task, fresh)
    differing = sorted(set().union(*suspects.values()))
    if differing:
        message = (
            f"A captured step of {type(task).__name__} gives other values in {', '.join(differing)} than the same step "
            f"launched kernel by kernel: {_ONLY_LAUNCHES}"
        )
        raise ShoalError(message)


_ONLY_LAUNCHES = (
    "simulate(), reset() and observe() may only launch kernels, and what changes from step to step must live in arrays "
    "made with self.array()."
)


def _compare_launches(task: KernelTask[Any]) -> None:
    """Capture the step again, and compare its launches with those of the graphs that will be replayed.

    Raises:
        ShoalError: They differ.
    """
    # From the first capture to this one the stages run 11, 17 or 23 times: a task that alternates between a few sets of
    # arrays is at another one now.
    for _ in range(3):
        task.run_stages(0)
    lasting = {array.ptr for array in _arrays_below(task) if array.ptr is not None}
    for index in range(2):
        found = difference(task.scripts[index].launches, task.capture(index).launches, lasting)
        if found is not None:
            message = (
                f"A step of {type(task).__name__} launches other kernels than when it was captured ({found}): "
                f"{_ONLY_LAUNCHES}"
            )
            raise ShoalError(message)


def _differing_numbers(task: KernelTask[Any], index: int) -> set[str]:
    """Run one step several times from the present state, and go on to the next state.

    Returns:
        Names of arrays to which a replay gives other values than launches one by one, by more than the noise of these.
    """
    before = snapshot(task)
    plain: list[Snapshot] = []
    for _ in range(_PLAIN_RUNS):
        task.run_stages(index)
        plain.append(snapshot(task))
        restore(task, before)
    try:
        task.replay(index)
    except RuntimeError as error:  # CUDA instantiates a graph when it is launched first.
        raise refuse_capture(task.device, error) from error
    replayed = snapshot(task)
    return {name for name, values in replayed.items() if not _is_alike(values, [each[name] for each in plain])}


def _is_alike(values: np.ndarray, plain: Sequence[np.ndarray]) -> bool:
    """Whether values are as near to the first of several plain runs as ten times the distance of these."""
    if values.dtype.kind != "f":
        noise = max(_count_different(one, other) for one, other in combinations(plain, 2))
        return _count_different(values, plain[0]) <= _NOISE * noise
    noise = np.maximum.reduce([_distance(one, other) for one, other in combinations(plain, 2)])
    allowed = _NOISE * noise.max(initial=0.0) + _TOLERANCE * (1.0 + np.abs(np.nan_to_num(plain[0])))
    return bool((_distance(values, plain[0]) <= allowed).all())


def _distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the distance of each two numbers; 0 where both are the same infinity or NaN, and infinite where one is."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.abs(one.astype(np.float64) - other)
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def _count_different(one: np.ndarray, other: np.ndarray) -> int:
    """Return how many environments have other values."""
    return int((one != other).reshape(len(one), -1).any(axis=1).sum())


def check_declared(task: KernelTask[Any]) -> None:
    """Make some steps, and see that nothing changes which the task does not know: a checkpoint would go on without it.

    All arrays are restored afterwards.

    Raises:
        ShoalError: If an array does that was not made with `self.array`, or a kernel writes outside an array.
    """
    before, rng = snapshot(task), np.random.default_rng(2)
    task.restart(task.seed)
    _act(task, rng)
    with checked_launches(type(task).__name__) as arguments:
        task.run_stages(0)
    strays = _strays(task, arguments)
    values = [array.numpy().copy() for _, array in strays]
    for step in range(_STEPS):
        _act(task, rng)
        task.run_stages(step % 2)
    changed = [
        name for (name, array), old in zip(strays, values, strict=True) if array.numpy().tobytes() != old.tobytes()
    ]
    restore(task, before)
    if changed:
        message = (
            f"The kernels of {type(task).__name__} write to {changed[0]}, which no checkpoint would hold: make it with "
            "self.array(...), one row for each environment."
        )
        raise ShoalError(message)


def _strays(task: KernelTask[Any], arguments: Arguments) -> list[tuple[str, wp.array]]:
    """Return the arrays that are no part of declared ones: a task's attributes first, then its kernels' arguments."""
    known = [array for array in task.arrays.values() if array.ptr is not None]
    held = [(name, value) for name, value in vars(task).items() if isinstance(value, wp.array | dict | list | tuple)]
    named = [(f"self.{name}", array) for name, value in held for array in _arrays_below(value, _SHALLOW)]
    named += [(name, array) for name, reference in arguments.items() if (array := reference()) is not None]
    return [
        (name, array)
        for name, array in named
        if array.ptr is not None and not any(0 <= array.ptr - one.ptr < one.capacity for one in known)
    ]


def _arrays_below(value: object, depth: int = _DEPTH) -> Iterator[wp.array]:
    """Yield the arrays that an object holds, in its attributes, in containers, and in objects below them."""
    if isinstance(value, wp.array):
        yield value
    elif depth:
        parts: Iterable[object] = ()
        if isinstance(value, dict):
            parts = value.values()
        elif isinstance(value, list | tuple):
            parts = value
        elif hasattr(value, "__dict__") and not isinstance(value, type | ModuleType):
            parts = vars(value).values()
        for part in parts:
            yield from _arrays_below(part, depth - 1)


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
