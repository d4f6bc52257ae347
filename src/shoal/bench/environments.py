"""Environment steps per second without a policy, measured in a process of its own, on one CPU core.

Where a task has a twin in another engine, both are stepped in the same process, one after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from shoal.bench.training import bench_environment
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.config import BenchConfig


def measure_environments(config: BenchConfig, device: str) -> dict[str, float]:
    """Measure environment steps in a process of its own, on one core, by engine."""
    asked = {
        "task": config.task,
        "num_envs": config.num_envs,
        "device": device,
        "seconds": config.seconds,
    }
    command = [sys.executable, "-m", "shoal.bench.environments", json.dumps(asked)]
    done = subprocess.run(command, env=bench_environment(config), capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"The environment of {config.task} could not be measured: {done.stderr.strip()[-2000:]}"
        raise ShoalError(message)
    return json.loads(done.stdout.splitlines()[-1])
