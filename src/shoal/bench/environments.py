"""Environment steps per second without a policy, measured in a child process on the cores of one worker.

A task with a MuJoCo model is compared with the bare engine with the same model and threads: both are stepped in turn, a
few steps each, so that a busy machine slows both. The task gets new random actions in each step, and the bare engine
simulates its states with its controls. The task's cameras and rays alone take turns with it, too. A task with a
reference simulation in another engine is compared with that.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import cycle
from typing import Any

from shoal.bench.training import bench_environment
from shoal.checks.probe import Probe
from shoal.config import BenchConfig
from shoal.errors import ShoalError
from shoal.tasks import registry

_WARM_UP = 64
"""First steps, which are not timed. So many different actions repeat."""
_STEPS_PER_READING = 8
"""Steps of one engine in each turn, between two readings of the clock, which synchronise a GPU."""


def measure_environments(config: BenchConfig, device: str) -> dict[str, float]:
    """Return environment steps per second by engine.

    Raises:
        ShoalError: The task could not be stepped.
    """
    probe = Probe(f"{__name__}:measure_here", {**asdict(config), "device": device}, bench_environment(config))
    rates = probe.result(timeout_s=None)
    if isinstance(rates, str):
        raise ShoalError(f"The environments of {config.task} could not be measured ({rates}).")
    return rates


def measure_here(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Step the task and its references in this process."""
    num_envs, device, threads = arguments["num_envs"], arguments["device"], arguments["threads"]
    import torch

    from shoal.envs.vec_env import build_vec_env
    from shoal.sim.graphs import CapturedGraph, run_all
    from shoal.sim.isolation import isolated

    # Always the same cores, so that the scheduler does not affect the comparison.
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    spec = registry.resolve(arguments["task"])
    with isolated(device, threads=threads):
        env = build_vec_env(spec, spec.env, num_envs=num_envs, device=device, seed=0)
        # With one constant action, robots soon lie still.
        actions = cycle(torch.rand(_WARM_UP, num_envs, env.num_actions, device=device) * 2 - 1)
        steppers: dict[str, Callable[[], object]] = {f"shoal on {device}": lambda: env.step(next(actions))}
        for _ in range(_WARM_UP):
            env.step(next(actions))
        task: Any = getattr(env, "task", None)
        engine = getattr(task, "engine", None)
        if engine is not None:
            steppers[f"bare {engine.title}"] = engine.bare()
        if tracers := getattr(task, "tracers", ()):
            steppers["its cameras and rays"] = CapturedGraph(partial(run_all, tracers), task.device).launch
        wait = torch.cuda.synchronize if device != "cpu" else lambda: None
        rates = {name: rate * num_envs for name, rate in _call_rates(steppers, wait, arguments["seconds"]).items()}
        reference = spec.load_reference()
        if reference is not None:
            rates["MuJoCo C, one core"] = reference(spec.env, num_envs, arguments["seconds"])
    return rates


def _call_rates(
    steppers: Mapping[str, Callable[[], object]], wait: Callable[[], None], seconds: float
) -> dict[str, float]:
    """Return calls per second of each function, called in turns for so long; `wait` synchronises the device."""
    turns, spent = 0, dict.fromkeys(steppers, 0.0)
    while min(spent.values()) < seconds:
        for name, call in steppers.items():
            wait()
            started = time.perf_counter()
            for _ in range(_STEPS_PER_READING):
                call()
            wait()
            spent[name] += time.perf_counter() - started
        turns += 1
    return {name: turns * _STEPS_PER_READING / time_s for name, time_s in spent.items()}
