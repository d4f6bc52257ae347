"""Actions: each turns column `i` of its actions, `action`, into controls. Names are mjlab's where it has the term.

Where `action` is a vector, there is no `i`, and the function turns all of its columns into controls. `scale`, `offset`,
and `lower` and `upper`, the limits of what is set, are each a number, or numbers by pattern; a kernel has nothing of
those that are not declared.

A function with a parameter `physics_step` is called before each physics step, with its number, from 0; others once.
"""

from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import (
    Activation,
    ActuatorIds,
    Actuators,
    CommandColumn,
    InputOrder,
    Network,
    Numbers,
    OptionalNumbers,
)
from shoal.mdp.base import is_commanded, periods_of
from shoal.mdp.inverse_kinematics import differential_ik, differential_ik_position  # noqa: F401  Named here.
from shoal.mdp.needs import CTRLRANGE, EFFORT, POSITION, VELOCITY
from shoal.mdp.networks import output_of, remember_inputs


@wp.func
def joint_position(
    state: Any,
    env: int,
    i: int,
    action: float,
    actuators: Annotated[Actuators, POSITION],
    scale: Numbers,
    offset: OptionalNumbers = None,
    lower: OptionalNumbers = None,
    upper: OptionalNumbers = None,
) -> None:
    """Set the target of a position actuator, `scale` [rad or m] for each unit of the action.

    It is around the default pose, or around `offset`. The actuator measures its angle with the error of its encoder.
    """
    target = target_of(state, env, i, action, actuators, scale, offset, lower, upper)
    state.ctrl[env, actuators[i].index] = actuators[i].gear * target


@wp.func
def target_of(
    state: Any,
    env: int,
    i: int,
    action: float,
    actuators: Actuators,
    scale: Numbers,
    offset: OptionalNumbers,
    lower: OptionalNumbers,
    upper: OptionalNumbers,
) -> float:
    """Return the target of a joint, less the error of its encoder [rad or m]."""
    target = affine(i, action, scale, number_of(i, offset, actuators[i].default_pos), lower, upper)
    return target - state.encoder_bias[env, actuators[i].dof]


@wp.func
def gait_joint_position(
    state: Any,
    env: int,
    i: int,
    action: float,
    actuators: Annotated[Actuators, POSITION],
    command: CommandColumn,
    scale: Numbers,
    swing: Numbers,
    shift: Numbers,
    period: float,
    command_threshold: float = 0.05,
) -> None:
    """Set the target of a position actuator as `joint_position` does, around a pose that steps in place.

    That is the default pose, and in the second half of each `period` [s], while the foot is in the air, a sine squared
    with an amplitude of `swing` [rad or m] on it: it begins and ends at rest. The period of a joint begins `shift`, a
    share of it, before that of `gait_phase`. Where no speed is commanded there are no steps. Ijspeert, "Central pattern
    generators for locomotion control in animals and robots", 2008; Johannink et al., "Residual reinforcement learning
    for robot control", arXiv:1812.03201.
    """
    phase = periods_of(state, env, period) + shift[i]
    up = wp.max(0.0, -wp.sin(2.0 * wp.pi * phase))
    lift = up * up * is_commanded(state, env, command, command_threshold)
    target = actuators[i].default_pos + swing[i] * lift + scale[i] * action
    state.ctrl[env, actuators[i].index] = actuators[i].gear * (target - state.encoder_bias[env, actuators[i].dof])


@wp.func
def ema_joint_position_to_limits(
    state: Any, env: int, i: int, action: float, actuators: Annotated[Actuators, CTRLRANGE, POSITION], alpha: float
) -> None:
    """Set the target of a position actuator between the limits of its control, for actions from -1 to 1.

    The target is a moving average: `alpha` of what the action asks for, and the rest of the last target.
    """
    index = actuators[i].index
    limits = state.default_actuator_ctrlrange[index]
    wanted = 0.5 * (limits[0] + limits[1] + action * (limits[1] - limits[0]))
    state.ctrl[env, index] = alpha * wanted + (1.0 - alpha) * state.ctrl[env, index]


@wp.func
def joint_velocity(
    state: Any,
    env: int,
    i: int,
    action: float,
    actuators: Annotated[Actuators, VELOCITY],
    scale: Numbers,
    offset: OptionalNumbers = None,
    lower: OptionalNumbers = None,
    upper: OptionalNumbers = None,
) -> None:
    """Set the target of a velocity actuator, `scale` [rad/s or m/s] for each unit of the action."""
    target = affine(i, action, scale, number_of(i, offset, 0.0), lower, upper)
    state.ctrl[env, actuators[i].index] = actuators[i].gear * target


@wp.func
def joint_effort(
    state: Any,
    env: int,
    i: int,
    action: float,
    actuators: Annotated[Actuators, EFFORT],
    scale: Numbers,
    offset: OptionalNumbers = None,
    lower: OptionalNumbers = None,
    upper: OptionalNumbers = None,
) -> None:
    """Set the torque of a motor's joint, `scale` [N m or N] for each unit of the action."""
    torque = affine(i, action, scale, number_of(i, offset, 0.0), lower, upper)
    state.ctrl[env, actuators[i].index] = torque / (actuators[i].gear * actuators[i].gain)


@wp.func
def learned_actuator(
    state: Any,
    env: int,
    i: int,
    action: float,
    physics_step: int,
    actuators: Annotated[Actuators, EFFORT],
    network_file: Network,
    scale: Numbers,
    saturation_effort: Numbers,
    velocity_limit: Numbers,
    pos_scale: float = 1.0,
    vel_scale: float = 1.0,
    torque_scale: float = 1.0,
    activation: Activation = 0,
    input_order: InputOrder = 0,
    offset: OptionalNumbers = None,
    lower: OptionalNumbers = None,
    upper: OptionalNumbers = None,
) -> None:
    """Set the torque of a motor's joint as a network does, an MLP or LSTM, for a target as of `joint_position`.

    Before each physics step it gets position error and speed times their scales, the newest first, and an MLP those of
    the last steps too. The torque lies within a DC motor's curve of `saturation_effort` [N m] and `velocity_limit`
    [rad/s].
    """
    speed = state.qvel[env, actuators[i].dof]
    target = target_of(state, env, i, action, actuators, scale, offset, lower, upper)
    error = pos_scale * (target - state.qpos[env, actuators[i].qpos])
    is_first = physics_step == 0 and state.age[env] == 1
    remember_inputs(network_file, env, i, error, vel_scale * speed, input_order, is_first)
    torque = torque_scale * output_of(network_file, env, i, activation)
    stall, share = saturation_effort[i], speed / velocity_limit[i]
    torque = wp.clamp(torque, stall * (-1.0 - share), stall * (1.0 - share))
    state.ctrl[env, actuators[i].index] = torque / (actuators[i].gear * actuators[i].gain)


@wp.func
def relative_joint_position(
    state: Any,
    env: int,
    i: int,
    action: float,
    actuators: Annotated[Actuators, POSITION],
    scale: Numbers,
    lower: OptionalNumbers = None,
    upper: OptionalNumbers = None,
) -> None:
    """Set the target of a position actuator, `scale` [rad or m] for each unit of the action, from where its joint is.

    `lower` and `upper` limit this distance.
    """
    moved = affine(i, action, scale, 0.0, lower, upper)
    state.ctrl[env, actuators[i].index] = actuators[i].gear * (state.qpos[env, actuators[i].qpos] + moved)


@wp.func
def control(
    state: Any,
    env: int,
    i: int,
    action: float,
    actuators: ActuatorIds,
    scale: Numbers,
    offset: OptionalNumbers = None,
    lower: OptionalNumbers = None,
    upper: OptionalNumbers = None,
) -> None:
    """Set the control of an actuator of a joint, tendon or site, `scale` for each unit of the action."""
    state.ctrl[env, actuators[i]] = affine(i, action, scale, number_of(i, offset, 0.0), lower, upper)


tendon_length = tendon_velocity = tendon_effort = site_effort = control


@wp.func
def affine(i: int, action: float, scale: Numbers, offset: float, lower: Any, upper: Any) -> float:
    """Return offset + scale * action, within the limits that there are."""
    target = offset + scale[i] * action
    return wp.clamp(target, number_of(i, lower, -wp.inf), number_of(i, upper, wp.inf))


@wp.func
def number_of(i: int, numbers: wp.array[wp.float32], otherwise: float) -> float:  # noqa: ARG001  # pyright: ignore[reportRedeclaration]  Warp overloads by name.
    """Return the number of a name."""
    return numbers[i]


@wp.func
def number_of(i: int, numbers: int, otherwise: float) -> float:  # noqa: ARG001, F811
    """Return what holds where there are no numbers."""
    return otherwise
