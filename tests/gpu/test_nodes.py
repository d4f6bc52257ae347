"""The nodes of a captured step that are not physics steps: the budget of a task's own part on a GPU.

The graph is dense, so that its length is its nodes'. Whoever raises a number here says in the commit what for.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from support import emulated_gpu

from shoal.config.env import MujocoConfig
from shoal.sim.graphs import CapturedGraph
from shoal.sim.isolation import isolated
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.mdp.task import TermsTask

pytestmark = pytest.mark.emulated_gpu

GPU = "cuda:0"

RESET = 4
"""Kernels of MuJoCo Warp that reset worlds."""
KINEMATICS = 5
"""Kernels of MuJoCo Warp's forward kinematics, one fewer without sites."""
CLEARED = 1
"""Memsets: `moved`."""

OWN = {
    # Actions, rewards, the end of the step, reset, interval events and observations are one kernel each.
    "Quadruped-Velocity-Flat": 6 + RESET + CLEARED,
    # The height scan is a kernel of its own.
    "Quadruped-Velocity-Rough": 7 + RESET + CLEARED,
    # Observations read positions of the new episode, which are copied by one kernel more.
    "Arm-Lift-Cube": 7 + RESET + KINEMATICS + CLEARED,
    # Two observations are kernels of their own.
    "Humanoid-Tracking-Flat": 9 + RESET + (KINEMATICS - 1) + CLEARED,
}
"""Kernels, copies and memsets of a step that the physics steps alone do not have."""


def captured(name: str) -> TermsTask[Any]:
    """A shipped task on the emulated GPU."""
    spec = registry.resolve(name)
    assert isinstance(spec.env, MujocoConfig)
    env = dataclasses.replace(spec.env, engine="mjwarp")
    return spec.load_builder()(env, num_envs=2, device=GPU, seed=0)


def nodes(graph: CapturedGraph) -> Counter[str]:
    """The nodes of a graph by kind, without those of memory, which take no time on the device."""
    driver = emulated_gpu.machine().driver
    assert driver is not None
    return Counter({kind: count for kind, count in driver.nodes_of(graph._graph).items() if kind[:7] != "memory "})


def graph_behind(launch: Callable[[], None]) -> CapturedGraph:
    """The graph whose method this is."""
    found = getattr(launch, "__self__", None)
    assert isinstance(found, CapturedGraph)
    return found


@pytest.mark.parametrize("name", OWN)
def test_a_step_has_few_nodes_beside_the_physics(name: str) -> None:
    with isolated(GPU):
        task = captured(name)
        (step,) = task.graph._graphs
        own = nodes(step) - nodes(graph_behind(task.engine.bare()))
    assert own.total() <= OWN[name], dict(own)
