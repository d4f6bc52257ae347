"""Registry entries of the cart-pole tasks: names, summaries and tuned learners.

Importable without Warp. How the defaults were found is in docs/tasks.md.
"""

from dataclasses import replace

from shoal.config import FastSacConfig, GrpoConfig, SkrlConfig, SkrlJaxConfig, ppo
from shoal.config.algorithm import SMALL_CNN
from shoal.config.skrl import SkrlPpoConfig, SkrlSacConfig, SkrlTd3Config
from shoal.tasks.cartpole.config import SWINGUP_DEPTH, SWINGUP_MUJOCO, BalanceConfig, SwingupConfig
from shoal.tasks.registry import TaskSpec

_PPO = ppo(64, 64, steps=64, entropy_coef=0.005, gamma=0.99, lam=0.97, num_mini_batches=8, desired_kl=0.005)

_DEPTH = replace(
    _PPO,
    obs_groups={"actor": ("policy",), "critic": ("critic",)},
    actor=replace(_PPO.actor, class_name="CNNModel", obs_normalization=False, cnn=SMALL_CNN),
    algorithm=replace(_PPO.algorithm, entropy_coef=0.02),
)

_SKRL_PPO = SkrlPpoConfig(
    learning_epochs=5,
    mini_batches=8,
    gae_lambda=0.97,
    adaptive_kl=0.005,
    grad_norm_clip=1.0,
    entropy_loss_scale=0.005,
    value_loss_scale=1.0,
)

# Both need an update for every few steps: `--num-envs 64`.
_SKRL_SAC = SkrlSacConfig(batch_size=512, memory_size=8192, polyak=0.01, initial_entropy_value=0.05)
_SKRL_TD3 = SkrlTd3Config(batch_size=512, memory_size=8192, polyak=0.01, exploration_noise=0.3)

_OTHERS = (
    GrpoConfig(num_steps_per_env=500, actor=_PPO.actor),
    FastSacConfig(
        num_steps_per_env=64,
        batch_size=1024,
        updates_per_step=1,
        num_step_returns=3,
        gamma=0.99,
        learning_rate=1e-3,
        initial_temperature=0.05,  # Swinging up takes exploration from the start.
        actor_hidden_dims=(64, 64),
        critic_hidden_dims=(128, 128),
    ),
    SkrlConfig(num_steps_per_env=64, hidden_dims=(64, 64), ppo=_SKRL_PPO, sac=_SKRL_SAC, td3=_SKRL_TD3),
    SkrlJaxConfig(num_steps_per_env=64, hidden_dims=(64, 64), ppo=_SKRL_PPO),
)

_SWINGUP = TaskSpec(
    name="Cartpole-Swingup",
    summary="Swing a hanging pole up, and keep it upright in the middle of the rail.",
    env=SwingupConfig(),
    agent=_PPO,
    other_agents=_OTHERS,
    num_envs=512,
    max_iterations=150,
    builder="shoal.tasks.cartpole.task:Swingup",
    gpu_bytes_per_env=77,
    observation_size=5,
    reference="shoal.tasks.cartpole.model:reference_rate",
)

SPECS = (
    TaskSpec(
        name="Cartpole-Balance",
        summary="Keep a pole upright on a cart that is pushed left and right.",
        env=BalanceConfig(),
        agent=ppo(64, 64, steps=32, entropy_coef=0.0),
        num_envs=512,
        max_iterations=100,
        builder="shoal.tasks.cartpole.task:Balance",
        gpu_bytes_per_env=101,
        observation_size=5,
        reference="shoal.tasks.cartpole.model:reference_rate",
    ),
    _SWINGUP,
    replace(
        _SWINGUP,
        name="Cartpole-Swingup-Mujoco",
        summary="The same, simulated by MuJoCo: MuJoCo Warp on a GPU, MuJoCo's C engine on the CPU.",
        env=SWINGUP_MUJOCO,
        builder="shoal.tasks.cartpole.mujoco_task:SwingupMujoco",
        gpu_bytes_per_env=2_590,
        reference=None,
    ),
    TaskSpec(
        name="Cartpole-Swingup-Depth",
        summary="The same from depth images, 48 x 24 pixels of a camera that sees the whole rail.",
        env=SWINGUP_DEPTH,
        agent=_DEPTH,
        num_envs=128,
        max_iterations=800,
        builder="shoal.tasks.cartpole.mujoco_task:SwingupDepth",
        gpu_bytes_per_env=39_300,
        observation_size=3_461,
    ),
)
