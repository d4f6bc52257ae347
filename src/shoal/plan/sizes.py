"""Lower bounds of a training's sizes, from its configuration: checkpoints, experience, processes, GPU memory.

A task may declare the memory of an environment with default settings (`TaskSpec`).
"""

from shoal.plan.training import TrainPlan

MIB = 2**20
FLOAT = 4
"""Size of a number in networks and in experience [bytes]."""

WORKER_BYTES = 256 * MIB
"""Least private memory of a worker, before its first environment [bytes]. Measured with torch 2.15, Warp 1.19 and
rsl_rl 5.5.1 on the CPU: 423 MiB, of which 291 are torch's; other builds of torch are smaller."""

CONTEXT_BYTES = 200 * MIB
"""Least GPU memory of a worker, before its first environment [bytes]: a CUDA context with torch's and Warp's kernels,
usually 250 MiB and more."""


def experience_bytes_per_env(plan: TrainPlan) -> int:
    """Return the least size of one environment's experience that is kept [bytes]."""
    agent = plan.config.agent
    # A learner may keep the groups that it uses alone. The task's own uses all of them.
    is_known = _has_declared_sizes(plan) and agent.obs_groups == plan.spec.agent.obs_groups
    observation = plan.spec.observation_size if is_known else 1
    return FLOAT * (agent.experience_floats + observation) * agent.experience_steps


def gpu_bytes_per_env(plan: TrainPlan) -> int:
    """Return the least GPU memory of one environment, with its experience that is kept [bytes]."""
    environment = plan.spec.gpu_bytes_per_env if _has_declared_sizes(plan) else 0
    return environment + experience_bytes_per_env(plan)


def _has_declared_sizes(plan: TrainPlan) -> bool:
    """Whether all settings that affect sizes have the task's defaults, for which it declares sizes."""
    env, default = plan.config.env, plan.spec.env
    return all(getattr(env, name) == getattr(default, name) for name in default.size_fields)


def checkpoints_to_come(plan: TrainPlan) -> int:
    """Return the number of checkpoints that the rest of the training writes."""
    interval, last = plan.config.agent.save_interval, plan.config.max_iterations
    return len(range(plan.start_iteration // interval, last // interval)) + bool(last % interval)
