"""Environment steps per second without a policy, measured in a process of its own, on as many cores as a worker has.

A task with a MuJoCo model is held against the bare engine with the same model, threads, states and controls: both are
stepped in turn, a fraction of a second each, so that a busy machine slows both. A task that has a reference
simulation in another engine is held against that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from shoal import PYTHON
from shoal.bench.training import bench_environment
from shoal.errors import ShoalError
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.config import BenchConfig

_WARM_UP = 64
_BETWEEN_LOOKS = 8
"""Steps between two looks at the clock, which on a GPU waits for them all."""
_TURN_S = 0.25
"""How long one engine is stepped before it is the other's turn [s]."""


def measure_environments(config: BenchConfig, device: str) -> dict[str, float]:
    """Return environment steps per second by engine.

    Raises:
        ShoalError: The task could not be stepped.
    """
    asked = {
        "task": config.task,
        "num_envs": config.num_envs,
        "device": device,
        "seconds": config.seconds,
        "threads": config.threads,
    }
    command = [*PYTHON, "-c", f"from {__name__} import main; main()", json.dumps(asked)]
    done = subprocess.run(command, env=bench_environment(config), capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"The environments of {config.task} could not be measured: {done.stderr.strip()[-2000:]}"
        raise ShoalError(message)
    return json.loads(done.stdout.splitlines()[-1])


def _measure_here(task: str, num_envs: int, device: str, seconds: float, threads: int) -> dict[str, float]:
    """Step the task, and what it is held against, in this process."""
    import torch

    from shoal.envs.vec_env import WarpVecEnv
    from shoal.sim.isolation import isolated

    # Always the same cores: what is compared is engines, not the scheduler's mood.
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    spec = registry.resolve(task)
    with isolated(device, threads=threads):
        env = WarpVecEnv(spec.build(spec.env, num_envs=num_envs, device=device, seed=0))
        actions = torch.rand(num_envs, env.num_actions, device=device) * 2 - 1
        contestants: dict[str, Callable[[], object]] = {f"shoal on {device}": lambda: env.step(actions)}
        for _ in range(_WARM_UP):
            env.step(actions)
        engine = getattr(env.task, "engine", None)
        if engine is not None:
            contestants[f"bare {engine.title}"] = engine.bare()
        wait = torch.cuda.synchronize if device != "cpu" else lambda: None
        rates = {name: rate * num_envs for name, rate in _call_rates(contestants, wait, seconds).items()}
        reference = spec.load_reference()
        if reference is not None:
            rates["MuJoCo C, one core"] = reference(spec.env, num_envs, seconds)
    return rates


def _call_rates(
    contestants: Mapping[str, Callable[[], object]], wait: Callable[[], None], seconds: float
) -> dict[str, float]:
    """Return calls per second of each, over `seconds` of it, in turns of a fraction of a second.

    Args:
        contestants: What is called, by name.
        wait: Waits for the device.
        seconds: How long each is called in all [s].
    """
    calls, spent = dict.fromkeys(contestants, 0), dict.fromkeys(contestants, 0.0)
    while min(spent.values()) < seconds:
        for name, call in contestants.items():
            wait()
            started = time.perf_counter()
            while (elapsed := time.perf_counter() - started) < _TURN_S:
                for _ in range(_BETWEEN_LOOKS):
                    call()
                wait()
                calls[name] += _BETWEEN_LOOKS
            spent[name] += elapsed
    return {name: calls[name] / spent[name] for name in contestants}


def main() -> None:
    """Be the measuring process: take what to measure from the command line, and print the rates as JSON."""
    sys.stdout.write(json.dumps(_measure_here(**json.loads(sys.argv[1]))) + "\n")
