"""Registry entries of Gymnasium's MuJoCo tasks: names, summaries and tuned learners.

Importable without Warp, MuJoCo and Gymnasium. Results are in docs/tasks/gymnasium_v5.md.
"""

from typing import Any

from shoal.config import ppo
from shoal.mdp.config import TermsConfig
from shoal.tasks.gymnasium_v5 import config
from shoal.tasks.registry import TaskSpec

_TASKS: dict[str, tuple[str, TermsConfig, int, int]] = {
    "Ant": ("Walk on four legs", config.ANT, 27_100, 105),
    "HalfCheetah": ("Run with two legs in a plane", config.HALF_CHEETAH, 16_400, 17),
    "Hopper": ("Hop on one leg in a plane", config.HOPPER, 8_170, 11),
    "Humanoid": ("Walk on two legs", config.HUMANOID, 42_700, 348),
    "HumanoidStandup": ("Stand up from lying", config.HUMANOID_STANDUP, 43_900, 348),
    "InvertedPendulum": ("Keep a pole upright on a cart", config.INVERTED_PENDULUM, 5_200, 4),
    "InvertedDoublePendulum": ("Keep a pole upright on a pole on a cart", config.INVERTED_DOUBLE_PENDULUM, 6_080, 9),
    "Pusher": ("Push a cylinder to a goal with an arm", config.PUSHER, 120_000, 23),
    "Reacher": ("Touch a target with the tip of an arm", config.REACHER, 6_910, 10),
    "Swimmer": ("Swim with three links in a plane", config.SWIMMER, 7_280, 8),
    "Walker2d": ("Walk on two legs in a plane", config.WALKER2D, 17_200, 17),
}
"""Summary, configuration, GPU memory of an environment [bytes], and size of an observation."""
_GREATEST_STD = 1e6
"""No bound: rsl_rl's default."""


def _task(
    name: str,
    max_iterations: int,
    *,
    num_envs: int = 64,
    width: int = 128,
    least_std: float = 1e-6,
    **training: Any,  # noqa: ANN401  Arguments of `ppo`.
) -> TaskSpec:
    """Return a task, trained with two hidden layers of `width`.

    First actions beyond the action space are clipped. In tasks of precision their standard deviation would fall to
    hundredths of the action space, and then the smallest change of the mean exceeds the target divergence: it has a
    lower bound `least_std`; the default is rsl_rl's.
    """
    # The bound on the critic's change is in units of the return, here in the hundreds and thousands.
    usual = {"init_std": 0.5, "steps": 64, "num_mini_batches": 8, "entropy_coef": 0.0, "use_clipped_value_loss": False}
    summary, env, gpu_bytes_per_env, observation_size = _TASKS[name]
    return TaskSpec(
        name=f"{name}-v5",
        summary=f"{summary}, as in Gymnasium.",
        env=env,
        agent=ppo(width, width, std_range=(least_std, _GREATEST_STD), **usual | training),
        num_envs=num_envs,
        max_iterations=max_iterations,
        builder=f"shoal.tasks.gymnasium_v5.tasks:{name}",
        gpu_bytes_per_env=gpu_bytes_per_env,
        observation_size=observation_size,
        extra="gymnasium",
    )


# A learning rate that follows the divergence is mostly at its least where actions are many.
_FIXED: dict[str, Any] = {"learning_rate": 3e-4, "schedule": "fixed"}
# Actions end at 0.4.
_HUMANOID: dict[str, Any] = {"width": 256, "init_std": 0.2, "least_std": 0.05, "gamma": 0.98, **_FIXED}

SPECS = (
    # An action costs half its square: a wider distribution would cost more than the reward for not falling.
    _task("Ant", 500, init_std=0.4, least_std=0.2, **_FIXED),
    _task("HalfCheetah", 600, steps=128),
    _task("Hopper", 400, least_std=0.2),
    _task("Humanoid", 500, lam=0.9, **_HUMANOID),
    _task("HumanoidStandup", 300, **_HUMANOID),
    # The action space is three times as wide as the others.
    _task("InvertedPendulum", 50, width=64, init_std=1.0),
    _task("InvertedDoublePendulum", 250, width=64, least_std=0.2, gamma=0.98),
    # Whole episodes.
    _task("Pusher", 500, steps=100, least_std=0.1, gamma=0.98),
    # Whole episodes. Rewards more than twenty steps later hardly depend on an action.
    _task("Reacher", 300, steps=50, width=64, least_std=0.1, gamma=0.95),
    # A stroke pays long after it. Discount and lambda are those of RL Baselines3 Zoo.
    _task("Swimmer", 150, num_envs=16, steps=512, width=64, init_std=1.0, gamma=0.9999, lam=0.98),
    _task("Walker2d", 600, least_std=0.2),
)
