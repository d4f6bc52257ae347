"""Import of skrl without its side effects."""

import logging
from typing import Any

from rsl_rl.env import VecEnv

from shoal.config.skrl import SkrlConfig, SkrlJaxConfig
from shoal.learn.groups import World
from shoal.learn.learner import Learner
from shoal.plan.ranks import without

_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "JAX_RANK", "JAX_LOCAL_RANK", "JAX_WORLD_SIZE")


def build(env: VecEnv, config: SkrlConfig | SkrlJaxConfig, world: World) -> Learner:
    """Return an agent of skrl as a learner."""
    with without(_VARIABLES):  # It opens a process group over NCCL where it finds them.
        import skrl
    logging.getLogger("skrl").handlers.clear()  # It prints in colours of its own.
    settings: Any = skrl.config.jax if isinstance(config, SkrlJaxConfig) else skrl.config.torch
    settings._rank, settings._local_rank = world.rank, world.local_rank  # noqa: SLF001  It has no other way.
    settings._world_size, settings._is_distributed = world.size, world.is_distributed  # noqa: SLF001
    if isinstance(config, SkrlJaxConfig):
        import jax

        backend, _, index = world.device.partition(":")
        settings._device = jax.devices("cuda" if backend == "cuda" else "cpu")[int(index or 0)]  # noqa: SLF001
        # It would take the first device of all ranks; only torch distinguishes ranks here.
        settings.parse_device = lambda device: device or settings._device  # noqa: SLF001
        from shoal.learn.skrl.jax_learner import SkrlJaxLearner

        return SkrlJaxLearner(env, config, world)
    settings.device = world.device
    from shoal.learn.skrl.learner import SkrlLearner

    return SkrlLearner(env, config, world)
