"""Configuration that all learners share: rollout length, checkpoints, observation groups.

Logging, run names, seeds and the number of iterations belong to `TrainConfig`, ranks and devices to the plan.
"""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

from shoal.config.checks import Config, Rule, at_least
from shoal.errors import UsageError, counted

_NOT_EMPTY = Rule("name one or more observation groups for each set", lambda sets: all(sets.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(Config):
    """Base of every learner's configuration. A learner adds its own settings in a subclass."""

    prefix = "agent."
    needs_final_observations: ClassVar[bool] = False
    """Whether the learner needs the last observation of each episode, before the reset."""
    experience_floats: ClassVar[int] = 7
    """Least numbers that are kept of a step of one environment, besides the observation. In rsl_rl's storage: an action
    with mean and deviation, of one number each; reward, value, return, and advantage."""

    mini_batches_field: ClassVar[str] = ""
    """Dotted name of the field with the number of mini-batches of an epoch; empty for a learner without."""

    num_steps_per_env: Annotated[int, at_least(1)] = 24
    """Steps of each environment in one iteration. rsl_rl has no default; this is Isaac Lab's and mjlab's."""
    save_interval: Annotated[int, at_least(1)] = 50
    """Iterations between checkpoints. rsl_rl has no default; this is Isaac Lab's and mjlab's."""
    check_for_nan: bool = True
    """End the training when observations, rewards or weights are NaN or infinite.
    Checked once an iteration; rsl_rl's default checks every step, for NaN alone."""
    matmul_precision: Literal["highest", "high"] = "highest"
    """Precision of torch's products of 32-bit matrices in a training on a GPU: `high` is TF32, with 10 bits of mantissa
    instead of 23. torch's default; mjlab trains with TF32."""
    obs_groups: Annotated[dict[str, tuple[str, ...]], _NOT_EMPTY] = field(
        default_factory=lambda: {"actor": ("policy",), "critic": ("policy",)}
    )
    """Observation groups of each network: the sets are `actor`, `critic` and, for RND, `rnd_state`.
    A set that is missing is the group of the same name, or else the group `policy` (rsl_rl's rule)."""

    def check_samples(self, num_envs: int) -> None:
        """Refuse a number of environments on each worker that this learner cannot learn from."""
        flag, asked, least = self.mini_batches_field.replace("_", "-"), self.mini_batches_asked, self.least_mini_batch
        samples = num_envs * self.num_steps_per_env
        if asked * least > samples:
            why = "" if least == 1 else ", and the advantages of one sample cannot be normalised"
            raise UsageError(
                f"--agent.{flag} {asked} was asked for, but a worker collects only "
                f"{counted(self.num_steps_per_env, 'step')} of {counted(num_envs, 'environment')}{why}: pass "
                f"--agent.{flag} {samples // least} or fewer, or more environments."
            )

    @property
    def mini_batches_asked(self) -> int:
        """Number of mini-batches of an epoch; 0 of a learner without."""
        return attrgetter(self.mini_batches_field)(self) if self.mini_batches_field else 0

    @property
    def least_mini_batch(self) -> int:
        """Least number of samples of a mini-batch."""
        return 1

    @property
    def experience_steps(self) -> int:
        """Least number of steps of each environment that are kept."""
        return self.num_steps_per_env

    @property
    def checkpoint_floats(self) -> int:
        """Least number of floating-point numbers in a checkpoint: weights, and the optimizer's state."""
        return 0

    def plan_entries(self, num_envs: int) -> dict[str, Any]:
        """Return what the printed plan tells about this learner. `num_envs` is the number on each worker."""
        number = self.mini_batches_asked
        return {"mini_batch_size": num_envs * self.num_steps_per_env // number} if number else {}
