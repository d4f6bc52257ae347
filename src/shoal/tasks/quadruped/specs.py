"""Registry entries of the velocity tasks: names, summaries and tuned learners.

Importable without Warp. How the defaults were found is in docs/tasks.md.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from shoal.config import DistillationConfig, FastSacConfig, ppo
from shoal.config.algorithm import SMALL_CNN
from shoal.config.rsl_rl import DistillationAlgorithmConfig, student
from shoal.mdp.velocity import MIRRORED
from shoal.tasks.quadruped.config import BLIND, DEPTH, FLAT, ROUGH
from shoal.tasks.registry import TaskSpec

_task = partial(TaskSpec, gpu_num_envs=4096, check="shoal.mdp.robots:check_robot")
_ROUGH = ppo(256, 128, 128, privileged=True, desired_kl=0.03, symmetry=MIRRORED)

_MEMORY: dict[str, Any] = {"rnn_type": "gru", "rnn_hidden_dim": 128, "hidden_dims": (128, 128)}
_BLIND = DistillationConfig(
    teacher_task="Quadruped-Velocity-Rough",
    # What the critic observes is what the teacher did, without noise.
    obs_groups={"student": ("policy",), "teacher": ("critic",)},
    student=student(**_MEMORY),
    algorithm=DistillationAlgorithmConfig(num_learning_epochs=4, gradient_length=6),
)

_FAST_SAC = FastSacConfig(
    num_steps_per_env=24,
    obs_groups=_ROUGH.obs_groups,
    batch_size=1024,
    updates_per_step=1,
    num_step_returns=3,
    initial_temperature=0.01,  # With 0.002 the return was -0.2 after 110,000 steps, with 0.01 it was 0.8.
)

SPECS = (
    _task(
        name="Quadruped-Velocity-Flat",
        summary="Walk on flat ground as fast, and in the direction, that is commanded.",
        env=FLAT,
        # Isaac Lab's for its flat tasks. On the CPU, larger ones would cost more than the simulation.
        # With rsl_rl's target of 0.01 the adaptive learning rate stays near its lower end until the robot stands.
        agent=ppo(128, 128, 128, privileged=True, desired_kl=0.03, symmetry=MIRRORED),
        other_agents=(_FAST_SAC,),
        # After 2.2 million steps 256 of them had learned to earn 49, and 1,024 to earn 24 (docs/tasks/quadruped.md).
        num_envs=256,
        max_iterations=600,
        builder="shoal.tasks.quadruped.task:FlatVelocity",
        gpu_bytes_per_env=39_900,
        observation_size=96,
    ),
    _task(
        name="Quadruped-Velocity-Rough",
        summary="The same on rough ground, stairs among it, which becomes harder as the robot learns.",
        env=ROUGH,
        agent=_ROUGH,
        num_envs=256,
        max_iterations=3600,
        builder="shoal.tasks.quadruped.task:RoughVelocity",
        gpu_bytes_per_env=203_000,
        observation_size=330,
    ),
    _task(
        name="Quadruped-Velocity-Rough-Blind",
        summary="Rough ground for a policy that observes none of it, taught by one of Quadruped-Velocity-Rough.",
        env=BLIND,
        agent=_BLIND,
        learner="distillation",
        other_agents=(_ROUGH,),
        num_envs=128,
        max_iterations=400,
        builder="shoal.tasks.quadruped.task:RoughVelocity",
        gpu_bytes_per_env=203_000,
        observation_size=213,
    ),
    _task(
        name="Quadruped-Velocity-Rough-Depth",
        summary="Rough ground by a depth camera, 32 x 24 pixels, taught by a policy of Quadruped-Velocity-Rough.",
        env=DEPTH,
        agent=replace(
            _BLIND,
            obs_groups={"student": ("policy", "camera"), "teacher": ("critic",)},
            # A foot treads where the camera has looked before.
            student=student("CNNModel", cnn=SMALL_CNN, **_MEMORY),
        ),
        learner="distillation",
        num_envs=128,
        max_iterations=400,
        gpu_num_envs=1024,
        builder="shoal.tasks.quadruped.task:RoughVelocity",
        gpu_bytes_per_env=210_000,
        observation_size=981,
    ),
)
