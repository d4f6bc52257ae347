"""How large a training will be at least, from its configuration alone: checkpoints, experience, processes, GPU memory.

Lower bounds: a task declares what an environment takes with default settings, or nothing at all (`TaskSpec`). What is
refused on their account could not have worked.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.config import AgentConfig
    from shoal.config.models import ModelConfig
    from shoal.plan.training import TrainPlan

MIB = 2**20
FLOAT = 4
"""Bytes of a number, in networks and in experience."""

WORKER_BYTES = 256 * MIB
"""Memory of its own that a worker takes at least, before its first environment [bytes]. Measured with torch 2.15, Warp
1.19 and rsl_rl 5.5.1 on the CPU: 423 MiB, of which 291 are torch's; other builds of torch are smaller."""

CONTEXT_BYTES = 200 * MIB
"""Memory of a GPU that a worker takes at least, before its first environment [bytes]: a CUDA context with torch's and
Warp's kernels in it. Contexts of 250 MiB and more are usual."""

_STATES_OF_OPTIMIZER = {"adam": 2, "adamw": 2, "rmsprop": 1}
"""Numbers that an optimizer keeps for each weight."""

_EXPERIENCE_FLOATS = 7
"""Numbers that rsl_rl's storage keeps of each environment step at least, beside the observation: an action with mean
and deviation, of one number each; reward, value, return, and advantage."""


def checkpoint_bytes(agent: AgentConfig) -> int:
    """Return how large a checkpoint will be at least [bytes]: weights, and what the optimizer keeps of each."""
    weights = _weights(agent.actor) + _weights(agent.critic)
    return FLOAT * weights * (1 + _STATES_OF_OPTIMIZER.get(agent.algorithm.optimizer or "adam", 0))


def _weights(model: ModelConfig) -> int:
    """Return the weights of a perceptron with its biases, as if observation and output had one number each."""
    # A width of -1 means as many as the input has; 1 is the least that can be.
    widths = (1, *(max(width, 1) for width in model.hidden_dims or ()), 1)
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))


def experience_bytes(plan: TrainPlan) -> int:
    """Return how large one worker's experience of one iteration is at least [bytes]."""
    return plan.num_envs * _experience_bytes_per_env(plan)


def _experience_bytes_per_env(plan: TrainPlan) -> int:
    observation = plan.spec.observation_size if _has_declared_sizes(plan) else 1
    return FLOAT * (_EXPERIENCE_FLOATS + observation) * plan.config.agent.num_steps_per_env


def gpu_bytes_per_env(plan: TrainPlan) -> int:
    """Return how much memory of a GPU one environment takes at least, with its experience of one iteration [bytes]."""
    environment = plan.spec.gpu_bytes_per_env if _has_declared_sizes(plan) else 0
    return environment + _experience_bytes_per_env(plan)


def _has_declared_sizes(plan: TrainPlan) -> bool:
    """Whether the settings that change sizes are the task's defaults, for which it declares its sizes."""
    asked, usual = plan.config.env, plan.spec.env
    return all(getattr(asked, name) == getattr(usual, name) for name in usual.size_fields)


def checkpoints_to_come(plan: TrainPlan) -> int:
    """Return how many checkpoints the rest of the training writes, the last one included."""
    interval, last = plan.config.agent.save_interval, plan.config.max_iterations
    return len(range(plan.start_iteration // interval, last // interval)) + bool(last % interval)
