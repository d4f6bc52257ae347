"""Configuration of FastSAC: soft actor-critic for thousands of environments."""

from dataclasses import dataclass
from typing import Annotated, Any

from shoal.config.agent import AgentConfig
from shoal.config.checks import WIDTH, above, at_least, each, within
from shoal.errors import UsageError

_WIDTHS = each(WIDTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class FastSacConfig(AgentConfig):
    """An actor and two distributional critics, trained off-policy from a replay buffer on the device.

    After Seo et al., "Learning Sim-to-Real Humanoid Locomotion in 15 Minutes", arXiv:2512.01996, whose figures the
    defaults are where no other source is given; rewards are scaled as in Lee et al., "SimbaV2", arXiv:2502.15280, so
    that one support of returns fits all tasks.
    """

    needs_final_observations = True
    experience_floats = 4  # An action of one number, the reward, and the number of a final observation, of eight bytes.

    cuda_graphs: bool = True
    """On a GPU, capture step and updates as CUDA graphs."""
    num_steps_per_env: Annotated[int, at_least(1)] = 8
    """Steps of each environment in one iteration, before its updates."""
    updates_per_step: Annotated[int, at_least(1)] = 4
    """Updates of the critics for each step of the environments."""
    policy_delay: Annotated[int, at_least(1)] = 2
    """Updates of the critics for each update of the actor."""
    batch_size: Annotated[int, at_least(1)] = 8192
    """Transitions in an update, over all workers."""
    replay_steps: Annotated[int, at_least(2)] = 1024
    """Newest steps of each environment in the replay buffer."""
    warmup_steps: Annotated[int, at_least(1)] = 16
    """Steps of each environment before the first update, with uniform random actions in a new training."""
    num_step_returns: Annotated[int, at_least(1)] = 1
    """Rewards that are summed before the critic's estimate follows."""
    gamma: Annotated[float, within(0, 1)] = 0.97
    """Discount of the future for each environment step."""
    tau: Annotated[float, above(0)] = 0.125
    """Fraction by which the target critics follow the critics in each update."""
    learning_rate: Annotated[float, above(0)] = 3e-4
    """Step size of the optimizers, which are AdamW."""
    weight_decay: Annotated[float, at_least(0)] = 0.001
    """Weight decay of the optimizers."""
    max_grad_norm: Annotated[float, above(0)] = 10.0
    """Largest norm of a gradient; longer ones are clipped."""
    initial_temperature: Annotated[float, above(0)] = 0.001
    """Factor on the entropy at the start; it is learned."""
    target_entropy: Annotated[float, within(-10, 10)] = 0.0
    """Entropy of the squashed actions for each action, which the temperature is learned for [nats]."""
    action_limit: Annotated[float, above(0)] = 1.0
    """Largest magnitude of an action, which is squashed by tanh."""
    actor_hidden_dims: Annotated[tuple[int, ...], _WIDTHS] = (256, 128, 64)
    """Units of each hidden layer of the actor."""
    critic_hidden_dims: Annotated[tuple[int, ...], _WIDTHS] = (256, 256, 128)
    """Units of each hidden layer of a critic."""
    num_atoms: Annotated[int, at_least(2)] = 101
    """Atoms of the distribution of returns."""
    max_return: Annotated[float, above(0)] = 10.0
    """Largest magnitude of a scaled return: the support of the critics' distributions."""

    def check_samples(self, num_envs: int) -> None:
        """Refuse a warm-up that does not fit into the replay buffer."""
        del num_envs
        if self.warmup_steps + self.num_steps_per_env > self.replay_steps:
            raise UsageError(
                f"--agent.warmup-steps {self.warmup_steps} and --agent.num-steps-per-env {self.num_steps_per_env} do "
                f"not fit into --agent.replay-steps {self.replay_steps}: pass a larger buffer."
            )

    @property
    def experience_steps(self) -> int:
        """Steps of each environment in the replay buffer."""
        return self.replay_steps

    @property
    def checkpoint_floats(self) -> int:
        """Least number of weights of the networks, and their moments."""
        return 3 * (sum(self.actor_hidden_dims) + 2 * sum(self.critic_hidden_dims))

    def plan_entries(self, num_envs: int) -> dict[str, Any]:
        """Return the size of the replay buffer, and the updates of an iteration."""
        updates = self.num_steps_per_env * self.updates_per_step
        return {"replay_transitions": num_envs * self.replay_steps, "updates_per_iteration": updates}
