"""Building the environments of a task: those of Shoal, and those of others."""

from __future__ import annotations

from rsl_rl.env import VecEnv

from shoal.config import BaseEnvConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.heartbeat import Heartbeat
from shoal.sim.kernel_cache import exclusive_kernel_cache
from shoal.sim.kernel_task import KernelTask
from shoal.tasks.registry import TaskSpec


def build_vec_env(  # noqa: PLR0913  By name.
    spec: TaskSpec, config: BaseEnvConfig, *, num_envs: int, device: str, seed: int, beat: Heartbeat
) -> VecEnv:
    """Build environments, inside `isolated(device)`. One process of a machine at a time fills Warp's cache.

    `beat` gets the phases ``queue``, while it waits for the others, and ``compile``.

    Raises:
        UsageError: The task cannot be built, or its builder returns something else than environments.
    """
    beat.enter("queue")
    with exclusive_kernel_cache():
        beat.enter("compile")
        built = spec.build(config, num_envs=num_envs, device=device, seed=seed)
    env = WarpVecEnv(built) if isinstance(built, KernelTask) else built
    if not isinstance(env, VecEnv):
        raise UsageError(
            f"{spec.builder} returned a {type(env).__name__} for the task {spec.name}: return a subclass of "
            "rsl_rl.env.VecEnv, or of Shoal's KernelTask."
        )
    if env.num_envs != num_envs:
        raise UsageError(
            f"{spec.builder} was asked for {num_envs} environments, and returned {env.num_envs} for the task "
            f"{spec.name}: make as many as its argument num_envs says."
        )
    return env
