"""Registry entries of the manipulation tasks: names, summaries and tuned learners. Importable without Warp."""

from shoal.config import ppo
from shoal.tasks.manipulation.config import LIFT_CUBE
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
