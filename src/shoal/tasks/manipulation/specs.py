"""Registry entries of the manipulation tasks: names, summaries and tuned learners. Importable without Warp."""

from dataclasses import replace

from shoal.config import DistillationConfig, ppo
from shoal.config.algorithm import SMALL_CNN
from shoal.config.rsl_rl import DistillationAlgorithmConfig, student
from shoal.tasks.manipulation.config import LIFT_CUBE, LIFT_CUBE_DEPTH
from shoal.tasks.manipulation.reorient import REORIENT_CUBE
from shoal.tasks.registry import TaskSpec

SPECS = (
    TaskSpec(
        name="Arm-Lift-Cube",
        summary="Grasp a cube with an arm, and bring it to where it is commanded.",
        env=LIFT_CUBE,
        agent=ppo(128, 128, 64, init_std=0.5, privileged=True, gamma=0.98, entropy_coef=0.004, desired_kl=0.02),
        num_envs=256,
        builder="shoal.tasks.manipulation.task:LiftCube",
        gpu_bytes_per_env=355_000,
        observation_size=52,
    ),
    TaskSpec(
        name="Arm-Lift-Cube-Depth",
        summary="The same by a depth camera on the hand, 32 x 32 pixels, taught by a policy of Arm-Lift-Cube.",
        env=LIFT_CUBE_DEPTH,
        agent=DistillationConfig(
            teacher_task="Arm-Lift-Cube",
            obs_groups={"student": ("policy", "camera"), "teacher": ("critic",)},
            # A memory sees through the noise. With one pass, two optimizer steps an iteration, it learned little.
            student=student(
                "CNNModel",
                rnn_type="gru",
                rnn_hidden_dim=128,
                hidden_dims=(128, 128, 64),
                cnn=replace(SMALL_CNN, spatial_softmax_temperature=1.0),
            ),
            algorithm=DistillationAlgorithmConfig(num_learning_epochs=2, gradient_length=6),
        ),
        learner="distillation",
        num_envs=64,
        max_iterations=4000,
        builder="shoal.tasks.manipulation.task:LiftCube",
        gpu_bytes_per_env=363_000,
        observation_size=1_073,
    ),
    TaskSpec(
        name="Hand-Reorient-Cube",
        summary="Turn a cube in the Shadow Hand to one goal after another.",
        env=REORIENT_CUBE,
        agent=ppo(
            *(256, 128, 64), init_std=0.5, steps=32, learning_rate=5e-4, schedule="fixed", gamma=0.99, entropy_coef=0.0
        ),
        num_envs=256,
        max_iterations=2000,
        observation_size=104,
        builder="shoal.tasks.manipulation.reorient_task:ReorientCube",
        check="shoal.tasks.manipulation.reorient_task:check_hand",
    ),
)
