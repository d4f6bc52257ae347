"""Environment steps per second without a policy, measured in a process of its own, on one CPU core.

A task that has a twin in another engine is held against it: both are stepped in the same process, one after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from shoal.bench.training import bench_environment
from shoal.errors import ShoalError
from shoal.tasks import registry

if TYPE_CHECKING:
    from shoal.config import BenchConfig

_BETWEEN_LOOKS = 64
"""Steps between two looks at the clock, which on a GPU waits for them all."""


def measure_environments(config: BenchConfig, device: str) -> dict[str, float]:
    """Return environment steps per second by engine.

    Raises:
        ShoalError: The task could not be stepped.
    """
    asked = {"task": config.task, "num_envs": config.num_envs, "device": device, "seconds": config.seconds}
    command = [sys.executable, "-c", f"from {__name__} import main; main()", json.dumps(asked)]
    done = subprocess.run(command, env=bench_environment(config), capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"The environments of {config.task} could not be measured: {done.stderr.strip()[-2000:]}"
        raise ShoalError(message)
    return json.loads(done.stdout.splitlines()[-1])


def _measure_here(task: str, num_envs: int, device: str, seconds: float) -> dict[str, float]:
    """Step the task, and its twin, in this process."""
    from shoal.sim.isolation import isolated

    # One core, and always the same one: what is compared is engines, not the scheduler's mood.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    spec = registry.resolve(task)
    with isolated(device, threads=1):
        rates = {f"shoal on {device}": _step_rate(spec.load_builder(), spec.env, num_envs, device, seconds)}
        twin = spec.load_twin()
        if twin is not None:
            rates["MuJoCo C, one core"] = twin(spec.env, num_envs).step_rate(seconds)
    return rates


def _step_rate(builder: Any, config: Any, num_envs: int, device: str, seconds: float) -> float:  # noqa: ANN401
    """Return environment steps per second of the whole step: dynamics, reward, reset and observation."""
    import torch

    from shoal.envs.vec_env import WarpVecEnv

    env = WarpVecEnv(builder(config, num_envs=num_envs, device=device, seed=0))
    actions = torch.rand(num_envs, env.num_actions, device=device) * 2 - 1
    for _ in range(_BETWEEN_LOOKS):
        env.step(actions)
    steps, started = 0, time.perf_counter()
    while True:
        for _ in range(_BETWEEN_LOOKS):
            env.step(actions)
        steps += _BETWEEN_LOOKS
        if device != "cpu":
            torch.cuda.synchronize(device)
        elapsed = time.perf_counter() - started
        if elapsed >= seconds:
            return steps * num_envs / elapsed


def main() -> None:
    """Be the measuring process: take what to measure from the command line, and print the rates as JSON."""
    sys.stdout.write(json.dumps(_measure_here(**json.loads(sys.argv[1]))) + "\n")
