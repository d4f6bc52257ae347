"""Compare the environment steps per second of Shoal and of EnvPool in Gymnasium's MuJoCo v5 tasks, on the CPU.

    uv run --with envpool python docs/compare_envpool.py [--tasks NAME ...] [--threads 1 2] [--json FILE]

Both step in turns in one process, each turn with fresh random actions that were drawn before it. The ratio is the
median of the ratios within a turn, because other processes slow both. EnvPool begins an episode in a step of its own,
in which no physics runs; such steps are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from shoal.envs.vec_env import WarpVecEnv
from shoal.machine.host import cpu_name
from shoal.sim.isolation import isolated
from shoal.tasks.gymnasium_v5.specs import SPECS
from shoal.tasks.registry import TaskSpec

Turn = Callable[[np.ndarray], int]
"""Take steps with actions, (steps, num_envs, num_actions); return the environment steps in which physics ran."""

FEWEST_STEPS = 8
WARM_UP_S = 1.0
"""Random robots need this long to fall, and cores to reach their clock [s]."""


def flags() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    names = [spec.name for spec in SPECS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=names, default=names, metavar="TASK", help="default: all eleven")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of each, on as many cores")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--turns", type=int, default=9, help="turns of each")
    parser.add_argument("--seconds", type=float, default=1.0, help="approximate time of a turn [s]")
    parser.add_argument("--json", type=Path, help="write the result to this file, too")
    return parser


def shoal_turn(spec: TaskSpec, num_envs: int) -> Turn:
    """Return the turn of Shoal."""
    env = WarpVecEnv(spec.build(spec.env, num_envs=num_envs, device="cpu", seed=0))

    def take(actions: np.ndarray) -> int:
        for row in torch.from_numpy(actions):
            env.step(row)
        return len(actions) * num_envs

    return take


def envpool_turn(name: str, num_envs: int, threads: int) -> Turn:
    """Return the turn of EnvPool."""
    import envpool  # pyright: ignore[reportMissingImports] - comes with `uv run --with`

    env = envpool.make(name, env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=0)
    env.reset()
    done = np.zeros(num_envs, dtype=bool)

    def take(actions: np.ndarray) -> int:
        nonlocal done
        begun = 0
        for row in actions.astype(np.float64):
            begun += int(done.sum())
            _, _, terminated, truncated, _ = env.step(row)
            done = terminated | truncated
        return len(actions) * num_envs - begun

    return take


def compare(spec: TaskSpec, threads: int, options: argparse.Namespace) -> dict[str, float]:
    """Return steps per second of both in one task, and the ratio."""
    task: Any = spec.load_builder()
    low, high = task.build_model(spec.env).actuator_ctrlrange.T
    rng = np.random.default_rng(0)
    with ExitStack() as stack:
        cores = os.sched_getaffinity(0)
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, sorted(cores)[:threads])  # Threads that start from here on stay on these.
        stack.enter_context(isolated("cpu", threads=threads))
        turns = {
            "shoal": shoal_turn(spec, options.num_envs),
            "envpool": envpool_turn(spec.name, options.num_envs, threads),
        }
        rates: dict[str, list[float]] = {name: [] for name in turns}

        def measure(name: str, steps: int) -> float:
            shape = (steps, options.num_envs, len(low))
            actions = rng.uniform(low, high, shape).astype(np.float32)
            started = time.perf_counter()
            taken = turns[name](actions)
            return taken / (time.perf_counter() - started)

        steps = {}
        for name in turns:
            ended, rate = time.perf_counter() + WARM_UP_S, 0.0
            while time.perf_counter() < ended:
                rate = measure(name, FEWEST_STEPS)
            steps[name] = max(FEWEST_STEPS, round(rate * options.seconds / options.num_envs))
        for _ in range(options.turns):
            for name in turns:
                rates[name].append(measure(name, steps[name]))
    ratio = median(ours / theirs for ours, theirs in zip(rates["shoal"], rates["envpool"], strict=True))
    return {name: median(values) for name, values in rates.items()} | {"ratio": ratio}


def main() -> None:
    """Print a table in Markdown, a row for each task."""
    options = flags().parse_args()
    versions = {name: version(name) for name in ("mujoco", "envpool", "torch", "warp-lang")}
    sys.stdout.write(f"{cpu_name()}; {', '.join(f'{name} {number}' for name, number in versions.items())}\n\n")
    heads = [head for n in options.threads for head in (f"Shoal, threads: {n}", "EnvPool", "ratio")]
    sys.stdout.write(f"| {options.num_envs} environments | {' | '.join(heads)} |\n")
    sys.stdout.write("| --- |" + " --- |" * len(heads) + "\n")
    results: dict[str, dict[int, dict[str, float]]] = {}
    for spec in SPECS:
        if spec.name not in options.tasks:
            continue
        results[spec.name] = {threads: compare(spec, threads, options) for threads in options.threads}
        cells = [
            f"{row['shoal']:,.0f} | {row['envpool']:,.0f} | {row['ratio']:.2f}" for row in results[spec.name].values()
        ]
        sys.stdout.write(f"| {spec.name} | {' | '.join(cells)} |\n")
        sys.stdout.flush()
    if options.json:
        report = {"cpu": cpu_name(), "versions": versions, "steps_per_second": results}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
