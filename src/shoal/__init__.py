"""Shoal: one command trains a robot policy on the CPU, on one GPU, or on every GPU there is.

The names of `__all__`, and of `shoal.mdp`, are those to use in one's own Python. Each is imported at its first use:
torch, Warp and MuJoCo take seconds.
"""

import contextlib
import os
import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# The types of these names are in __init__.pyi.
_NAMES = {
    "api": ("Table", "evaluate", "load_policy", "make", "metrics", "runs", "train"),
    "config": ("AgentConfig", "BaseEnvConfig", "DistributionConfig", "EnvConfig", "ModelConfig", "PpoConfig"),
    "config.rsl_rl": ("RslRlConfig", "ppo"),
    "config.checks": ("above", "at_least", "within"),
    "envs.capabilities": ("Capabilities",),
    "errors": ("ShoalError", "UsageError"),
    "learn.groups": ("World",),
    "learn.inference": ("InferencePolicy", "concatenated"),
    "learn.learner": ("Learner", "TorchLearner"),
    "learn.training_env": ("TrainingEnv",),
    "sim.kernel_task": ("KernelTask",),
    "sim.task": ("CommandRange",),
    "tasks.registry": ("TaskSpec", "registered"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [*_MODULES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]

PARENT = os.getppid()
"""The process that started this one. It is read before anything that takes seconds: a parent may end meanwhile."""

PYTHON = (sys.executable, "-P")
"""The first words of a process that finds modules where this one does. Without `-P` Python would look for them in the
working directory first, where a file may have the name of a library."""

with contextlib.suppress(OSError):  # The working directory is gone.
    if {"", os.getcwd()} & {*sys.path}:  # noqa: PTH109  pathlib is not needed for this.
        PYTHON = (sys.executable,)

# torch's CPU threads sleep while they wait, and do not spin: a spinning thread takes the core from the one that it
# waits for as soon as anything else runs, and a training is three times slower (docs/guide/cameras.md). OpenMP reads
# this once, when torch is loaded, which may be by the file of a task. Spawned workers inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_ABSENT = f"module {__name__!r} has no attribute '{{}}'"


def __getattr__(name: str) -> Any:  # noqa: ANN401  Of any kind.
    """Return a public name."""
    if name not in _MODULES:
        raise AttributeError(_ABSENT.format(name))
    return getattr(import_module(_MODULES[name]), name)
