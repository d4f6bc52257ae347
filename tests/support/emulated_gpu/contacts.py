"""Contacts in any order: MuJoCo Warp numbers them by an atomic counter, and so no two steps on a GPU need to agree."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import warp as wp
from mujoco_warp._src import collision_driver
from support.emulated_gpu import machine

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def permuted_contacts(seed: int = 0) -> Iterator[list[int]]:
    """Permute the contacts after each collision detection that is launched, or captured, while the body runs.

    Yields:
        The number of contacts of each detection that ran.
    """
    usual, rng, counts = collision_driver.collision, np.random.default_rng(seed), list[int]()

    def collision(model: Any, data: Any) -> None:
        usual(model, data)
        contacts = [_on_host(getattr(data.contact, field.name)) for field in dataclasses.fields(data.contact)]
        number = _on_host(data.nacon)

        def permute() -> None:
            count = int(number[0])
            order = rng.permutation(count)
            counts.append(count)
            for array in contacts:
                if len(array) >= count:
                    array[:count] = array[:count][order]

        driver = machine().driver
        assert driver is not None
        driver.run_on_stream(data.nacon.device.stream, "permute contacts", permute)

    collision_driver.collision = collision
    try:
        yield counts
    finally:
        collision_driver.collision = usual


def _on_host(array: Any) -> np.ndarray:
    """Return a view of an array of an emulated GPU; an empty one of what is no array."""
    if not isinstance(array, wp.array) or not array.size:
        return np.empty(0)
    return wp.array(ptr=array.ptr, dtype=array.dtype, shape=array.shape, device="cpu").numpy()
