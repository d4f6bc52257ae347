"""GPU memory: the sizes that tasks declare, as measured, and how a training ends on a GPU that is too small for it."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
import torch
import warp as wp
from support.commands import TRAIN
from support.emulated_gpu import Settings, environment, machine

from shoal.errors import TrainingFailedError
from shoal.sim.gpu_memory import translate_memory_errors
from shoal.sim.graphs import capture_error
from shoal.tasks.registry import TaskSpec, registered

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.emulated_gpu

GPU = "cuda:0"
SMALL, LARGE = 8, 24
"""Numbers of environments that are built. Memory is a linear function of them: so are all sizes of MuJoCo Warp's."""
SHORTFALL = 0.03
"""How much less than measured a declared size may be."""
SHIPPED = [
    name
    for name, spec in registered().items()
    if spec.builder.startswith("shoal.tasks.")
    and name != "Hand-Reorient-Cube"  # Its model is in another package.
    and (not name.startswith("G1-") or all(map(importlib.util.find_spec, ("mjlab", "holosoma"))))  # And theirs.
]


def build(spec: TaskSpec, num_envs: int) -> tuple[int, int]:
    """Build a task, and return the most memory that it took [bytes] and the numbers in an observation."""
    gc.collect()
    driver = machine().driver
    assert driver is not None
    before = driver.peak_bytes = driver.live_bytes
    task = spec.load_builder()(spec.env, num_envs=num_envs, device=GPU, seed=0)
    return driver.peak_bytes - before, sum(task.observations.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_a_task_declares_what_an_environment_takes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log file.
    spec = registered()[name]
    wp.init()
    (small, observation_size), (large, _) = build(spec, SMALL), build(spec, LARGE)
    bytes_per_env = (large - small) / (LARGE - SMALL)
    assert (1 - SHORTFALL) * bytes_per_env <= spec.gpu_bytes_per_env <= bytes_per_env
    assert spec.observation_size == observation_size


@pytest.mark.parametrize(
    ("flags", "num_envs", "flag"),
    [(("--num-envs", "20000"), "20,000", "--num-envs"), (("--num-envs-total", "20000"), "20,000", "--num-envs-total")],
)
def test_a_training_that_runs_out_of_gpu_memory_ends_with_one_sentence(
    flags: tuple[str, ...], num_envs: str, flag: str, tmp_path: Path
) -> None:
    # Cartpole-Swingup takes 77 bytes an environment. NVML reports more memory, so that the training starts.
    environ = os.environ | environment(Settings(count=1, memory_bytes=1 << 20))
    words = (*TRAIN, "Cartpole-Swingup", "--gpu-ids", "0", "--max-iterations", "1", "--log-root", str(tmp_path))
    ended = subprocess.run([*words, *flags], env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    *_, last = ended.stderr.splitlines()
    assert last.startswith(
        f"Error: A worker with {num_envs} environments ran out of memory on GPU 0 (Emulated GPU), when "
    )
    assert last.endswith(f" of its 1.0 MiB were free: pass a smaller {flag}, or end other processes that use this GPU.")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.6 GiB."
        ),
        RuntimeError("Failed to allocate 2147483648 bytes on device 'cuda:0'"),
        RuntimeError("Graph launch error: Warp CUDA error 2: out of memory (in function wp_cuda_graph_launch)"),
    ],
)
def test_errors_of_torch_and_warp_about_gpu_memory_are_translated(error: RuntimeError) -> None:
    wp.init()
    with (
        pytest.raises(
            TrainingFailedError, match=r"^A worker with 4,096 environments ran out of memory on GPU 0 "
        ) as caught,
        translate_memory_errors(GPU, 4096, "--num-envs"),
    ):
        raise error
    assert caught.value.__cause__ is error


def test_a_graph_that_cuda_has_no_memory_for_is_no_failed_capture() -> None:
    error = RuntimeError("Graph launch error: Warp CUDA error 2: out of memory (in function wp_cuda_graph_launch)")
    with (
        pytest.raises(TrainingFailedError, match="ran out of memory on GPU 0"),
        translate_memory_errors(GPU, 4096, "--num-envs"),
    ):
        raise capture_error(wp.get_device(GPU), error) from error
