"""The engine that a configuration asks for."""

from collections.abc import Mapping
from typing import Any

import mujoco
import torch
import warp as wp

from shoal.config.env import MujocoConfig
from shoal.config.plain import to_plain
from shoal.sim.engines.engine import Engine
from shoal.sim.engines.mujoco_engine import MujocoEngine


def build_engine(
    model: mujoco.MjModel, config: MujocoConfig, *, num_envs: int, device: wp.Device, declared: Mapping[str, int]
) -> Engine:
    """Return the engine of a configuration whose `engine` is chosen; `declared` are a task's own capacities, by flag.

    Raises:
        UsageError: The engine cannot simulate this model.
    """
    if config.engine == "mujoco":
        threads = torch.get_num_threads()
        return MujocoEngine(model, num_envs=num_envs, decimation=config.decimation, device=device, threads=threads)
    from shoal.sim.engines.mjwarp_engine import MjwarpEngine  # Slow to import, and not needed on the CPU.

    return MjwarpEngine(
        model,
        num_envs=num_envs,
        decimation=config.decimation,
        device=device,
        declared=dict(declared),
        chosen={name: value for name in MujocoConfig.size_fields if (value := getattr(config, name)) is not None},
        deterministic=config.deterministic,
    )


def declared_capacities(task: Any, config: MujocoConfig) -> dict[str, int]:  # noqa: ANN401  The class of a task.
    """Return the `capacities` of a class by their flags; nothing for another model than the declaring class's."""
    declaring = next(each for each in task.__mro__ if "capacities" in vars(each))
    if task.capacities is None or any(
        to_plain(getattr(config, name)) != to_plain(getattr(declaring.config, name)) for name in config.model_fields
    ):
        return {}
    return dict(zip(MujocoConfig.size_fields, task.capacities, strict=True))
