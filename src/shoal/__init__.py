"""Shoal: one command trains a robot policy on the CPU, on one GPU, or on every GPU there is.

The names of `__all__`, and of `shoal.mdp`, are those to use in one's own Python. Each is imported at its first use:
torch, Warp and MuJoCo take seconds.
"""

import contextlib
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.api import Table as Table
    from shoal.api import evaluate as evaluate
    from shoal.api import load_policy as load_policy
    from shoal.api import make as make
    from shoal.api import metrics as metrics
    from shoal.api import runs as runs
    from shoal.api import train as train
    from shoal.config import AgentConfig as AgentConfig
    from shoal.config import BaseEnvConfig as BaseEnvConfig
    from shoal.config import DistributionConfig as DistributionConfig
    from shoal.config import EnvConfig as EnvConfig
    from shoal.config import ModelConfig as ModelConfig
    from shoal.config import PpoConfig as PpoConfig
    from shoal.config import RslRlConfig as RslRlConfig
    from shoal.config.checks import above as above
    from shoal.config.checks import at_least as at_least
    from shoal.config.checks import within as within
    from shoal.envs.capabilities import Capabilities as Capabilities
    from shoal.errors import ShoalError as ShoalError
    from shoal.errors import UsageError as UsageError
    from shoal.learn.groups import World as World
    from shoal.learn.inference import InferencePolicy as InferencePolicy
    from shoal.learn.inference import concatenated as concatenated
    from shoal.learn.learner import Learner as Learner
    from shoal.learn.learner import TorchLearner as TorchLearner
    from shoal.learn.training_env import TrainingEnv as TrainingEnv
    from shoal.sim.kernel_task import Command as Command
    from shoal.sim.kernel_task import KernelTask as KernelTask
    from shoal.tasks.quadruped.task import FlatVelocity as FlatVelocity
    from shoal.tasks.registry import TaskSpec as TaskSpec

__version__ = "0.1.0"

_NAMES = {
    "api": ("Table", "evaluate", "load_policy", "make", "metrics", "runs", "train"),
    "config": ("AgentConfig", "BaseEnvConfig", "DistributionConfig", "EnvConfig", "ModelConfig", "PpoConfig"),
    "config.rsl_rl": ("RslRlConfig",),
    "config.checks": ("above", "at_least", "within"),
    "envs.capabilities": ("Capabilities",),
    "errors": ("ShoalError", "UsageError"),
    "learn.groups": ("World",),
    "learn.inference": ("InferencePolicy", "concatenated"),
    "learn.learner": ("Learner", "TorchLearner"),
    "learn.training_env": ("TrainingEnv",),
    "sim.kernel_task": ("Command", "KernelTask"),
    "tasks.quadruped.task": ("FlatVelocity",),
    "tasks.registry": ("TaskSpec",),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]

PARENT = os.getppid()
"""The process that started this one. It is read before anything that takes seconds: a parent may end meanwhile."""

PYTHON = (sys.executable, "-P")
"""The first words of a process that finds modules where this one does. Without `-P` Python would look for them in the
working directory first, where a file may have the name of a library."""

with contextlib.suppress(OSError):  # The working directory is gone.
    if {"", os.getcwd()} & {*sys.path}:  # noqa: PTH109  pathlib is not needed for this.
        PYTHON = (sys.executable,)

_ABSENT = f"module {__name__!r} has no attribute '{{}}'"


def __getattr__(name: str) -> Any:
    """Return a public name."""
    if name not in _MODULES:
        raise AttributeError(_ABSENT.format(name))
    return getattr(import_module(_MODULES[name]), name)
