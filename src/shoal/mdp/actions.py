"""Actions: each turns column `i` of its actions, `action`, into controls. Names are mjlab's where it has the term.

Where `action` is a vector, there is no `i`, and the function turns all of its columns into controls. `scale`, `offset`,
and `lower` and `upper`, the limits of what is set, are each a number, or numbers by pattern; a kernel has nothing of
those that are not declared.
"""

from typing import Any

import warp as wp

from shoal.mdp.inverse_kinematics import differential_ik, differential_ik_position  # noqa: F401  Named here.
from shoal.mdp.names import Actuator
from shoal.mdp.needs import needs


@needs("position")
@wp.func
def joint_position(
    state: Any,
    env: wp.int32,
    i: wp.int32,
    action: wp.float32,
    actuators: wp.array[Actuator],
    scale: wp.array[wp.float32],
    offset: Any = None,
    lower: Any = None,
    upper: Any = None,
) -> None:
    """Set the target of a position actuator, `scale` [rad or m] for each unit of the action.

    It is around the default pose, or around `offset`. The actuator measures its angle with the error of its encoder.
    """
    target = affine(i, action, scale, number_of(i, offset, actuators[i].default_pos), lower, upper)
    state.ctrl[env, actuators[i].index] = actuators[i].gear * (target - state.encoder_bias[env, actuators[i].dof])


@needs("position", "ctrlrange")
@wp.func
def ema_joint_position_to_limits(
    state: Any, env: wp.int32, i: wp.int32, action: wp.float32, actuators: wp.array[Actuator], alpha: wp.float32
) -> None:
    """Set the target of a position actuator between the limits of its control, for actions from -1 to 1.

    The target is a moving average: `alpha` of what the action asks for, and the rest of the last target.
    """
    index = actuators[i].index
    limits = state.default_actuator_ctrlrange[index]
    wanted = 0.5 * (limits[0] + limits[1] + action * (limits[1] - limits[0]))
    state.ctrl[env, index] = alpha * wanted + (1.0 - alpha) * state.ctrl[env, index]


@needs("velocity")
@wp.func
def joint_velocity(
    state: Any,
    env: wp.int32,
    i: wp.int32,
    action: wp.float32,
    actuators: wp.array[Actuator],
    scale: wp.array[wp.float32],
    offset: Any = None,
    lower: Any = None,
    upper: Any = None,
) -> None:
    """Set the target of a velocity actuator, `scale` [rad/s or m/s] for each unit of the action."""
    target = affine(i, action, scale, number_of(i, offset, 0.0), lower, upper)
    state.ctrl[env, actuators[i].index] = actuators[i].gear * target


@needs("effort")
@wp.func
def joint_effort(
    state: Any,
    env: wp.int32,
    i: wp.int32,
    action: wp.float32,
    actuators: wp.array[Actuator],
    scale: wp.array[wp.float32],
    offset: Any = None,
    lower: Any = None,
    upper: Any = None,
) -> None:
    """Set the torque of a motor's joint, `scale` [N m or N] for each unit of the action."""
    torque = affine(i, action, scale, number_of(i, offset, 0.0), lower, upper)
    state.ctrl[env, actuators[i].index] = torque / (actuators[i].gear * actuators[i].gain)


@needs("position")
@wp.func
def relative_joint_position(
    state: Any,
    env: wp.int32,
    i: wp.int32,
    action: wp.float32,
    actuators: wp.array[Actuator],
    scale: wp.array[wp.float32],
    lower: Any = None,
    upper: Any = None,
) -> None:
    """Set the target of a position actuator, `scale` [rad or m] for each unit of the action, from where its joint is.

    `lower` and `upper` limit this distance.
    """
    moved = affine(i, action, scale, 0.0, lower, upper)
    state.ctrl[env, actuators[i].index] = actuators[i].gear * (state.qpos[env, actuators[i].qpos] + moved)


@wp.func
def control(
    state: Any,
    env: wp.int32,
    i: wp.int32,
    action: wp.float32,
    actuators: wp.array[wp.int32],
    scale: wp.array[wp.float32],
    offset: Any = None,
    lower: Any = None,
    upper: Any = None,
) -> None:
    """Set the control of an actuator of a joint, tendon or site, `scale` for each unit of the action."""
    state.ctrl[env, actuators[i]] = affine(i, action, scale, number_of(i, offset, 0.0), lower, upper)


tendon_length = tendon_velocity = tendon_effort = site_effort = control


@wp.func
def affine(
    i: wp.int32, action: wp.float32, scale: wp.array[wp.float32], offset: wp.float32, lower: Any, upper: Any
) -> wp.float32:
    """Return offset + scale * action, within the limits that there are."""
    target = offset + scale[i] * action
    return wp.clamp(target, number_of(i, lower, -wp.inf), number_of(i, upper, wp.inf))


@wp.func
def number_of(i: wp.int32, numbers: wp.array[wp.float32], otherwise: wp.float32) -> wp.float32:  # noqa: ARG001
    """Return the number of a name."""
    return numbers[i]


@wp.func
def number_of(i: wp.int32, numbers: wp.int32, otherwise: wp.float32) -> wp.float32:  # noqa: ARG001, F811
    """Return what holds where there are no numbers."""
    return otherwise
