"""With --env.deterministic, a run does not depend on the order in which a GPU numbers contacts and constraint rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.tasks.gymnasium_v5.tasks import Ant
from shoal.tasks.quadruped.task import FlatVelocity, RoughVelocity

pytestmark = [pytest.mark.emulated_gpu, pytest.mark.slow, pytest.mark.timeout(900)]

GPU = "cuda:0"


@pytest.mark.parametrize(("task", "num_envs"), [(FlatVelocity, 16), (RoughVelocity, 4), (Ant, 16)])
def test_runs_with_contacts_in_different_orders_are_bit_identical(task: type[Any], num_envs: int) -> None:
    one, other = (arrays_of_a_run(task, num_envs, order, deterministic=True) for order in range(2))
    assert differing(one, other) == []


@pytest.mark.parametrize(("task", "num_envs"), [(FlatVelocity, 16), (Ant, 16)])
def test_without_the_flag_they_differ(task: type[Any], num_envs: int) -> None:
    one, other = (arrays_of_a_run(task, num_envs, order, deterministic=False) for order in range(2))
    assert "data/qpos" in differing(one, other)


def arrays_of_a_run(task: type[Any], num_envs: int, order: int, *, deterministic: bool) -> dict[str, np.ndarray]:
    """Return all arrays of a task after some steps; each `order` is another order of contacts and rows."""
    from support.emulated_gpu.contacts import permuted_contacts

    with permuted_contacts(order) as counts:
        config = replace(task.config, deterministic=deterministic)
        built = task(config, num_envs=num_envs, device=GPU, seed=0)
        assert built.graph.is_captured
        generator = np.random.default_rng(0)
        for _ in range(20):
            built.actions.assign(generator.uniform(-1, 1, built.actions.shape).astype(np.float32))
            built.step()
    assert max(counts) > 1
    return {name: array.numpy().copy() for name, array in built.arrays.items()}


def differing(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    return [name for name in one if one[name].tobytes() != other[name].tobytes()]
