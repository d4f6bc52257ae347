"""Environments that are lost, as real ones are: by physics that blow up, in environment 1 of a `BouncingTask`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from support.bouncing_task import BouncingTask

if TYPE_CHECKING:
    from shoal.sim.nan.dump import Dump

RUNAWAY = 60.0
"""So that the cart of environment 1 is lost within 30 to 60 steps."""
SEED = 7


def bouncing(num_envs: int = 3, device: str = "cpu", **changes: Any) -> BouncingTask:
    """Build a task that keeps the last 20 steps, in episodes that outlast every test here."""
    kept = {"on_nan": "stop", "replay_steps": 20, "episode_length_s": 60.0, "runaway_seed": SEED}
    config = replace(BouncingTask.config, **{**kept, **changes})
    return BouncingTask(config, num_envs=num_envs, device=device, seed=SEED)


def act(task: BouncingTask, rng: np.random.Generator) -> None:
    """Step with random actions."""
    task.actions.assign(rng.uniform(-1.0, 1.0, (task.num_envs, 1)).astype(np.float32))
    task.step()


def step_until_lost(task: BouncingTask) -> int:
    """Step until an environment diverges; return the number of steps."""
    rng = np.random.default_rng(0)
    for step in range(1, 100):
        act(task, rng)
        if task.divergences.numpy().any():
            return step
    message = "Nothing was lost."
    raise AssertionError(message)


def dump_of(task: BouncingTask, rank: int = 0) -> Dump:
    """What the task would leave."""
    dump = task.dump("Bouncing", rank=rank, iteration=3)
    assert dump is not None
    return dump


def part_of(task: BouncingTask, states: np.ndarray, component: mujoco.mjtState) -> np.ndarray:
    """One component of states as a dump has them. Shape (steps, size)."""
    spec = int(component)
    parts = np.empty((len(states), mujoco.mj_stateSize(task.model, spec)))
    for state, part in zip(states, parts, strict=True):
        mujoco.mj_extractState(task.model, state, int(mujoco.mjtState.mjSTATE_INTEGRATION), part, spec)
    return parts
