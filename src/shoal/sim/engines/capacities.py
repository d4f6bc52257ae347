"""Room that MuJoCo Warp needs for contacts and constraints, computed from a model: for tasks that declare none."""

import mujoco
import numpy as np

_LEAST = {"nconmax": 48, "njmax": 64}
"""MuJoCo Warp's own guess for a model on a plane, which does not look at the model."""

_ON_A_PLANE = {mujoco.mjtGeom.mjGEOM_SPHERE: 1, mujoco.mjtGeom.mjGEOM_ELLIPSOID: 1, mujoco.mjtGeom.mjGEOM_CAPSULE: 2}
"""Contacts of a geom that lies on a plane; of other types 4."""

_ROWS_OF_EQUALITIES = {mujoco.mjtEq.mjEQ_CONNECT: 3, mujoco.mjtEq.mjEQ_WELD: 6}
"""Constraints of an equality; of other types 1."""


def capacities_of(model: mujoco.MjModel) -> dict[str, int]:
    """Return `nconmax` and `njmax` for a model; none where MuJoCo Warp's own guess is the better one.

    There is room for every movable geom on the ground at once, with all of its contacts, and for all limits, friction
    losses and equalities. A bound over all pairs of geoms would be many times that, and no robot comes near it.
    """
    if model.nhfield or model.nflex or (model.geom_type == mujoco.mjtGeom.mjGEOM_SDF).any():
        return {}  # Of these it counts on many contacts.
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    lying = collides & (model.body_weldid[model.geom_bodyid] != 0)
    contacts = sum(_ON_A_PLANE.get(kind, 4) for kind in model.geom_type[lying].tolist())
    dim = int(max(1, *model.geom_condim[collides], *model.pair_dim))
    is_elliptic = model.opt.cone == mujoco.mjtCone.mjCONE_ELLIPTIC
    rows = dim if is_elliptic or dim == 1 else 2 * (dim - 1)
    equalities = sum(_ROWS_OF_EQUALITIES.get(kind, 1) for kind in model.eq_type.tolist())
    limits = np.count_nonzero(model.jnt_limited) + np.count_nonzero(model.tendon_limited)
    losses = np.count_nonzero(model.dof_frictionloss) + np.count_nonzero(model.tendon_frictionloss)
    needed = {"nconmax": contacts, "njmax": rows * contacts + equalities + limits + losses}
    # MuJoCo Warp writes them into its kernels, where numpy's integers are no sizes.
    return {name: max(_LEAST[name], int(number)) for name, number in needed.items()}
