"""What only a GPU can show: one captured graph a step, the CPU's numbers, and a host that never waits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from support.vec_env_contract import random_actions

from shoal.envs.vec_env import WarpVecEnv
from shoal.tasks.cartpole.mujoco_task import SwingupMujoco
from shoal.tasks.cartpole.task import Balance, Swingup
from shoal.tasks.quadruped.task import FlatVelocity, RoughVelocity

pytestmark = pytest.mark.gpu

GPU = "cuda:0"
SLEEP_CYCLES = 2_000_000_000
"""How long the GPU is kept busy: about a second, whatever the card."""

each_kind = pytest.mark.parametrize(
    "task", [Swingup, SwingupMujoco, FlatVelocity, pytest.param(RoughVelocity, marks=pytest.mark.slow)]
)
"""A task of kernels, one with a model without contacts, and a robot on flat and on rough ground."""


def on_the_gpu(task: type[Any], num_envs: int = 64, seed: int = 0) -> WarpVecEnv:
    """Build a task there."""
    return WarpVecEnv(task(task.config, num_envs=num_envs, device=GPU, seed=seed))


@pytest.mark.parametrize("task", [Balance, Swingup])
def test_a_captured_step_gives_the_cpu_s_numbers(task: type[Balance | Swingup]) -> None:
    on_cpu, on_gpu = (
        WarpVecEnv(task(task.config, num_envs=256, device=device, seed=5))  # pyright: ignore[reportArgumentType]
        for device in ("cpu", GPU)
    )
    assert on_gpu.task.graph.is_captured
    # Random numbers are integers first, and so equal; sines and fused multiplications round differently.
    states = [env.task.arrays["state"].numpy() for env in (on_gpu, on_cpu)]
    np.testing.assert_allclose(*states, rtol=1e-6, atol=1e-6)
    for actions in random_actions(on_cpu, 50):
        here = on_cpu.step(actions)
        there = on_gpu.step(actions.to(GPU))
        same_end = there[2].cpu() == here[2]
        # An episode may end a step apart where a pole leans by the limit to the last digit.
        assert same_end.float().mean() > 0.99
        torch.testing.assert_close(there[0]["policy"].cpu()[same_end], here[0]["policy"][same_end], rtol=0, atol=1e-3)
        torch.testing.assert_close(there[1].cpu()[same_end], here[1][same_end], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("task", "steps"),
    [
        pytest.param(SwingupMujoco, 50, marks=pytest.mark.slow),
        (FlatVelocity, 3),
        pytest.param(FlatVelocity, 10, marks=pytest.mark.slow),
        pytest.param(RoughVelocity, 10, marks=pytest.mark.slow),
    ],
)
def test_mujoco_warp_on_a_gpu_gives_the_numbers_of_mujoco_on_the_cpu(task: type[Any], steps: int) -> None:
    on_cpu = WarpVecEnv(task(task.config, num_envs=64, device="cpu", seed=5))
    on_gpu = on_the_gpu(task, seed=5)
    here: Any = on_cpu.task
    there: Any = on_gpu.task
    assert (here.engine.name, there.engine.name) == ("mujoco", "mjwarp")
    assert on_gpu.task.graph.is_captured
    for actions in random_actions(on_cpu, steps):
        on_cpu.step(0.3 * actions)
        on_gpu.step(0.3 * actions.to(GPU))
    # 32 bits against 64, and solvers that stop at different residuals: feet that touch down make it larger, and an edge
    # of a stair that only one of the two hits larger still.
    apart = np.abs(there.qpos.numpy() - here.qpos.numpy())
    assert np.quantile(apart, 0.999) < 0.02
    assert apart.max() < 0.1


@pytest.mark.gpu(real="its time is compared with the host's")
@each_kind
def test_a_step_does_not_wait_for_the_gpu(task: type[Any]) -> None:
    env = on_the_gpu(task)
    actions = torch.zeros(64, env.num_actions, device=GPU)
    for _ in range(2):  # Both records are instantiated at their first replay.
        env.step(actions)
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    started = time.perf_counter()
    for _ in range(10):
        env.step(actions)
    queued = time.perf_counter() - started
    torch.cuda.synchronize()
    finished = time.perf_counter() - started
    assert queued < finished / 4


@each_kind
def test_a_step_asks_torch_for_no_synchronisation(task: type[Any]) -> None:
    env = on_the_gpu(task)
    actions = torch.zeros(64, env.num_actions, device=GPU)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            env.step(actions)
            env.get_observations()
            env.episode_length_buf = env.episode_length_buf
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu(real="work has to queue up")
def test_steps_keep_their_order_on_a_stream_of_torch_s_own() -> None:
    on_cpu, on_gpu = (
        WarpVecEnv(Swingup(Swingup.config, num_envs=64, device=device, seed=1)) for device in ("cpu", GPU)
    )
    stream = torch.cuda.Stream(GPU)
    stream.wait_stream(torch.cuda.current_stream(GPU))
    with torch.cuda.stream(stream):
        # Actions that arrive late: a step on any other stream would take what was there before.
        late = torch.zeros(64, 1, device=GPU)
        torch.cuda._sleep(SLEEP_CYCLES // 10)
        late.fill_(1.0)
        for _ in range(3):
            on_gpu.step(late)
        got = on_gpu.get_observations()["policy"].clone()
    stream.synchronize()
    for _ in range(3):
        on_cpu.step(torch.ones(64, 1))
    torch.testing.assert_close(got.cpu(), on_cpu.get_observations()["policy"], rtol=0, atol=1e-4)
