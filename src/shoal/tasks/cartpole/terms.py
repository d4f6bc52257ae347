"""The reward of `Cartpole-Swingup-Mujoco`."""

from typing import Any

import warp as wp

from shoal.tasks.cartpole import kernels


@wp.func
def swung_up(state: Any, env: int, centred_margin: float, slow_margin: float) -> float:
    """Reward an upright and slow pole over a centred cart, at little force: 1 at most.

    The factors for position and speed have lost 90 % of what they can lose at the margins [m, rad/s].
    """
    row = wp.vec4(state.qpos[env, 0], state.qpos[env, 1], state.qvel[env, 0], state.qvel[env, 1])
    return kernels.swung_up(row, state.action[env, 0], centred_margin, slow_margin)
