"""Kernels that sort the contacts and constraint rows of MuJoCo Warp, see `shoal.sim.engines.deterministic`."""

import mujoco
import warp as wp


@wp.kernel(enable_backward=False)
def list_contacts(
    nacon: wp.array[wp.int32],
    worldid: wp.array[wp.int32],
    geom: wp.array[wp.vec2i],
    number: wp.array[wp.int32],
    newest: wp.array[wp.int32],
    count: wp.array[wp.int32],
    following: wp.array[wp.int32],
    key: wp.array[wp.int64],
) -> None:
    """Link the contacts of each world to a list in any order, count them, and compute their keys."""
    contact = wp.tid()
    if contact >= nacon[0]:
        return
    world = worldid[contact]
    pair = geom[contact]
    key[contact] = (wp.int64(pair[0]) << wp.int64(42)) + (wp.int64(pair[1]) << wp.int64(21)) + wp.int64(number[contact])
    wp.atomic_add(count, world, 1)
    following[contact] = wp.atomic_exch(newest, world, contact)


@wp.kernel(enable_backward=False)
def rank_contacts(
    nacon: wp.array[wp.int32],
    worldid: wp.array[wp.int32],
    newest: wp.array[wp.int32],
    following: wp.array[wp.int32],
    key: wp.array[wp.int64],
    first: wp.array[wp.int32],
    source: wp.array2d[wp.int32],
) -> None:
    """Find the position of each contact among those of its world."""
    contact = wp.tid()
    if contact >= nacon[0]:
        source[0, contact] = -1
        return
    world = worldid[contact]
    own = key[contact]
    position = first[world]
    other = newest[world]
    while other >= 0:
        if key[other] < own or (key[other] == own and other < contact):
            position += 1
        other = following[other]
    source[0, position] = contact


@wp.func
def object_of(eq_type: wp.array[wp.int32], kind: wp.int32, ident: wp.int32) -> wp.int32:
    """Return a number that orders the objects of one constraint type. MuJoCo Warp relies on connects before welds."""
    if kind == wp.static(int(mujoco.mjtConstraint.mjCNSTR_EQUALITY)):
        return eq_type[ident] * eq_type.shape[0] + ident
    return ident


@wp.kernel(enable_backward=False)
def rank_rows(
    eq_type: wp.array[wp.int32],
    nefc: wp.array[wp.int32],
    njmax: wp.int32,
    kinds: wp.array2d[wp.int32],
    idents: wp.array2d[wp.int32],
    source: wp.array2d[wp.int32],
    target: wp.array2d[wp.int32],
) -> None:
    """Find the position of each row among those of its world. The rows of one object keep their order."""
    world, row = wp.tid()
    number = wp.min(nefc[world], njmax)
    if row >= number:
        source[world, row] = -1
        target[world, row] = row
        return
    kind = kinds[world, row]
    own = object_of(eq_type, kind, idents[world, row])
    position = wp.int32(0)
    for other in range(number):
        other_kind = kinds[world, other]
        if other_kind < kind:
            position += 1
        elif other_kind == kind:
            theirs = object_of(eq_type, kind, idents[world, other])
            if theirs < own or (theirs == own and other < row):
                position += 1
    source[world, position] = row
    target[world, row] = position


@wp.kernel(enable_backward=False)
def permute(
    is_back: wp.bool,
    source: wp.array2d[wp.int32],
    address: wp.array[wp.uint64],
    world_stride: wp.array[wp.uint64],
    row_stride: wp.array[wp.uint64],
    scratch: wp.array3d[wp.uint32],
) -> None:
    """Copy the source of each row to the scratch array; or, if `is_back`, the scratch array to the rows."""
    world, row, column = wp.tid()
    origin = source[world, row]
    if origin < 0:
        return
    if is_back:
        origin = row
    position = address[column] + wp.uint64(world) * world_stride[column] + wp.uint64(origin) * row_stride[column]
    word = wp.array(ptr=position, shape=(1,), dtype=wp.uint32)
    if is_back:
        word[0] = scratch[world, row, column]
    else:
        scratch[world, row, column] = word[0]


@wp.kernel(enable_backward=False)
def move_contact_addresses(
    nacon: wp.array[wp.int32],
    worldid: wp.array[wp.int32],
    target: wp.array2d[wp.int32],
    efc_address: wp.array2d[wp.int32],
) -> None:
    """Update the row numbers of each contact; -1 stands for no row."""
    contact, dim = wp.tid()
    if contact >= nacon[0]:
        return
    row = efc_address[contact, dim]
    if row >= 0:
        efc_address[contact, dim] = target[worldid[contact], row]


@wp.kernel(enable_backward=False)
def move_friction_addresses(
    nf: wp.array[wp.int32], target: wp.array2d[wp.int32], dof_frictionadr: wp.array2d[wp.int32]
) -> None:
    """Update the row number of the friction of each degree of freedom; -1 stands for no row."""
    world, dof = wp.tid()
    if nf[world] == 0:  # They are not set.
        return
    row = dof_frictionadr[world, dof]
    if row >= 0:
        dof_frictionadr[world, dof] = target[world, row]


@wp.kernel(enable_backward=False)
def sort_blocks(
    nblock: wp.array[wp.int32],
    adr: wp.array2d[wp.int32],
    nrow: wp.array2d[wp.int32],
    target: wp.array2d[wp.int32],
    sorted_adr: wp.array2d[wp.int32],
    sorted_nrow: wp.array2d[wp.int32],
) -> None:
    """Sort blocks of rows with the same sparsity by their new first row."""
    world, block = wp.tid()
    if block >= nblock[world]:
        return
    first = target[world, adr[world, block]]
    position = wp.int32(0)
    for other in range(nblock[world]):
        if target[world, adr[world, other]] < first:
            position += 1
    sorted_adr[world, position] = first
    sorted_nrow[world, position] = nrow[world, block]
