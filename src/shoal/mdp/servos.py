"""Position servos in each environment: MuJoCo's position actuators, and its DC motors with a target position."""

from typing import Any

import warp as wp

from shoal.mdp.names import NO_LIMIT, Actuator

_NO_LIMIT = wp.constant(NO_LIMIT)


@wp.func
def servo_torque(state: Any, env: wp.int32, servo: Actuator) -> wp.float32:
    """Return the torque of a servo or motor that follows from the present state and control [N m]."""
    gain = state.actuator_gainprm[env, servo.index]
    bias = state.actuator_biasprm[env, servo.index]
    control, speed = state.ctrl[env, servo.index], state.qvel[env, servo.dof]
    torque = gain[0] * control + bias[1] * state.qpos[env, servo.qpos] + bias[2] * speed
    if servo.is_dc_motor != 0:
        # MuJoCo's layout: resistance, motor constant (1), ..., stiffness, ..., damping, largest voltage.
        stall = gain[7] / gain[0]
        torque = gain[4] * (control - state.qpos[env, servo.qpos]) - gain[6] * speed
        torque = wp.clamp(torque, stall * (-1.0 - speed / gain[7]), stall * (1.0 - speed / gain[7]))
    limits = state.actuator_forcerange[env, servo.index]
    return wp.where(servo.limit < _NO_LIMIT, wp.clamp(torque, limits[0], limits[1]), torque)
