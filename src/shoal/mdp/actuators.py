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
    "ctrlrange": "actuators with a ctrlrange",
    "forcerange": "actuators with a forcerange",
}
"""What a term may need of an actuator, in words."""


def is_position_actuator(actuator: Any) -> bool:
    """Whether the control of an actuator, of a spec or a model, is the angle to go to, times its gear."""
    return bool(
        _is_plain(actuator)
        and actuator.biastype == mujoco.mjtBias.mjBIAS_AFFINE
        and actuator.gainprm[0] == -actuator.biasprm[1] != 0.0
        and actuator.biasprm[0] == 0.0
    )


def is_motor(actuator: Any) -> bool:
    """Whether the control of an actuator, of a spec or a model, is a force, times its gain."""
    return bool(_is_plain(actuator) and actuator.biastype == mujoco.mjtBias.mjBIAS_NONE)


def _is_plain(actuator: Any) -> bool:
    """Whether an actuator's force is a constant times its control, and a bias: its control is not filtered."""
    return bool(
        actuator.gaintype == mujoco.mjtGain.mjGAIN_FIXED
        and actuator.dyntype == mujoco.mjtDyn.mjDYN_NONE
        and actuator.gainprm[0] != 0.0
    )


def kinds_of(model: mujoco.MjModel, index: int) -> set[str]:
    """Return which of `KINDS` an actuator is."""
    actuator = model.actuator(index)
    gain, bias = actuator.gainprm[0], actuator.biasprm[:3]
    holds = {
        "position": is_position_actuator(actuator) or _is_dc_position_actuator(model, index),
        "velocity": _is_plain(actuator) and gain == -bias[2] and not bias[:2].any(),
        "effort": is_motor(actuator),
        "ctrlrange": model.actuator_ctrllimited[index],
        "forcerange": model.actuator_forcelimited[index],
    }
    return {kind for kind, is_so in holds.items() if is_so}


def _is_dc_position_actuator(model: mujoco.MjModel, index: int) -> bool:
    """Whether an actuator is a DC motor without further state, whose control is a position."""
    return bool(
        model.actuator_gaintype[index] == mujoco.mjtGain.mjGAIN_DCMOTOR
        and model.actuator_ctrlspec[index] == mujoco.mjtCtrlInput.mjINPUT_POS
        and not model.actuator_actnum[index]
    )


def acts_on_scalar_joint(model: mujoco.MjModel, index: int) -> bool:
    """Whether an actuator acts on a joint with one degree of freedom."""
    return model.actuator_trntype[index] in JOINT and model.jnt_type[model.actuator_trnid[index, 0]] in SCALAR


def joint_gains(model: mujoco.MjModel, actuators: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what actuators of joints are for these, gears and limits of the joints included.

    They are stiffness [N m/rad], (n,), damping [N m s/rad], (n,), and lowest and highest torques [N m], (n, 2), which
    are `NO_LIMIT` where there is none.
    """
    is_dc_motor = model.actuator_gaintype[actuators] == mujoco.mjtGain.mjGAIN_DCMOTOR
    gain, bias = model.actuator_gainprm[actuators], model.actuator_biasprm[actuators]
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
    is_of_motor = [is_motor(model.actuator(index)) for index in actuators]
    factors = np.where(is_of_motor, gear * gain, 1.0 / gear)
    return _limits(model.actuator_ctrlrange[actuators] * factors[:, None], model.actuator_ctrllimited[actuators])


def _limits(ranges: np.ndarray, limited: np.ndarray) -> np.ndarray:
    """Return ranges, (n, 2), in their order, and `NO_LIMIT` in both directions where there is none."""
    return np.where(limited.astype(bool)[:, None], np.sort(ranges, axis=1), (-NO_LIMIT, NO_LIMIT))
