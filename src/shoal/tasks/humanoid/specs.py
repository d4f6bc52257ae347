"""Registry entries of the motion tracking tasks: names, summaries and tuned learners. Importable without Warp."""

from typing import Any

from shoal.mdp.velocity import MIRRORED
from shoal.tasks.humanoid.tracking import HUMANOID
from shoal.tasks.humanoid.velocity import G1_FLAT, G1_ROUGH
from shoal.tasks.registry import TaskSpec, ppo

_PPO: dict[str, Any] = {"privileged": True, "entropy_coef": 0.005, "desired_kl": 0.02}
_G1 = ppo(256, 256, 128, init_std=0.4, symmetry=MIRRORED, **_PPO)
"""With a first standard deviation of 1, `action_rate` costs more than a step can earn, and the robot learns to fall."""

SPECS = (
    TaskSpec(
        name="G1-Velocity-Flat",
        summary="Walk with a Unitree G1 on flat ground as fast, and in the direction, that is commanded.",
        env=G1_FLAT,
        agent=_G1,
        num_envs=512,
        gpu_num_envs=4096,
        max_iterations=3000,
        builder="shoal.tasks.humanoid.velocity_task:FlatVelocity",
        gpu_bytes_per_env=158_000,
        observation_size=198,
        check="shoal.mdp.robots:check_robot",
    ),
    TaskSpec(
        name="G1-Velocity-Rough",
        summary="The same on mjlab's rough terrain, which becomes harder as the robot learns.",
        env=G1_ROUGH,
        agent=_G1,
        num_envs=512,
        gpu_num_envs=4096,
        max_iterations=3000,
        builder="shoal.tasks.humanoid.velocity_task:RoughVelocity",
        gpu_bytes_per_env=876_000,
        observation_size=572,
        check="shoal.mdp.robots:check_robot",
    ),
    TaskSpec(
        name="Humanoid-Tracking-Flat",
        summary="Imitate a recorded motion with a humanoid on flat ground.",
        env=HUMANOID,
        agent=ppo(256, 256, 128, **_PPO),
        num_envs=512,
        gpu_num_envs=4096,
        max_iterations=1500,
        builder="shoal.tasks.humanoid.tracking_task:Tracking",
        gpu_bytes_per_env=47_500,
        observation_size=366,
        check="shoal.mdp.robots:check_robot",
    ),
)
