"""Registry entries of Gymnasium's MuJoCo tasks: names, summaries and tuned learners.

Importable without Warp, MuJoCo and Gymnasium. Results are in docs/tasks/gymnasium_v5.md.
"""

from dataclasses import dataclass, replace

from shoal.config import RslRlConfig
from shoal.config.algorithm import Schedule
from shoal.mdp.config import TermsConfig
from shoal.tasks.gymnasium_v5 import config
from shoal.tasks.registry import TaskSpec, ppo

_GREATEST_STD = 1e6
"""No bound: rsl_rl's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """Settings that differ between the tasks' trainings."""

    max_iterations: int
    num_envs: int = 64
    steps: int = 64
    """Steps of each environment in one iteration."""
    width: int = 128
    """Neurons of each of two hidden layers."""
    init_std: float = 0.5
    """Standard deviation of the first actions; beyond the action space they are clipped."""
    least_std: float = 1e-6
    """Lower bound of it; the default is rsl_rl's. In tasks of precision it would fall to hundredths of the action
    space, and then the smallest change of the mean exceeds the target divergence."""
    gamma: float = 0.99
    """Discount of the future for each step."""
    lam: float = 0.95
    """Lambda of the generalised advantage estimate."""
    learning_rate: float = 1e-3
    """Learning rate, at first or always."""
    schedule: Schedule = "adaptive"
    """Whether it follows the divergence, or stays. With many actions, one that follows is mostly at its least."""

    def agent(self) -> RslRlConfig:
        """Return the learner."""
        return ppo(
            *(self.width, self.width),
            init_std=self.init_std,
            std_range=(self.least_std, _GREATEST_STD),
            steps=self.steps,
            num_mini_batches=8,
            gamma=self.gamma,
            lam=self.lam,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            entropy_coef=0.0,
            # The bound on the critic's change is in units of the return, here in the hundreds and thousands.
            use_clipped_value_loss=False,
        )


_HUMANOID = _Training(
    max_iterations=500,
    width=256,
    init_std=0.2,
    least_std=0.05,
    gamma=0.98,
    lam=0.9,
    learning_rate=3e-4,
    schedule="fixed",
)
"""Actions end at 0.4."""

_TRAININGS = {
    # An action costs half its square: a wider distribution would cost more than the reward for not falling.
    "Ant": _Training(max_iterations=500, init_std=0.4, least_std=0.2, learning_rate=3e-4, schedule="fixed"),
    "HalfCheetah": _Training(max_iterations=600, steps=128),
    "Hopper": _Training(max_iterations=400, least_std=0.2),
    "Humanoid": _HUMANOID,
    "HumanoidStandup": replace(_HUMANOID, max_iterations=300, lam=0.95),
    # The action space is three times as wide as the others.
    "InvertedPendulum": _Training(max_iterations=50, width=64, init_std=1.0),
    "InvertedDoublePendulum": _Training(max_iterations=250, width=64, least_std=0.2, gamma=0.98),
    # Whole episodes.
    "Pusher": _Training(max_iterations=500, steps=100, least_std=0.1, gamma=0.98),
    # Whole episodes. Rewards more than twenty steps later hardly depend on an action.
    "Reacher": _Training(max_iterations=300, steps=50, width=64, least_std=0.1, gamma=0.95),
    # A stroke pays long after it. Discount and lambda are those of RL Baselines3 Zoo.
    "Swimmer": _Training(max_iterations=150, num_envs=16, steps=512, width=64, init_std=1.0, gamma=0.9999, lam=0.98),
    "Walker2d": _Training(max_iterations=600, least_std=0.2),
}

_TASKS: tuple[tuple[str, str, TermsConfig, int, int], ...] = (
    ("Ant", "Walk on four legs", config.ANT, 27_100, 105),
    ("HalfCheetah", "Run with two legs in a plane", config.HALF_CHEETAH, 16_400, 17),
    ("Hopper", "Hop on one leg in a plane", config.HOPPER, 8_170, 11),
    ("Humanoid", "Walk on two legs", config.HUMANOID, 42_700, 348),
    ("HumanoidStandup", "Stand up from lying", config.HUMANOID_STANDUP, 43_900, 348),
    ("InvertedPendulum", "Keep a pole upright on a cart", config.INVERTED_PENDULUM, 5_200, 4),
    ("InvertedDoublePendulum", "Keep a pole upright on a pole on a cart", config.INVERTED_DOUBLE_PENDULUM, 6_080, 9),
    ("Pusher", "Push a cylinder to a goal with an arm", config.PUSHER, 120_000, 23),
    ("Reacher", "Touch a target with the tip of an arm", config.REACHER, 6_910, 10),
    ("Swimmer", "Swim with three links in a plane", config.SWIMMER, 7_280, 8),
    ("Walker2d", "Walk on two legs in a plane", config.WALKER2D, 17_200, 17),
)
"""Name, summary, configuration, GPU memory of an environment [bytes], and size of an observation."""

SPECS = tuple(
    TaskSpec(
        name=f"{name}-v5",
        summary=f"{summary}, as in Gymnasium.",
        env=env,
        agent=_TRAININGS[name].agent(),
        num_envs=_TRAININGS[name].num_envs,
        max_iterations=_TRAININGS[name].max_iterations,
        builder=f"shoal.tasks.gymnasium_v5.tasks:{name}",
        gpu_bytes_per_env=gpu_bytes_per_env,
        observation_size=observation_size,
        extra="gymnasium",
    )
    for name, summary, env, gpu_bytes_per_env, observation_size in _TASKS
)
