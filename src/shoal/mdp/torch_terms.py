"""Terms that are Python functions on torch tensors, for prototypes: called in each step, outside of captured graphs.

Such a function has the parameters of a `wp.func` but for `env`: it computes all environments at once::

    def reach(state, site: SiteId, height: Tensor) -> Tensor:
        return state.site_xpos[:, site, 2] > height

Fields of `state` are tensors of shape (num_envs, ...) over the memory of the task's arrays; fields of structs, such as
``joints.qpos``, are tensors of one entry for each selected name. A number is a tensor on the device, so that a
curriculum changes it as it changes that of a `wp.func`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import warp as wp

from shoal.errors import ShoalError
from shoal.mdp.accesses import uses
from shoal.mdp.binding import TorchBound
from shoal.sim.bridge import to_torch

_MEASURED = 10
"""Calls whose mean time is logged."""


def as_tensors(value: Any) -> Any:
    """Return an array or a struct as tensors, which share its memory unless it has structs for entries."""
    if not isinstance(value, wp.array):
        if not hasattr(value, "_cls"):
            return value
        return SimpleNamespace(**{name: as_tensors(getattr(value, name)) for name in value._cls.vars})  # noqa: SLF001
    if not hasattr(value.dtype, "numpy_dtype"):
        return to_torch(value)
    rows: Any = value.numpy()
    device = wp.device_to_torch(value.device)
    return SimpleNamespace(**{name: torch.tensor(rows[name], device=device) for name in rows.dtype.names})


@dataclass(frozen=True, slots=True)
class TorchTerm:
    """A function with its arguments, and where its value goes."""

    bound: TorchBound
    arguments: Mapping[str, Any]
    output: torch.Tensor
    """Shape (num_envs, number of columns)."""

    def write(self, state: SimpleNamespace) -> None:
        """Call the function, and write its value."""
        value: Any = self.bound.function(state, **self.arguments)
        shape = tuple(getattr(value, "shape", ()))
        num_envs, columns = self.output.shape
        if shape != (num_envs, columns) and (shape != (num_envs,) or columns != 1):
            wanted = f"({num_envs},)" if columns == 1 else f"({num_envs}, {columns})"
            got = f"a tensor of shape {shape}" if isinstance(value, torch.Tensor) else repr(value)
            remedy = " An observation of several columns names them: Obs(..., columns=(...))."
            raise ShoalError(
                f"{self.bound.path} returns {got}, but must return a tensor of shape {wanted}."
                f"{remedy if self.bound.group == 'observations' else ''}"
            )
        self.output.copy_(value.view(num_envs, columns))


class TorchTerms:
    """All such terms of a task."""

    def __init__(
        self,
        bounds: list[TorchBound],
        outputs: Mapping[str, wp.array],
        state: Mapping[str, Any],
        arrays: Mapping[str, Any],
        numbers: wp.array,
    ) -> None:
        """Make tensors.

        Args:
            bounds: The terms.
            outputs: Where the value of each goes, by the name of the term. Shapes (num_envs, number of columns).
            state: What the functions of terms read, by name.
            arrays: Arguments of terms by name, see `Binder.arrays`.
            numbers: The numbers among the parameters of all terms.
        """
        read = {name for each in bounds for name in uses(each.function)}
        self._state = SimpleNamespace(**{name: as_tensors(state[name]) for name in read})
        shared = to_torch(numbers)

        def argument(position: int | slice | str) -> Any:
            if isinstance(position, slice):
                return shared[position].squeeze()
            return as_tensors(arrays[position]) if isinstance(position, str) else position

        self._terms = [
            TorchTerm(each, {name: argument(at) for name, at in each.positions.items()}, to_torch(outputs[each.name]))
            for each in bounds
        ]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._terms)

    def of(self, *groups: str) -> list[TorchTerm]:
        """Return the terms of some groups."""
        return [term for term in self._terms if term.bound.group in groups]

    @torch.no_grad()
    def run(self, *groups: str) -> None:
        """Call the functions of the terms of some groups."""
        for term in self.of(*groups):
            term.write(self._state)

    def describe_cost(self) -> str:
        """Return in a sentence what runs outside of the captured step, and how long it takes. Waits for the device."""
        took: list[float] = []
        for _ in range(_MEASURED + 1):
            begun = time.perf_counter()
            self.run(*(term.bound.group for term in self._terms))
            if self._terms[0].output.is_cuda:
                torch.cuda.synchronize(self._terms[0].output.device)
            took.append(time.perf_counter() - begun)
        names = ", ".join(term.bound.path for term in self._terms)
        return (
            f"Torch functions that run outside of the captured step: {names}. They take "
            f"{1e3 * sum(took[1:]) / _MEASURED:.2f} ms of each step; a wp.func of the same term would be part of it."
        )
