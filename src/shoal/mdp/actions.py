"""Actions: each turns column `i` of its actions, `action`, into controls."""

from typing import Any

import warp as wp

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
) -> None:
    """Set the target of a position servo around the default pose, `scale` [rad or m] for each unit of the action.

    The servo measures its angle with the error of its encoder.
    """
    target = actuators[i].default_pos + scale[i] * action - state.encoder_bias[env, actuators[i].dof]
    state.ctrl[env, actuators[i].index] = actuators[i].gear * target


@needs("position", "ctrlrange")
@wp.func
def ema_joint_position_to_limits(
    state: Any, env: wp.int32, i: wp.int32, action: wp.float32, actuators: wp.array[Actuator], alpha: wp.float32
) -> None:
    """Set the target of a position servo between the limits of its control, for actions from -1 to 1.

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
) -> None:
    """Set the target of a velocity servo, `scale` [rad/s or m/s] for each unit of the action."""
    state.ctrl[env, actuators[i].index] = actuators[i].gear * scale[i] * action


@needs("effort")
@wp.func
def joint_effort(
    state: Any,
    env: wp.int32,
    i: wp.int32,
    action: wp.float32,
    actuators: wp.array[Actuator],
    scale: wp.array[wp.float32],
) -> None:
    """Set the torque of a motor's joint, `scale` [N m or N] for each unit of the action."""
    state.ctrl[env, actuators[i].index] = scale[i] * action / (actuators[i].gear * actuators[i].gain)
