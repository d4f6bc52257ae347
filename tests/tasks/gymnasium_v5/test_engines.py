"""Each task on both engines: MuJoCo Warp against MuJoCo's C engine, from the same states under the same actions.

A model's first test waits for MuJoCo Warp's kernels, which are compiled once and kept in Warp's cache. All of them take
two minutes of one core with an empty cache, and half a minute with a full one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import pytest

from shoal.tasks.gymnasium_v5.specs import SPECS

if TYPE_CHECKING:
    from shoal.tasks.gymnasium_v5.tasks import GymnasiumTask
    from shoal.tasks.registry import TaskSpec

STEPS = 10
SMALL_ACTIONS = 0.3
"""As a part of the action space: where joints do not slam into their limits, a difference does not grow."""
POSITIONS = 1e-5
"""MuJoCo Warp computes in 32 bits: 1e-7 a step, times what contacts and stiff joints make of it in 50 physics steps."""
SPEEDS = 2e-4
"""The same, times the accelerations: up to a thousand m/s² in a contact, by 0.01 s."""
FORCES = 3e-3
"""Of forces, relative to the greatest of their field: both solvers stop at an improvement, and so short of the end by
as much as one digit of 32 bits is worth in the stiffest constraint."""


def on_both_engines(spec: TaskSpec) -> list[GymnasiumTask]:
    """Return the task on both engines, with one model that both can simulate."""
    task: Any = spec.load_builder()
    model = task.build_model(replace(spec.env, engine="mjwarp"))
    if spec.name == "Ant-v5":
        # Where a capsule touches a plane, MuJoCo Warp lays the tangents of the contact elsewhere. To the pyramid that
        # stands for the cone of friction this matters, to the cone itself it does not.
        model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC

    class WithOneModel(task):
        @classmethod
        def build_model(cls, config: object) -> mujoco.MjModel:
            del config
            return model

    engines = (replace(spec.env, engine=name) for name in ("mujoco", "mjwarp"))
    return [WithOneModel(config, num_envs=2, device="cpu", seed=3) for config in engines]


def allowed(name: str, values: np.ndarray) -> float:
    """Return how far a field may be off."""
    if name.startswith(("qfrc", "cfrc")):
        return FORCES * max(1.0, float(np.abs(values).max()))
    return SPEEDS if name in {"qvel", "cvel"} else POSITIONS


IN_CI = {"Ant-v5", "Hopper-v5", "InvertedDoublePendulum-v5"}
"""With contacts in space, with contacts in a plane, and without. `make test-soak` has the others."""


@pytest.mark.slow
@pytest.mark.timeout(900)  # The first one compiles most of the kernels, and other processes may use the core too.
@pytest.mark.parametrize(
    "spec",
    [spec if spec.name in IN_CI else pytest.param(spec, marks=pytest.mark.soak) for spec in SPECS],
    ids=lambda spec: spec.name,
)
def test_both_engines_show_the_same(spec: TaskSpec) -> None:
    native, warp = on_both_engines(spec)
    rng = np.random.default_rng(0)
    low, high = SMALL_ACTIONS * native.model.actuator_ctrlrange.T
    for step in range(STEPS):
        for name, field in native.engine.fields.items():
            if step == 0 and name not in warp.engine.begun:
                continue  # Rewards alone read it: MuJoCo Warp derives it in the first physics step.
            values = field.numpy()
            np.testing.assert_allclose(
                warp.data(name).numpy(), values, rtol=0, atol=allowed(name, values), err_msg=name
            )
        actions = rng.uniform(low, high, native.actions.shape).astype(np.float32)
        for task in (native, warp):
            task.actions.assign(actions)
            task.step()
        assert (native.done.numpy() == warp.done.numpy()).all()
        # The greatest weight is 333 a metre.
        np.testing.assert_allclose(warp.reward.numpy(), native.reward.numpy(), rtol=1e-4, atol=1e-3)
    assert warp.take_warnings() == native.take_warnings() == {}
