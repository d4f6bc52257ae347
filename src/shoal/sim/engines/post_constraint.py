"""Fields that only `mj_rnePostConstraint` computes, of all simulations of a persistent batch.

`mujoco.batch` does not call that function, and a copy of one simulation's MjData takes ten times as long as the call.
So the function is called, and its results are read, where the batch keeps each MjData: MuJoCo passes the address to its
callbacks.
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping

import mujoco
import numpy as np
from mujoco.batch import Batch

from shoal.errors import ShoalError
from shoal.sim.engines.engine import AFTER_CONSTRAINTS

LIBRARY = ctypes.CDLL(mujoco._callbacks.__file__)  # noqa: SLF001  It is linked to libmujoco, wherever that is.
_Compute = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_LONGEST = 2**20
"""Bytes of the structure MjData that are searched for a pointer: it begins with 160 kB of statistics."""
_compute = _Compute(("mj_rnePostConstraint", LIBRARY))


class PostConstraint:
    """The MjData of each simulation of a batch."""

    def __init__(self, batch: Batch, template: mujoco.MjData, ours: Mapping[str, np.ndarray]) -> None:
        """Find each MjData of a persistent batch. It runs `mj_forward` in each simulation.

        `template` is any MjData of the batch's model, and `ours` has the arrays to write by field, of shape (num_envs,
        ...).

        Raises:
            ShoalError: The model disables actuation.
        """
        self._batch = batch  # It owns the memory.
        self._addresses = _addresses_of(batch)
        self._fields = [(array, _views_of(self._addresses, template, name)) for name, array in ours.items()]

    def compute(self, envs: Iterable[int]) -> None:
        """Compute and copy the fields of some simulations, from what the last call of the batch has left."""
        model = self._batch.model._address  # noqa: SLF001  MuJoCo documents no other way to call its functions by ctypes.
        for env in envs:
            _compute(model, self._addresses[env])
            for ours, views in self._fields:
                ours[env] = views[env]


def _addresses_of(batch: Batch) -> list[int]:
    """Return the address of each simulation's MjData."""
    found: list[int] = []
    callback = _Callback(lambda _, data: found.append(data))
    before: Callable[..., None] | None = mujoco.get_mjcb_control()
    mujoco.set_mjcb_control(callback)
    try:
        for env in range(batch.nsim):
            batch.forward(np.array([env]))
    finally:
        mujoco.set_mjcb_control(before)
    if len(found) != batch.nsim:
        names = ", ".join(sorted(AFTER_CONSTRAINTS))
        raise ShoalError(f"{names} cannot be computed, because the model disables actuation: remove that flag.")
    return found


def _views_of(addresses: list[int], template: mujoco.MjData, name: str) -> list[np.ndarray]:
    """Return a field of each MjData: the pointer to it is at the same offset in each."""
    array = getattr(template, name)
    at = template._address  # noqa: SLF001
    # Lazily, because only MuJoCo knows where the structure ends.
    offsets = range(0, _LONGEST, ctypes.sizeof(ctypes.c_size_t))
    offset = next(each for each in offsets if ctypes.c_size_t.from_address(at + each).value == array.ctypes.data)
    pointers = (ctypes.c_size_t.from_address(address + offset).value for address in addresses)
    return [
        np.ctypeslib.as_array((ctypes.c_double * array.size).from_address(pointer)).reshape(array.shape)
        for pointer in pointers
    ]
