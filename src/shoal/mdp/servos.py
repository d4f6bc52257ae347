"""Position servos in each environment: MuJoCo's position actuators, and its DC motors with a target position."""

# Kernel bodies are Warp's language, whose numbers and arrays pyright reads as Python's. Arrays come by position.
# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false, reportInvalidTypeForm=false
# pyright: reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

from typing import Any

import warp as wp

from shoal.mdp.names import Actuator


@wp.func
def servo_torque(state: Any, env: wp.int32, servo: Actuator) -> wp.float32:
    """Return the torque of a servo that follows from the present state and target [N m]."""
    gain = state.actuator_gainprm[env, servo.index]
    bias = state.actuator_biasprm[env, servo.index]
    error = state.ctrl[env, servo.index] - state.qpos[env, servo.qpos]
    speed = state.qvel[env, servo.dof]
    torque = gain[0] * error + bias[2] * speed
    if servo.is_dc_motor != 0:
        # MuJoCo's layout: resistance, motor constant (1), ..., stiffness, ..., damping, largest voltage.
        stall = gain[7] / gain[0]
        torque = gain[4] * error - gain[6] * speed
        torque = wp.clamp(torque, stall * (-1.0 - speed / gain[7]), stall * (1.0 - speed / gain[7]))
    return wp.clamp(torque, -servo.limit, servo.limit)


@wp.func
def scale_gains(state: Any, env: wp.int32, servo: Actuator, kp: wp.float32, kd: wp.float32) -> None:
    """Set stiffness and damping of a servo to multiples of the model's."""
    usual = state.default_actuator_gainprm[servo.index]
    gain = state.actuator_gainprm[env, servo.index]
    bias = state.actuator_biasprm[env, servo.index]
    if servo.is_dc_motor != 0:
        gain[4] = kp * usual[4]
        gain[6] = kd * usual[6]
    else:
        gain[0] = kp * usual[0]
        bias[1] = -kp * usual[0]
        bias[2] = kd * state.default_actuator_biasprm[servo.index][2]
    state.actuator_gainprm[env, servo.index] = gain
    state.actuator_biasprm[env, servo.index] = bias
