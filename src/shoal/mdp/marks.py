"""What commands draw beside the scene: commanded and actual velocities of the base."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import mujoco
import numpy as np

from shoal.mdp.terms import Metric, MetricTerm
from shoal.sim.render.marks import BLUE, Arrow, Mark

if TYPE_CHECKING:
    from shoal.mdp.binding import Bound

FunctionT = TypeVar("FunctionT")
Marks = Callable[[Any, int, Mapping[str, np.ndarray]], Sequence[Mark]]
_SECONDS = 0.5
"""An arrow is as long as the way, or the turn, of so much time [s]."""
_APART = (0.0, 0.0, 0.04)
"""From the commanded arrows to the actual ones, so that neither hides the other [m]."""


def shows(marks: Marks | None = None, **metrics: Any) -> Callable[[FunctionT], FunctionT]:
    """Declare what a command brings along, beside the columns that its function draws.

    `marks` returns what videos and viewers draw for one environment, from the task, the command's first column and the
    environment's `row`, see `Task.marks`. `metrics` are functions `(state, env, command)` by name: that of
    `error` of the command `twist` is logged as ``Metrics/twist/error``.
    """

    def mark(function: Any) -> Any:
        function.marks, function.metrics = marks, metrics
        return function

    return mark


def metrics_of(commands: Mapping[str, Bound]) -> dict[str, MetricTerm]:
    """Return the metrics that commands bring along, by command and name."""
    return {
        f"{command}/{name}": Metric(function, command=command)
        for command, bound in commands.items()
        for name, function in getattr(bound.function, "metrics", {}).items()
    }


def twist_arrows(task: Any, first: int, row: Mapping[str, np.ndarray]) -> list[Mark]:
    """Return arrows of a commanded velocity of the base, and of its actual one: linear ones, and turns along z."""
    x, y, turn = row["commands"][first:][:3]
    base, qvel, to_world = row["qpos"][:7], row["qvel"], np.empty(9)
    mujoco.mju_quat2Mat(to_world, base[3:].astype(np.float64))
    to_world = to_world.reshape(3, 3)
    up = to_world[:, 2]
    lin_vel = qvel[:3] - up * (up @ qvel[:3])  # As the command, along x and y of the base.
    start = np.array([base[0], base[1], base[2] + task.height_of_arrows])
    commanded = [Arrow(start, _SECONDS * to_world @ (x, y, 0.0)), Arrow(start, _SECONDS * turn * up)]
    start = start + _APART
    return [*commanded, Arrow(start, _SECONDS * lin_vel, BLUE), Arrow(start, _SECONDS * qvel[5] * up, BLUE)]
