"""Every shipped task on a GPU: one graph launch a step, no wait of the host, the CPU's bytes, no other GPU touched."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support import emulated_gpu

from shoal import mdp
from shoal.config.env import MujocoConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.sim.isolation import isolated
from shoal.tasks import registry

if TYPE_CHECKING:
    from support.emulated_gpu import Machine

pytestmark = pytest.mark.emulated_gpu

GPU = "cuda:1"
LIKE_ANOTHER = {"Pusher-v5", "HumanoidStandup-v5", "Walker2d-v5", "InvertedDoublePendulum-v5"}
LIKE_ANOTHER |= {"Quadruped-Velocity-Rough-Depth", "Arm-Lift-Cube-Depth"}
LIKE_ANOTHER |= {"Quadruped-Velocity-Rough-Blind", "Arm-Lift-Cube", "Humanoid-v5", "Ant-v5", "Swimmer-v5"}
"""Tasks whose step differs from another's by the model or by terms only."""
ELSEWHERE = {"G1-Velocity-Flat", "G1-Velocity-Rough", "G1-Tracking-Flat", "Hand-Reorient-Cube"}
"""Tasks whose models are in other packages."""
NUM_ENVS = 3
STEPS = 4


EYES: dict[str, Any] = {
    "sensors": {
        "eye": {"update_period": 0.04, "use_textures": False},  # The emulation has no textures.
        "feelers": mdp.RayCast("ring", body="cart", ray_alignment="yaw"),
    },
    "observations": {
        "policy": {
            "rgb": mdp.Obs("camera_rgb", sensor_name="eye"),
            "parts": mdp.Obs("camera_segmentation", sensor_name="eye"),
        },
        "critic": {"feelers": mdp.Obs("ray_distances", sensor_name="feelers")},
    },
}
"""What cameras and rays have and no shipped task observes."""


def built(name: str, device: str, changes: dict[str, Any] | None = None) -> WarpVecEnv:
    """A shipped task, simulated by MuJoCo Warp if it has a MuJoCo model, perhaps with changes."""
    spec = registry.resolve(name)
    env: Any = dataclasses.replace(spec.env, engine="mjwarp") if isinstance(spec.env, MujocoConfig) else spec.env
    env = env.change(**changes) if changes else env
    return WarpVecEnv(spec.load_builder()(env, num_envs=NUM_ENVS, device=device, seed=0))


def counts(machine: Machine) -> tuple[int, Any, Any]:
    """Graph launches, and waits of Warp and of torch, so far."""
    assert machine.driver is not None
    assert machine.torch is not None
    return machine.driver.graph_launches, dict(machine.driver.waits), dict(machine.torch.waits)


def check_graph(name: str, changes: dict[str, Any] | None = None) -> None:
    machine = emulated_gpu.machine()
    draws = np.random.default_rng(0)
    with isolated(GPU):
        on_gpu = built(name, GPU, changes)
        assert on_gpu.task.graph.is_captured
        actions = [draws.uniform(-1, 1, (NUM_ENVS, on_gpu.num_actions)).astype(np.float32) for _ in range(STEPS)]
        there = [torch.as_tensor(each).to(GPU) for each in actions]
        launches, *waits = counts(machine)
        for each in there:
            on_gpu.step(each)
            on_gpu.get_observations()
        assert counts(machine) == (launches + STEPS, *waits)
        arrays = {key: array.numpy() for key, array in on_gpu.task.arrays.items()}
        assert set(machine.contexts) == {1}
    assert [(each.what, each.stack[-1]) for each in machine.violations] == []
    with isolated("cpu"):
        on_cpu = built(name, "cpu", changes)
        for each in actions:
            on_cpu.step(torch.from_numpy(each))
    differing = [key for key, array in on_cpu.task.arrays.items() if array.numpy().tobytes() != arrays[key].tobytes()]
    assert differing == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in LIKE_ANOTHER else name
        for name in registry.registered()
        if name not in ELSEWHERE
    ],
)
def test_a_shipped_task_steps_as_one_graph(name: str) -> None:
    check_graph(name)


def test_cameras_and_rays_are_in_the_graph_of_a_step() -> None:
    check_graph("Cartpole-Swingup-Depth", EYES)
