"""Actuators of joints: what the control of each is, and the numbers of its joint that follow from it. Needs no Warp."""

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

NO_LIMIT = 1e6
"""Limit of what has none."""
KP_OF_MOTOR, KD_OF_MOTOR = 4, 6
"""Where in ``actuator_gainprm`` MuJoCo has stiffness and damping of a DC motor."""
SCALAR = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
JOINT = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
"""Transmissions that act on a joint."""
KINDS = {
    "position": "position actuators without a time constant",
    "velocity": "velocity actuators without a time constant",
    "effort": "motors without a time constant",
    "muscle": "muscles",
    "ctrlrange": "actuators with a ctrlrange",
    "forcerange": "actuators with a forcerange",
}
"""What a term may need of an actuator, in words."""


def kind_of_control(actuator: Any) -> str:
    """Return what the control of an actuator, of a spec or a model, is: a `position`, `velocity` or `effort`.

    Each is times its gear, or of a motor its gain. It is `muscle` for an excitation, and empty for others.
    """
    if actuator.gaintype == mujoco.mjtGain.mjGAIN_MUSCLE:
        return "muscle"
    gain, (constant, at_position, at_speed) = actuator.gainprm[0], actuator.biasprm[:3]
    is_filtered = actuator.dyntype != mujoco.mjtDyn.mjDYN_NONE
    if actuator.gaintype != mujoco.mjtGain.mjGAIN_FIXED or is_filtered or not gain:
        return ""
    if actuator.biastype == mujoco.mjtBias.mjBIAS_NONE:
        return "effort"
    if actuator.biastype != mujoco.mjtBias.mjBIAS_AFFINE or constant:
        return ""
    return "position" if gain == -at_position else "velocity" if gain == -at_speed and not at_position else ""


def kinds_of(model: mujoco.MjModel, index: int) -> set[str]:
    """Return which of `KINDS` an actuator is."""
    kind = kind_of_control(model.actuator(index))
    is_to_position = model.actuator_ctrlspec[index] == mujoco.mjtCtrlInput.mjINPUT_POS
    if model.actuator_gaintype[index] == mujoco.mjtGain.mjGAIN_DCMOTOR and not model.actuator_actnum[index]:
        kind = "position" if is_to_position else ""  # A DC motor without further state.
    limited = {"ctrlrange": model.actuator_ctrllimited[index], "forcerange": model.actuator_forcelimited[index]}
    return {kind} | {name for name, is_so in limited.items() if is_so}


def acts_on_scalar_joint(model: mujoco.MjModel, index: int) -> bool:
    """Whether an actuator acts on a joint with one degree of freedom."""
    return model.actuator_trntype[index] in JOINT and model.jnt_type[model.actuator_trnid[index, 0]] in SCALAR


def joint_gains(model: mujoco.MjModel, actuators: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what actuators of joints are for these, gears and limits of the joints included.

    They are stiffness [N m/rad], (n,), damping [N m s/rad], (n,), and lowest and highest torques [N m], (n, 2), which
    are `NO_LIMIT` where there is none.
    """
    is_dc_motor = model.actuator_gaintype[actuators] == mujoco.mjtGain.mjGAIN_DCMOTOR
    is_affine = model.actuator_biastype[actuators] == mujoco.mjtBias.mjBIAS_AFFINE
    gain, bias = model.actuator_gainprm[actuators], model.actuator_biasprm[actuators] * is_affine[:, None]
    gear, joints = model.actuator_gear[actuators, 0], model.actuator_trnid[actuators, 0]
    own = _limits(model.actuator_forcerange[actuators] * gear[:, None], model.actuator_forcelimited[actuators])
    of_joint = _limits(model.jnt_actfrcrange[joints], model.jnt_actfrclimited[joints])
    return (
        gear**2 * np.where(is_dc_motor, gain[:, KP_OF_MOTOR], -bias[:, 1]),
        gear**2 * np.where(is_dc_motor, gain[:, KD_OF_MOTOR], -bias[:, 2]),
        own.clip(of_joint[:, :1], of_joint[:, 1:]),
    )


def joint_targets(model: mujoco.MjModel, actuators: Sequence[int]) -> np.ndarray:
    """Return the lowest and highest that the control of each actuator can ask its joint for. Shape (n, 2).

    Of a position actuator they are positions or speeds [rad or m, rad/s or m/s], and of a motor torques [N m or N].
    """
    gear, gain = model.actuator_gear[actuators, 0], model.actuator_gainprm[actuators, 0]
    is_of_motor = ["effort" in kinds_of(model, index) for index in actuators]
    factors = np.where(is_of_motor, gear * gain, 1.0 / gear)
    return _limits(model.actuator_ctrlrange[actuators] * factors[:, None], model.actuator_ctrllimited[actuators])


def _limits(ranges: np.ndarray, limited: np.ndarray) -> np.ndarray:
    """Return ranges, (n, 2), in their order, and `NO_LIMIT` in both directions where there is none."""
    return np.where(limited.astype(bool)[:, None], np.sort(ranges, axis=1), (-NO_LIMIT, NO_LIMIT))
