"""All that a task's next step depends on, as tensors with one row for each environment.

They share the memory of the task's arrays, so that whoever keeps them makes a copy. A task of the same kind that is
given copies goes on exactly, and so do single environments, wherever they are dealt to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.sim.bridge import to_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.sim.kernel_task import KernelTask

_OBSERVATIONS = "observations/"


def rows_of(task: KernelTask[Any]) -> dict[str, torch.Tensor]:
    """Return everything by name, live. Shapes (num_envs, ...).

    Which of its two sets of observations a task wrote last is told by their names, and so is no state of its own.
    """
    sets = {f"{_OBSERVATIONS}{task.newest}/": "newest/", f"{_OBSERVATIONS}{1 - task.newest}/": "older/"}
    rows: dict[str, torch.Tensor] = {}
    for name, array in task.arrays.items():
        for which, age in sets.items():
            if name.startswith(which):
                name = _OBSERVATIONS + age + name.removeprefix(which)  # noqa: PLW2901
        rows[name] = to_torch(array)
    return rows | {f"host/{name}": torch.from_numpy(array) for name, array in task.host_state.items()}


def put_rows(task: KernelTask[Any], rows: Mapping[str, torch.Tensor]) -> None:
    """Give the task's first environments the states of `rows`, which has the names of `rows_of`."""
    live = rows_of(task)
    for name, values in rows.items():
        live[name][: len(values)].copy_(values)
    task.take_parameters()
    for name, values in rows.items():  # Again: taking parameters may have derived something from an older state.
        live[name][: len(values)].copy_(values)
