"""Registry entries of the humanoids: names, summaries and tuned learners. Importable without Warp."""

from dataclasses import replace
from functools import partial

from shoal.config import ppo
from shoal.mdp.velocity import MIRRORED
from shoal.tasks.humanoid.tracking import G1_TRACKING, HUMANOID
from shoal.tasks.humanoid.velocity import G1_FLAT, G1_ROUGH
from shoal.tasks.registry import TaskSpec

_task = partial(TaskSpec, num_envs=256, gpu_num_envs=4096, check="shoal.mdp.robots:check_robot")
# With a first standard deviation of 1, `action_rate` costs more than a step can earn, and the robot learns to fall.
_g1_ppo = partial(ppo, 128, 128, 128, privileged=True, init_std=0.4, entropy_coef=0.0, desired_kl=0.03)
_WALKING = _g1_ppo(symmetry=replace(MIRRORED, enabled=True, use_data_augmentation=True))

SPECS = (
    _task(
        name="G1-Velocity-Flat",
        summary="Walk with a Unitree G1 on flat ground as fast, and in the direction, that is commanded.",
        env=G1_FLAT,
        agent=_WALKING,
        max_iterations=3000,
        builder="shoal.tasks.humanoid.velocity_task:FlatVelocity",
        gpu_bytes_per_env=158_000,
        observation_size=214,
    ),
    _task(
        name="G1-Velocity-Rough",
        summary="The same on mjlab's rough terrain, which becomes harder as the robot learns.",
        env=G1_ROUGH,
        agent=_WALKING,
        max_iterations=3000,
        builder="shoal.tasks.humanoid.velocity_task:RoughVelocity",
        gpu_bytes_per_env=876_000,
        observation_size=588,
    ),
    _task(
        name="Humanoid-Tracking-Flat",
        summary="Imitate a recorded motion with a humanoid on flat ground.",
        env=HUMANOID,
        agent=ppo(256, 256, 128, privileged=True, entropy_coef=0.005, desired_kl=0.02),
        max_iterations=1500,
        builder="shoal.tasks.humanoid.tracking_task:Tracking",
        gpu_bytes_per_env=47_500,
        observation_size=366,
    ),
    _task(
        name="G1-Tracking-Flat",
        summary="Imitate a person who carries a box, with a Unitree G1 on flat ground.",
        env=G1_TRACKING,
        agent=_g1_ppo(),
        max_iterations=3000,
        builder="shoal.tasks.humanoid.tracking_task:G1Tracking",
        gpu_bytes_per_env=156_000,
        observation_size=446,
    ),
)
