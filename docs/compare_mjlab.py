"""Compare the environment steps per second of Shoal and of mjlab in mjlab's flat velocity task of the G1, on the CPU.

    python docs/compare_mjlab.py --mjlab VENV/bin/python [--num-envs 64] [--turns 5]

mjlab pins other versions of MuJoCo and rsl_rl, so it runs with the Python of an environment of its own. Shoal reads
the robot from mjlab's package there. All step in turns, with small random actions; the ratio is the median of the
ratios within a turn, because other processes slow all of them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

MJLAB_TASK = "Mjlab-Velocity-Flat-Unitree-G1"
TASK = "G1-Velocity-Flat"
"""Its builder; the configuration is `G1_MJLAB`, without steps by a clock."""
SIDES = {
    "Shoal, MuJoCo's C engine": "mujoco",
    "Shoal, MuJoCo Warp": "mjwarp",
    "mjlab, MuJoCo Warp": "mjlab",
}
FIND_MJLAB = "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('mjlab').origin).parents[1])"


def flags() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mjlab", required=True, help="the Python of an environment with mjlab 1.6.0")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5, help="turns of each")
    parser.add_argument("--seconds", type=float, default=5.0, help="shortest time of a turn [s]")
    parser.add_argument("--step", choices=SIDES.values(), help=argparse.SUPPRESS)
    return parser


def mjlab_env(num_envs: int) -> Any:  # noqa: ANN401  A package that is not installed here.
    """Return mjlab's environment."""
    from mjlab.envs import ManagerBasedRlEnv  # pyright: ignore[reportMissingImports] - of another environment
    from mjlab.rl import RslRlVecEnvWrapper  # pyright: ignore[reportMissingImports]
    from mjlab.tasks.registry import load_env_cfg  # pyright: ignore[reportMissingImports]

    config = load_env_cfg(MJLAB_TASK)
    config.scene.num_envs = num_envs
    return RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg=config, device="cpu"))


def shoal_env(num_envs: int, engine: str) -> Any:  # noqa: ANN401  As above.
    """Return Shoal's environment."""
    from dataclasses import replace

    from shoal.envs.vec_env import WarpVecEnv
    from shoal.tasks.humanoid.velocity import G1_MJLAB
    from shoal.tasks.registry import resolve

    config = replace(G1_MJLAB, engine=engine)
    return WarpVecEnv(resolve(TASK).build(config, num_envs=num_envs, device="cpu", seed=0))


def step(side: str, num_envs: int, seconds: float) -> None:
    """Take steps for each line of standard input, and print steps per second."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    env = mjlab_env(num_envs) if side == "mjlab" else shoal_env(num_envs, side)
    take: Callable[[], Any] = lambda: env.step(0.3 * torch.randn(num_envs, env.num_actions))  # noqa: E731
    for _ in range(8):
        take()
    sys.stdout.write(f"ready {env.num_actions}\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        started, steps = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            take()
            steps += 1
        sys.stdout.write(f"rate {steps * num_envs / (time.perf_counter() - started)}\n")
        sys.stdout.flush()


def answer(process: subprocess.Popen[str], word: str) -> str:
    """Return what a process prints after a word, at the beginning of a line."""
    for line in process.stdout or ():
        if line.startswith(f"{word} "):
            return line.split()[1]
    raise SystemExit(f"A process ended with {process.wait()}: its last lines are above.")


def main() -> None:
    """Print a table in Markdown."""
    options = flags().parse_args()
    if options.step:
        step(options.step, options.num_envs, options.seconds)
        return
    packages = subprocess.run([options.mjlab, "-c", FIND_MJLAB], check=True, capture_output=True, text=True).stdout
    processes: dict[str, subprocess.Popen[str]] = {}
    for name, side in SIDES.items():
        python = options.mjlab if side == "mjlab" else sys.executable
        words = (python, __file__, *sys.argv[1:], "--step", side)
        # The end of the path is searched last: the packages of Shoal's own environment come first.
        added = {} if side == "mjlab" else {"SHOAL_COMPARE_PATH": packages.strip()}
        processes[name] = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | added
        )
        answer(processes[name], "ready")
    rates: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(options.turns):
        for name, process in processes.items():
            print("go", file=process.stdin, flush=True)
            rates[name].append(float(answer(process, "rate")))
    theirs = rates["mjlab, MuJoCo Warp"]
    sys.stdout.write(f"| {options.num_envs} environments | steps per second | ratio to mjlab |\n| --- | --- | --- |\n")
    for name, own in rates.items():
        ratio = median(a / b for a, b in zip(own, theirs, strict=True))
        sys.stdout.write(f"| {name} | {median(own):,.0f} | {ratio:.1f} |\n")
    for process in processes.values():
        process.communicate()


if __name__ == "__main__":
    if path := os.environ.get("SHOAL_COMPARE_PATH"):
        sys.path.append(path)
    main()
