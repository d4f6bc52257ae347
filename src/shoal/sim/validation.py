"""Task validation: run the stages of a kernel task while it is built, and refuse a task with an error.

A kernel that leaves a column unwritten trains badly without a message. All checks run before the first step; nothing is
checked, and nothing is read back to the host, on the step path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import warp as wp

from shoal.config.env import EnvConfig
from shoal.errors import ShoalError, did_you_mean
from shoal.sim.bookkeeping import LARGEST
from shoal.sim.bounds import TRUSTED, find_bad_index
from shoal.sim.graphs import LaunchLog, capture_error, difference
from shoal.sim.isolation import isolated

if TYPE_CHECKING:
    from shoal.sim.task import Task as AnyTask

Task: TypeAlias = "AnyTask[Any]"
Snapshot = dict[str, np.ndarray]

_STEPS = 6
"""Uncaptured steps between two captures, the seventh with the second one: a task that alternates between two to six
sets of arrays is at another one then."""
_SHALLOW = 2
"""Depth to which lists and tuples of a task are searched for arrays that its kernels write to."""
_DEPTH = 4
"""Depth to which arrays are searched for below a task: MuJoCo Warp's contacts are at task.engine._data.contact."""
_HOST = "host/"
"""Prefix of the simulator's own arrays in a snapshot."""

_ONLY_LAUNCHES = (
    "simulate(), reset() and observe() may only launch kernels, and what changes from step to step must live in arrays "
    "made with self.array()."
)


def build_once(task: type[Task], config: Any) -> None:  # noqa: ANN401  The task's own class of settings.
    """Build the model of a task, bind its terms, and check the indices of its kernels, in a few steps on the CPU.

    Raises:
        ShoalError: The task's declarations, its model, its terms or its kernels are at fault.
    """
    with isolated("cpu"):
        probe = task.__new__(task)
        probe.configure(config, 1, "cpu", 0)
        probe.build()
        plain = {"step_graph": False} | ({"engine": "mujoco"} if hasattr(config, "engine") else {})
        fault = find_bad_index(partial(_run, task, replace(config, **plain)))
    if fault is not None:
        what, where = fault
        raise ShoalError(
            f"The {what} of {task.__name__} reads or writes outside of an array, {where}: keep its indices inside the "
            "array's shape, or make the array larger."
        )


def _run(task: type[Task], config: Any) -> None:  # noqa: ANN401
    """Build a task on the CPU, and make some steps in which all that waits for its time happens."""
    made, rng = task(config, num_envs=4, device="cpu", seed=0), np.random.default_rng(3)
    for _ in range(_STEPS):
        _draw_actions(made, rng)
        for left in made.timers:
            left.zero_()
        made.step()


def check_step(task: Task) -> None:
    """Run each stage of a step where Warp refuses a kernel that takes an array of another device.

    Raises:
        ShoalError: There is one, or the task is at fault as `check_stages` finds.
    """
    usual = wp.config.launch_array_access_mode
    wp.config.launch_array_access_mode = wp.config.LaunchArrayAccessMode.STRICT
    try:
        check_stages(task)
    except RuntimeError as error:
        found = re.search(r"kernel '(.+?)'.*STRICT.*argument '(.+?)' is on device=(\S+)", str(error))
        if found is None:
            raise
        raise _elsewhere(task, *found.groups()) from error
    finally:
        wp.config.launch_array_access_mode = usual


def _elsewhere(task: Task, kernel: str, argument: str, device: object) -> ShoalError:
    return ShoalError(
        f"The kernel '{kernel}' of {type(task).__name__} runs on {task.device}, but its argument '{argument}' has an "
        f"array on {device}: make it with self.array(...), or with device=self.device."
    )


def check_declarations(task: Any, config: EnvConfig) -> None:  # noqa: ANN401  The class of a task.
    """Check the class attributes of a task.

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
    check_best_metric(task, name)
    known = [field.name for field in fields(config)]
    for term in task.reward_terms:
        weight = f"{term}_weight"
        if weight not in known:
            raise ShoalError(
                f"The task {name} has the reward term '{term}', but its {type(config).__name__} has no field "
                f"'{weight}'.{did_you_mean(weight, known)} Add it: its value is the weight of the term."
            )


def check_best_metric(task: Any, name: str) -> None:  # noqa: ANN401  A task, or its class.
    """Check that what scores checkpoints is a metric, in a task of this name.

    Raises:
        ShoalError: It is none.
    """
    if task.best_metric is not None and task.best_metric not in task.metrics:
        raise ShoalError(
            f"The task {name} names '{task.best_metric}' as its best_metric, which is none of its metrics "
            f"({', '.join(task.metrics) or 'it has none'}): name one of them, or leave it out."
        )


def check_stages(task: Task) -> None:
    """Run every stage of a step once, with random actions and on arrays filled with NaN, and check what was written.

    All arrays are restored afterwards.

    Raises:
        ShoalError: A stage left a value unwritten, or wrote one that it must not.
    """
    before = snapshot(task)
    _draw_actions(task, np.random.default_rng(0))
    _check_observations(task)
    _check_terms(task)
    _check_mask(task)
    task.run()
    restore(task, before)


def _draw_actions(task: Task, rng: np.random.Generator) -> None:
    """Draw actions as an untrained policy does."""
    task.actions.assign(rng.standard_normal(task.actions.shape, dtype=np.float32))


def _check_observations(task: Task) -> None:
    """Begin an episode everywhere, and check that all observations get written."""
    for array in task.obs.values():
        array.fill_(np.nan)
    task.done.fill_(value=True)
    task.seed_rng(task.seed)
    task.run("reset", "derive", "observe")
    for group, array in task.obs.items():
        unwritten = _columns_not_finite(array)
        if unwritten:
            raise ShoalError(
                f"{type(task).__name__}.observe() left columns {unwritten} of the group '{group}' "
                "unwritten or not finite: write every column of every environment, and look at where reset() begins."
            )


def _check_terms(task: Task) -> None:
    """Simulate one step, and check that all reward terms get written."""
    _check_state(task, "where its episodes begin")
    task.terms.fill_(np.nan)
    task.run("act", "physics", "reward")
    _check_state(task, "after the first step")
    unwritten = _columns_not_finite(task.terms)
    if unwritten:
        names = ", ".join(task.reward_terms[column] for column in unwritten)
        raise ShoalError(
            f"{type(task).__name__}.simulate() left the reward terms {names} unwritten or not finite: write "
            "every column of `terms` for every environment, in the order of `reward_terms`."
        )


def _check_state(task: Task, when: str) -> None:
    """Check that not every environment has diverged."""
    diverged = task.diverged.numpy().copy()
    for array in task.checked_state:
        if array is not None:
            diverged |= ~(np.abs(array.numpy()) < LARGEST).all(axis=1)
    if diverged.all():
        raise ShoalError(
            f"All environments of {type(task).__name__} have diverged {when}: look at the model, such as its "
            "masses, and at what is drawn at random or written to the state."
        )


def _check_mask(task: Task) -> None:
    """Reset every second environment, and check that the others stay as they were."""
    chosen = np.arange(task.num_envs) % 2 == 1
    task.done.assign(chosen)
    before = snapshot(task)
    task.run("reset")
    for name, values in snapshot(task).items():
        if values[~chosen].tobytes() != before[name][~chosen].tobytes():
            raise ShoalError(
                f"{type(task).__name__}.reset() changed the array '{name}' of environments whose done flag is not "
                "set: begin the kernel with `if not done[env]: return`."
            )


def check_capture(task: Task) -> None:
    """Check that a step does nothing but launch kernels, the same ones each time, on arrays that checkpoints hold.

    A second capture, some steps later, must launch the same kernels with the same arguments, and change no array: it
    runs no kernel. On the CPU, whose results are exact, the captured step must also give those of its kernels launched
    one by one, but where two such runs differ, as with random numbers of torch. All arrays are restored afterwards.

    Raises:
        ShoalError: A method does more than launch kernels, an array that was not made with `self.array` changes, or one
            of a kernel is on another device.
    """
    before, rng = snapshot(task), np.random.default_rng(1)
    task.restart(task.seed)
    _draw_actions(task, rng)
    with LaunchLog() as log:
        task.run()
    undeclared = _undeclared(task, log)
    values = [array.numpy().copy() for _, array in undeclared]
    for _ in range(_STEPS - 1):
        _draw_actions(task, rng)
        task.run()
    for (name, array), old in zip(undeclared, values, strict=True):
        if array.numpy().tobytes() != old.tobytes():
            raise ShoalError(
                f"The kernels of {type(task).__name__} write to {name}, which no checkpoint would hold: make it with "
                "self.array(...), one row for each environment."
            )
    differing = _differing_if_captured(task) if task.graph.is_captured else set[str]()
    restore(task, before)
    if differing:
        raise ShoalError(
            f"A step of {type(task).__name__} does more than launch kernels, and so differs in "
            f"{', '.join(sorted(differing))} when it is captured: {_ONLY_LAUNCHES}"
        )


def _differing_if_captured(task: Task) -> set[str]:
    """Return the arrays that a capture changes, or that a captured step computes differently."""
    start = snapshot(task)
    lasting = {array.ptr for array in _arrays_below(task) if array.ptr is not None}
    found = difference(task.graph.launches, task.capture().launches, lasting)
    if found is not None:
        raise ShoalError(
            f"A step of {type(task).__name__} launches other kernels than when it was captured ({found}): "
            f"{_ONLY_LAUNCHES}"
        )
    differing = _differing(start, snapshot(task))
    plain, again = (_after(task, start, task.run) for _ in range(2))
    try:
        captured = _after(task, start, task.graph.launch)
    except RuntimeError as error:  # CUDA instantiates a graph when it is launched first.
        raise capture_error(task.device, error) from error
    if not task.device.is_cuda:  # There, sums by atomics differ in their last digits from run to run.
        differing |= _differing(plain, captured) - _differing(plain, again)
    return differing


def _after(task: Task, start: Snapshot, step: Callable[[], None]) -> Snapshot:
    """Return the arrays after a step from a snapshot."""
    restore(task, start)
    step()
    return snapshot(task)


def _differing(one: Snapshot, other: Snapshot) -> set[str]:
    """Return the names of arrays that are not equal to the last bit."""
    return {name for name, values in one.items() if values.tobytes() != other[name].tobytes()}


def _undeclared(task: Task, log: LaunchLog) -> list[tuple[str, wp.array]]:
    """Return the arrays that are no part of declared ones: a task's attributes first, then its kernels' arguments.

    Raises:
        ShoalError: One of an argument is on another device.
    """
    known = [array for array in task.arrays.values() if array.ptr is not None]
    held = [(name, value) for name, value in vars(task).items() if isinstance(value, wp.array | dict | list | tuple)]
    named = [(f"self.{name}", array) for name, value in held for array in _arrays_below(value, _SHALLOW)]
    for kernel, label, reference in log.arrays:
        if kernel.func.__module__.startswith(TRUSTED) or (array := reference()) is None:
            continue
        if array.device not in (task.device, None):
            raise _elsewhere(task, kernel.key, label, array.device)
        named.append((f"'{label}' of the kernel '{kernel.key}'", array))
    return [
        (name, array)
        for name, array in named
        if array.ptr is not None and not any(0 <= array.ptr - one.ptr < one.capacity for one in known)
    ]


def _arrays_below(value: object, depth: int = _DEPTH) -> Iterator[wp.array]:
    """Yield the arrays in an object's attributes, in containers, and in objects below them."""
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


def snapshot(task: Task) -> Snapshot:
    """Return a copy of every array of a task, in the host's memory."""
    wp.synchronize_device(task.device)
    arrays = {name: array.numpy().copy() for name, array in task.arrays.items()}
    return arrays | {f"{_HOST}{name}": array.copy() for name, array in task.host_state.items()}


def restore(task: Task, before: Snapshot) -> None:
    """Restore every array of a task from a snapshot."""
    for name, array in task.arrays.items():
        array.assign(before[name])
    for name, array in task.host_state.items():
        array[...] = before[f"{_HOST}{name}"]
    wp.synchronize_device(task.device)


def _columns_not_finite(array: wp.array) -> Sequence[int]:
    """Return the columns that hold NaN or infinity in any environment."""
    return np.flatnonzero(~np.isfinite(array.numpy()).all(axis=0)).tolist()
