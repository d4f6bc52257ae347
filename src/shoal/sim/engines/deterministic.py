"""Deterministic MuJoCo Warp: a canonical order of contacts and constraint rows.

On a GPU, MuJoCo Warp numbers contacts and constraint rows by atomic counters, so their order differs between runs. With
`opt.deterministic` it adds floats in the order of threads, but the two functions that sort contacts and constraint
rows are empty in MuJoCo Warp 4.0.0. `make_deterministic` sets the option and supplies both sorts.

Contacts are sorted by world, pair of geoms and number within the pair; rows by world, constraint type, object and
previous position. A sort computes for each row the row that it takes its values from, gathers all fields into a scratch
array, and copies them back. It only launches kernels, which are captured with the step.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp
from mujoco_warp._src import collision_driver, constraint

from shoal.errors import UsageError
from shoal.sim.engines.sort_kernels import (
    list_contacts,
    move_contact_addresses,
    move_friction_addresses,
    permute,
    rank_contacts,
    rank_rows,
    sort_blocks,
)

_WORD = 4
"""Size of the numbers in all sorted fields [bytes]."""

_ROW_FIELDS = ("type", "id", "pos", "margin", "D", "vel", "aref", "frictionloss", "Jqvel", "J_rownnz", "J_rowadr")
"""Fields of `Data.efc` with one value for each row that are set when the rows are sorted. A dense `J` is sorted too."""

_HOOKS = ((collision_driver, "_sort_contacts"), (constraint, "_sort_constraints"))
"""MuJoCo Warp's sort functions, called if a bit of `opt.deterministic` is set."""


def make_deterministic(model: mujoco.MjModel, warp_model: mjw.Model, data: mjw.Data) -> None:
    """Make steps of a model on one GPU bit-identical for the same state and controls.

    Raises:
        UsageError: The model has contacts that cannot be identified, or MuJoCo Warp calls no sorts.
    """
    for what, count in (
        ("flexes", model.nflex),
        ("signed distance fields", np.count_nonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_SDF)),
    ):
        if count:
            raise UsageError(
                f"--env.deterministic was asked for, but the model has {what} ({count}), whose contacts cannot be "
                "sorted: remove them from the model, or leave the flag out."
            )
    for module, name in _HOOKS:
        if not hasattr(module, name):
            raise UsageError(
                f"--env.deterministic was asked for, but MuJoCo Warp {mjw.__version__} has no function '{name}': "
                "install mujoco-warp 4.0.0, or leave the flag out."
            )
    warp_model.opt.deterministic = int(mjw.DeterminismType.ALL)
    data.sorts = _Sorts(warp_model, data)  # pyright: ignore[reportAttributeAccessIssue]
    collision_driver._sort_contacts = _sort_contacts  # noqa: SLF001
    constraint._sort_constraints = _sort_constraints  # noqa: SLF001


def _sort_contacts(model: mjw.Model, data: Any) -> None:  # noqa: ANN401, ARG001  MuJoCo Warp's signature.
    if hasattr(data, "sorts"):
        data.sorts.sort_contacts()


def _sort_constraints(model: mjw.Model, data: Any) -> None:  # noqa: ANN401, ARG001  MuJoCo Warp's signature.
    if hasattr(data, "sorts"):
        data.sorts.sort_rows()


class _Sorts:
    """The sorts of one `mujoco_warp.Data`, and the memory that they need."""

    def __init__(self, model: mjw.Model, data: mjw.Data) -> None:
        self._data = data
        self._is_sparse = bool(model.is_sparse)
        self._eq_type = model.eq_type
        nworld, ncontact, device = data.nworld, data.naconmax, data.nacon.device

        def integers(*shape: int, dtype: type = wp.int32) -> wp.array:
            return wp.zeros(shape, dtype=dtype, device=device)

        self._newest, self._count, self._first = integers(nworld), integers(nworld), integers(nworld)
        self._next, self._key = integers(ncontact), integers(ncontact, dtype=wp.int64)
        contacts = [getattr(data.contact, field.name) for field in dataclasses.fields(data.contact)]
        self._contacts = _Table([array.reshape((1, *array.shape)) for array in contacts if array.size], ncontact)

        rows = [getattr(data.efc, name) for name in _ROW_FIELDS] + ([] if self._is_sparse else [data.efc.J])
        self._rows = _Table([array for array in rows if array.size], data.njmax)
        self._target = integers(nworld, data.njmax)
        self._block_adr, self._block_nrow = (integers(*data.efc.jtdaj_adr.shape) for _ in range(2))

    def sort_contacts(self) -> None:
        """Sort all contacts."""
        data, contact = self._data, self._data.contact
        if not data.naconmax:
            return
        self._newest.fill_(-1)
        self._count.zero_()
        identity = [data.nacon, contact.worldid, contact.geom, contact.geomcollisionid]
        self._launch(list_contacts, (data.naconmax,), identity, [self._newest, self._count, self._next, self._key])
        wp.utils.array_scan(self._count, self._first, inclusive=False)
        lists = [data.nacon, contact.worldid, self._newest, self._next, self._key, self._first]
        self._launch(rank_contacts, (data.naconmax,), lists, [self._contacts.source])
        self._contacts.permute()

    def sort_rows(self) -> None:
        """Sort the constraint rows of each world, and update the row numbers that are stored elsewhere."""
        data, efc, contact = self._data, self._data.efc, self._data.contact
        if not data.njmax:
            return
        rows = [self._eq_type, data.nefc, data.njmax, efc.type, efc.id]
        self._launch(rank_rows, (data.nworld, data.njmax), rows, [self._rows.source, self._target])
        self._rows.permute()
        addresses = [data.nacon, contact.worldid, self._target]
        self._launch(move_contact_addresses, contact.efc_address.shape, addresses, [contact.efc_address])
        self._launch(
            move_friction_addresses, data.dof_frictionadr.shape, [data.nf, self._target], [data.dof_frictionadr]
        )
        if self._is_sparse:
            blocks = [efc.jtdaj_nblock, efc.jtdaj_adr, efc.jtdaj_nrow, self._target]
            self._launch(sort_blocks, efc.jtdaj_adr.shape, blocks, [self._block_adr, self._block_nrow])
            wp.copy(efc.jtdaj_adr, self._block_adr)
            wp.copy(efc.jtdaj_nrow, self._block_nrow)

    def _launch(self, kernel: Any, dim: tuple[int, ...], inputs: list[Any], outputs: list[wp.array]) -> None:  # noqa: ANN401
        wp.launch(kernel, dim=dim, inputs=inputs, outputs=outputs, device=self._data.nacon.device)


class _Table:
    """The words of several arrays with the shape (nworld, rows, ...) as columns, permuted together."""

    def __init__(self, arrays: Sequence[wp.array], num_rows: int) -> None:
        device = arrays[0].device
        columns = [
            ((array.ptr or 0) + _WORD * word, array.strides[0], array.strides[1])
            for array in arrays
            for word in range(int(np.prod(array.shape[2:])) * wp.types.type_size_in_bytes(array.dtype) // _WORD)
        ]
        self._columns = [
            wp.array(np.array(values, dtype=np.uint64), dtype=wp.uint64, device=device)
            for values in zip(*columns, strict=True)
        ]
        """Address, and the distance of two worlds and of two rows [bytes], of each column."""
        self.source = wp.zeros((arrays[0].shape[0], num_rows), dtype=wp.int32, device=device)
        """Source of each row; -1 for a row that is not in use. Shape (nworld, rows)."""
        self._scratch = wp.zeros((*self.source.shape, len(columns)), dtype=wp.uint32, device=device)

    def permute(self) -> None:
        """Replace the values of each row with those of its source."""
        for is_back in (False, True):
            wp.launch(
                permute,
                dim=self._scratch.shape,
                inputs=[is_back, self.source, *self._columns, self._scratch],
                device=self.source.device,
            )
