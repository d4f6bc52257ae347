"""Configuration that all learners share: rollout length, checkpoints, observation groups.

Logging, run names, seeds and the number of iterations belong to `TrainConfig`, ranks and devices to the plan.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from shoal.config.checks import Config, Rule, at_least

_NOT_EMPTY = Rule("name one or more observation groups for each set", lambda sets: all(sets.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(Config):
    """Base of every learner's configuration. A learner adds its own settings in a subclass."""

    prefix = "agent."
    needs_final_observations: ClassVar[bool] = False
    """Whether the learner needs the last observation of each episode, before the reset."""

    num_steps_per_env: Annotated[int, at_least(1)] = 24
    """Steps of each environment in one iteration. rsl_rl has no default; this is Isaac Lab's and mjlab's."""
    save_interval: Annotated[int, at_least(1)] = 50
    """Iterations between checkpoints. rsl_rl has no default; this is Isaac Lab's and mjlab's."""
    check_for_nan: bool = True
    """End the training when observations, rewards or weights are NaN or infinite.
    Checked once an iteration; rsl_rl's default checks every step, for NaN alone."""
    obs_groups: Annotated[dict[str, tuple[str, ...]], _NOT_EMPTY] = field(
        default_factory=lambda: {"actor": ("policy",), "critic": ("policy",)}
    )
    """Observation groups of each network: the sets are `actor`, `critic` and, for RND, `rnd_state`.
    A set that is missing is the group of the same name, or else the group `policy` (rsl_rl's rule)."""

    def check_samples(self, num_envs: int) -> None:
        """Refuse a number of environments on each worker that this learner cannot learn from."""

    @property
    def checkpoint_floats(self) -> int:
        """Least number of floating-point numbers in a checkpoint: weights, and the optimizer's state."""
        return 0

    def plan_entries(self, num_envs: int) -> dict[str, Any]:
        """Return what the printed plan tells about this learner. `num_envs` is the number on each worker."""
        del num_envs
        return {}
