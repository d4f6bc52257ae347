"""Bounds checks: each kernel of a task runs first on copies of its arrays, with a margin behind each row and array.

Warp does not check indices: a kernel that writes one column too many writes into the next environment's row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from weakref import ref

import numpy as np
import warp as wp

from shoal.errors import ShoalError

Arguments: TypeAlias = "dict[str, ref[wp.array]]"
"""Weak references to arrays, by the kernels' names for them."""

_MARGIN = 8
"""Numbers behind each row, and rows behind each array."""
_CANARY = 123
"""Value of the margin, in every type."""
_TRUSTED = ("shoal.sim.", "mujoco_warp.", "warp.")
"""Modules whose kernels are not a task's own."""


@contextmanager
def checked_launches(task: str) -> Iterator[Arguments]:
    """Check the bounds of all kernels that the body launches, and yield their arguments. `task` is its name."""
    launch = wp.launch
    seen: Arguments = {}

    def checked(kernel: Any, dim: Any, inputs: Any = (), outputs: Any = (), **named: Any) -> Any:  # noqa: ANN401
        if not kernel.func.__module__.startswith(_TRUSTED):
            arguments = [*inputs, *outputs]
            padded = [_padded(argument) for argument in arguments]
            copies = [inner for inner, _ in padded]
            launch(kernel, dim, copies, device=named.get("device"))
            for spec, argument, (_, backing) in zip(kernel.adj.args, arguments, padded, strict=False):
                if backing is not None:
                    seen[f"'{spec.label}' of the kernel '{kernel.key}'"] = ref(argument)
                    _check_margin(task, kernel.key, spec.label, argument.shape, backing)
        return launch(kernel, dim, inputs, outputs, **named)

    wp.launch = checked
    try:
        yield seen
    finally:
        wp.launch = launch


def _padded(argument: Any) -> tuple[Any, wp.array | None]:  # noqa: ANN401  Whatever a kernel takes.
    """Return a copy of an array, and the larger array that it is in. Other arguments are returned as they are."""
    if not isinstance(argument, wp.array) or not argument.size or not isinstance(argument.dtype, type):
        return argument, None
    shape = tuple(size + _MARGIN for size in argument.shape)
    backing = wp.empty(shape, dtype=argument.dtype, device=argument.device)
    backing.fill_(_canary(argument))
    inner: Any = backing[tuple(slice(size) for size in argument.shape)]
    wp.copy(inner, argument)
    return inner, backing


def _canary(array: wp.array) -> int:
    return 0 if array.dtype is wp.bool else _CANARY


def _check_margin(task: str, kernel: str, label: str, shape: tuple[int, ...], backing: wp.array) -> None:
    """Refuse a launch that has changed the margin behind the rows or behind the array."""
    for axis, size in enumerate(shape):
        behind = backing[(slice(None),) * axis + (slice(size, None),)].numpy()
        changed = np.argwhere(behind != _canary(backing))
        if len(changed):
            index = changed[0][: len(shape)]
            index[axis] += size
            raise ShoalError(
                f"The kernel '{kernel}' of {task} writes {label}[{', '.join(map(str, index))}], outside the shape "
                f"{shape} of that array: keep its indices inside, or make the array larger."
            )
