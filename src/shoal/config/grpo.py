"""Configuration of GRPO: group-relative policy optimisation, an actor without a critic."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from shoal.config.agent import AgentConfig
from shoal.config.algorithm import ModelConfig
from shoal.config.checks import above, at_least, within
from shoal.config.rsl_rl import gaussian
from shoal.errors import UsageError, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoConfig(AgentConfig):
    """Groups of environments live through the same episode; an action is good if it beat the group.

    Algorithm: Shao et al., "DeepSeekMath", arXiv:2402.03300, section 4. Group size, KL coefficient, clipping and epochs
    are EmbodiChain's for robots.
    """

    mini_batches_field = "num_mini_batches"

    num_steps_per_env: Annotated[int, at_least(1)] = 500
    """Steps of each episode in one iteration. All environments begin a new episode with each iteration, and what comes
    after an early end is not learned from. Statistics count episodes that ended within these steps."""
    group_size: Annotated[int, at_least(2)] = 4
    """Environments of a group: they begin in the same state, with the same command and random numbers."""
    gamma: Annotated[float, within(0, 1)] = 0.99
    """Discount of the future for each environment step."""
    learning_rate: Annotated[float, above(0)] = 1e-3
    """Step size of the optimizer, which is Adam."""
    num_learning_epochs: Annotated[int, at_least(1)] = 10
    """Passes over the experience of an iteration."""
    num_mini_batches: Annotated[int, at_least(1)] = 4
    """Mini-batches, and so optimizer steps, of each epoch."""
    clip_param: Annotated[float, above(0)] = 0.2
    """Clipping range of the probability ratio."""
    entropy_coef: Annotated[float, at_least(0)] = 0.0
    """Factor on the entropy of the actions, which is rewarded."""
    kl_coef: Annotated[float, at_least(0)] = 0.02
    """Factor on the KL divergence from the reference policy [1/nat]."""
    reference: Literal["none", "start"] = "none"
    """The reference policy: none, or the policy with which the training started, such as that of `--checkpoint`."""
    max_grad_norm: Annotated[float, above(0)] = 1.0
    """Largest norm of the gradient; longer ones are clipped."""
    actor: ModelConfig = field(default_factory=gaussian)
    """The policy network."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        if self.actor.class_name in {"RNNModel", "CNNModel"} or not self.actor.distribution.enabled:
            raise UsageError(
                "agent.actor must be a perceptron with a distribution for GRPO: set class_name to 'MLPModel', and "
                "distribution.class_name to 'GaussianDistribution'."
            )

    def check_samples(self, num_envs: int) -> None:
        """Refuse environments that do not divide into groups, and more mini-batches than samples."""
        if num_envs % self.group_size:
            fitting = max(1, num_envs // self.group_size) * self.group_size
            raise UsageError(
                f"--agent.group-size {self.group_size} was asked for, but a worker has "
                f"{counted(num_envs, 'environment')}, which does not divide evenly: pass --num-envs {fitting}."
            )
        AgentConfig.check_samples(self, num_envs)

    @property
    def checkpoint_floats(self) -> int:
        """Weights of the actor, and their moments."""
        return 3 * self.actor.least_weights

    def plan_entries(self, num_envs: int) -> dict[str, Any]:
        """Return the number of groups, and the size of a mini-batch."""
        return {"groups": num_envs // self.group_size} | AgentConfig.plan_entries(self, num_envs)
