"""Surroundings of a model: a sky and a chequered ground where it has none, and its size without the ground.

They change what is drawn, and never the physics.
"""

import mujoco
import numpy as np

_NAME = "shoal_sky", "shoal_ground"
_GROUND = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
"""Geom types of the ground."""
_USUAL_ELEVATION, _ELEVATION = -45.0, -20.0
"""MuJoCo's default elevation of cameras that no model describes, which sees no sky; and the one instead [degrees]."""


def add_surroundings(spec: mujoco.MjSpec) -> None:
    """Add a sky to a model without one, and a chequer to ground without a material, in the ground's own colour."""
    texture, builtin = mujoco.mjtTexture, mujoco.mjtBuiltin
    sky, ground = _NAME
    if not any(each.type == texture.mjTEXTURE_SKYBOX for each in spec.textures):
        spec.add_texture(
            name=sky,
            type=texture.mjTEXTURE_SKYBOX,
            builtin=builtin.mjBUILTIN_GRADIENT,
            rgb1=(0.77, 0.82, 0.86),
            rgb2=(0.93, 0.96, 0.98),
            width=128,
            height=128,
        )
    if spec.visual.global_.elevation == _USUAL_ELEVATION:
        spec.visual.global_.elevation = _ELEVATION
    bare = [geom for geom in spec.worldbody.geoms if geom.type in _GROUND and not geom.material]
    if not bare:
        return
    spec.add_texture(
        name=ground,
        type=texture.mjTEXTURE_2D,
        builtin=builtin.mjBUILTIN_CHECKER,
        rgb1=(0.84, 0.84, 0.84),
        rgb2=(1.0, 1.0, 1.0),
        width=256,
        height=256,
    )
    material = spec.add_material(name=ground, texrepeat=(2, 2), texuniform=True, rgba=(0.74, 0.77, 0.8, 1.0))
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = ground
    for geom in bare:
        geom.material = ground


def extent(model: mujoco.MjModel, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest corner of the bounding box without the ground [m], for positions (nq,)."""
    solid = ~np.isin(model.geom_type, _GROUND)
    if not solid.any():
        return np.full(3, -1.0), np.full(3, 1.0)
    data = mujoco.MjData(model)
    data.qpos[:] = positions
    mujoco.mj_kinematics(model, data)
    turns = data.geom_xmat[solid].reshape(-1, 3, 3)
    middles = data.geom_xpos[solid] + np.einsum("gij,gj->gi", turns, model.geom_aabb[solid, :3])
    reaches = np.einsum("gij,gj->gi", np.abs(turns), model.geom_aabb[solid, 3:])
    return (middles - reaches).min(axis=0), (middles + reaches).max(axis=0)
