"""On a GPU, a task whose room for contacts or constraints did not suffice gets more, and a new graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import emulated_gpu
from support.bouncing_task import BouncingTask, CrampedTask

from shoal.sim.isolation import isolated

pytestmark = pytest.mark.emulated_gpu

GPU = "cuda:0"


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_step_is_captured_anew_with_more_room(deterministic: bool) -> None:
    machine = emulated_gpu.machine()

    def built(kind: type[BouncingTask]) -> BouncingTask:
        return kind(replace(kind.config, deterministic=deterministic), num_envs=3, device=GPU, seed=0)

    def advance(task: BouncingTask) -> None:
        for _ in range(40):
            task.step()

    with isolated(GPU):
        small, large = built(CrampedTask), built(BouncingTask)
        advance(small)
        old: Any = small.graph
        assert "is 6 from now on" in small.take_warnings()["constraints 6"]
        assert small.graph is not old
        assert small.graph.is_captured
        for name, array in small.arrays.items():
            large.arrays[name].assign(array)
        assert machine.driver is not None
        launches = machine.driver.graph_launches
        advance(small)
        assert machine.driver.graph_launches == launches + 40
        advance(large)
        assert small.take_warnings() == {}
    for name, array in small.arrays.items():
        np.testing.assert_allclose(array.numpy(), large.arrays[name].numpy(), atol=1e-6, err_msg=name)
    assert [(each.what, each.stack[-1]) for each in machine.violations] == []
