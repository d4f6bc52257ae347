"""A task starts though a GPU numbers contacts differently in each run of a step, and a faulty one is still refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import warp as wp

from shoal.errors import ShoalError
from shoal.tasks.quadruped.task import FlatVelocity, RoughVelocity

if TYPE_CHECKING:
    from shoal.sim.task import Stage

pytestmark = pytest.mark.emulated_gpu

GPU = "cuda:0"


@pytest.mark.parametrize(
    ("task", "num_envs"), [pytest.param(FlatVelocity, 256, marks=pytest.mark.slow), (RoughVelocity, 16)]
)
def test_a_robot_in_contact_starts(task: type[Any], num_envs: int) -> None:
    from support.emulated_gpu.contacts import permuted_contacts

    with permuted_contacts() as counts:
        built = task(task.config, num_envs=num_envs, device=GPU, seed=0)
        assert built.graph.is_captured
        assert max(counts) > num_envs
        states = [_state_after(built, seed=3) for _ in range(2)]
    assert not np.array_equal(states[0], states[1]), "The order of contacts makes no difference: nothing was tested."


def _state_after(task: Any, seed: int) -> np.ndarray:
    task.restart(seed)
    for _ in range(5):
        task.step()
    return task.qpos.numpy()


@wp.kernel(enable_backward=False)
def shift(amount: wp.float32, values: wp.array2d[wp.float32]) -> None:
    """Add a tiny amount to the first column."""
    env = wp.tid()
    values[env, 0] = values[env, 0] + 1.0e-7 * amount


class Counts(FlatVelocity):
    """Passes a number to a kernel that Python changes from step to step."""

    def stages(self) -> list[Stage]:
        return [("act", self.shift), *super().stages()]

    def shift(self) -> None:
        self.calls = getattr(self, "calls", 0.0) + 1.0
        self.launch(shift, inputs=[self.calls], outputs=[self.ctrl])


def test_a_task_that_passes_other_numbers_at_each_step_is_refused() -> None:
    from support.emulated_gpu.contacts import permuted_contacts

    with (
        permuted_contacts(),
        pytest.raises(ShoalError, match="Counts launches other kernels than when it was captured"),
    ):
        Counts(Counts.config, num_envs=16, device=GPU, seed=0)
