"""Contacts and constraint rows in any order: MuJoCo Warp numbers them by atomic counters, which differ between runs."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import warp as wp
from mujoco_warp._src import collision_driver, constraint
from mujoco_warp._src.types import DeterminismType
from support.emulated_gpu import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ROW_FIELDS = ("type", "id", "pos", "margin", "D", "vel", "aref", "frictionloss", "Jqvel", "J_rownnz", "J_rowadr")
"""Fields of `mujoco_warp.Data.efc` with a value for each row after `make_constraint`. A dense Jacobian is another."""
_SECTIONS = (0, 1, 1, 2, 2, 3, 3, 3)
"""Of each constraint type: equality, friction, limit or contact."""


@contextmanager
def permuted_contacts(seed: int = 0) -> Iterator[list[int]]:
    """Permute contacts and constraint rows wherever MuJoCo Warp numbers them while the body runs, also in captures.

    Yields:
        The number of contacts of each detection that ran.
    """
    narrowphase, make_constraint = collision_driver._narrowphase, constraint.make_constraint
    rng, counts = np.random.default_rng(seed), list[int]()

    def permuted_narrowphase(model: Any, data: Any, context: Any) -> None:
        narrowphase(model, data, context)
        contacts = [_on_host(getattr(data.contact, field.name)) for field in dataclasses.fields(data.contact)]
        number = _on_host(data.nacon)
        assert number is not None

        def permute() -> None:
            count = int(number[0])
            order = rng.permutation(count)
            counts.append(count)
            for array in contacts:
                if array is not None and len(array) >= count:
                    array[:count] = array[:count][order]

        _queue(data, permute)

    def permuted_make_constraint(model: Any, data: Any) -> None:
        flags = model.opt.deterministic
        model.opt.deterministic = flags & ~int(DeterminismType.CONSTRAINT)
        make_constraint(model, data)
        model.opt.deterministic = flags
        _queue(data, partial(permute_rows, model, data, rng))
        if flags & DeterminismType.CONSTRAINT:
            constraint._sort_constraints(model, data)

    collision_driver._narrowphase, constraint.make_constraint = permuted_narrowphase, permuted_make_constraint
    try:
        yield counts
    finally:
        collision_driver._narrowphase, constraint.make_constraint = narrowphase, make_constraint


def permute_rows(model: Any, data: Any, rng: np.random.Generator) -> None:
    """Permute the constraint rows of each world, as atomic counters may.

    Kinds of equality, frictions, limits and contacts stay apart, and the rows of one object stay together.
    """
    efc: dict[str, Any] = {
        field.name: _on_host(getattr(data.efc, field.name)) for field in dataclasses.fields(data.efc)
    }
    rows = [array for name in _ROW_FIELDS if (array := efc[name]) is not None]
    if efc["J_rownnz"] is None:
        rows.append(efc["J"])
    nefc, nacon, worldid, addresses, friction, nf = (
        np.asarray(_on_host(array))
        for array in (
            *(data.nefc, data.nacon, data.contact.worldid),
            *(data.contact.efc_address, data.dof_frictionadr, data.nf),
        )
    )
    world, row = np.nonzero(np.arange(data.njmax) < nefc[:, None])
    if not len(world):
        return
    objects = np.stack([world, efc["type"][world, row], efc["id"][world, row]])
    group = np.r_[0, np.cumsum((np.diff(objects) != 0).any(axis=0))]
    section = np.array(_SECTIONS)[objects[1]]
    if model.neq:
        eq_type = np.asarray(_on_host(model.eq_type))[np.where(section, 0, objects[2])]
        section = np.where(section, section + eq_type.max() + 1, eq_type)
    order = np.lexsort((row, rng.random(len(group))[group], section, world))
    for array in rows:
        array[world, row] = array[world[order], row[order]]
    target = np.zeros((data.nworld, data.njmax), dtype=np.int32)
    target[world[order], row[order]] = row
    own = worldid[: nacon[0], None]
    addresses[: nacon[0]] = np.where(addresses[: nacon[0]] >= 0, target[own, addresses[: nacon[0]]], -1)
    if nf.any():
        worlds = np.arange(data.nworld)[:, None]
        friction[...] = np.where(friction >= 0, target[worlds, friction], -1)
    if efc["J_rownnz"] is not None:
        for each in range(data.nworld):
            blocks = rng.permutation(int(efc["jtdaj_nblock"][each]))
            efc["jtdaj_nrow"][each, : len(blocks)] = efc["jtdaj_nrow"][each, blocks]
            efc["jtdaj_adr"][each, : len(blocks)] = target[each, efc["jtdaj_adr"][each, blocks]]


def _queue(data: Any, run: Callable[[], None]) -> None:
    """Run a function on the stream of an emulated GPU, or at once on the CPU."""
    if data.nacon.device.is_cpu:
        run()
        return
    driver = machine().driver
    assert driver is not None
    driver.run_on_stream(data.nacon.device.stream, "permute", run)


def _on_host(array: Any) -> np.ndarray | None:
    """Return a view of an array of an emulated GPU or of the CPU."""
    if not isinstance(array, wp.array) or not array.size:
        return None
    return wp.array(ptr=array.ptr, dtype=array.dtype, shape=array.shape, device="cpu").numpy()
