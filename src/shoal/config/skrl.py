"""Configuration of skrl's agents. Names and defaults of their settings are skrl's, where no other source is given."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from shoal.config.agent import AgentConfig
from shoal.config.checks import WIDTH, Config, above, at_least, each, within

_WIDTHS = each(WIDTH)
_FRACTION = within(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkrlPpoConfig(Config):
    """skrl's PPO, without `kl_threshold`, at which each rank would stop by itself."""

    prefix = "agent.ppo."

    learning_epochs: Annotated[int, at_least(1)] = 8
    """Passes over the experience of an iteration."""
    mini_batches: Annotated[int, at_least(1)] = 2
    """Mini-batches, and so optimizer steps, of each epoch."""
    discount_factor: Annotated[float, _FRACTION] = 0.99
    """Discount of the future for each environment step."""
    gae_lambda: Annotated[float, _FRACTION] = 0.95
    """Lambda of the generalised advantage estimate."""
    learning_rate: Annotated[float, above(0)] = 1e-3
    """Step size of the optimizer; its initial value with `adaptive_kl`."""
    adaptive_kl: Annotated[float | None, above(0)] = 0.01
    """KL divergence of an epoch that the learning rate is adapted to [nats]; None keeps the rate. skrl's is None."""
    grad_norm_clip: Annotated[float, at_least(0)] = 0.5
    """Largest norm of the gradient; 0: no limit."""
    ratio_clip: Annotated[float, above(0)] = 0.2
    """Clipping range of the probability ratio."""
    value_clip: Annotated[float, at_least(0)] = 0.2
    """Clipping range of the critic's change; 0: no limit."""
    entropy_loss_scale: Annotated[float, at_least(0)] = 0.0
    """Factor on the entropy of the actions, which is rewarded."""
    value_loss_scale: Annotated[float, at_least(0)] = 2.5
    """Factor on the critic's loss."""
    time_limit_bootstrap: bool = True
    """Add the value of the last observation where an episode is cut off. skrl's default is no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OffPolicyConfig(Config):
    """What skrl's SAC and TD3 share."""

    gradient_steps: Annotated[int, at_least(1)] = 1
    """Updates for each step of the environments."""
    batch_size: Annotated[int, at_least(1)] = 4096
    """Transitions in an update, on each worker. skrl's default, for one environment, is 64."""
    memory_size: Annotated[int, at_least(1)] = 1024
    """Newest steps of each environment in the replay buffer."""
    discount_factor: Annotated[float, _FRACTION] = 0.99
    """Discount of the future for each environment step."""
    polyak: Annotated[float, _FRACTION] = 0.005
    """Fraction by which the target networks follow in each update."""
    learning_rate: Annotated[float, above(0)] = 1e-3
    """Step size of all optimizers."""
    random_timesteps: Annotated[int, at_least(0)] = 16
    """Steps of each environment with random actions at the start. skrl's default is 0."""
    learning_starts: Annotated[int, at_least(0)] = 16
    """Steps of each environment before the first update. skrl's default is 0."""
    grad_norm_clip: Annotated[float, at_least(0)] = 0.0
    """Largest norm of a gradient; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkrlSacConfig(_OffPolicyConfig):
    """skrl's SAC."""

    prefix = "agent.sac."

    learn_entropy: bool = True
    """Learn the factor on the entropy."""
    initial_entropy_value: Annotated[float, above(0)] = 0.2
    """Factor on the entropy at the start."""
    target_entropy: float | None = None
    """Entropy that the factor is learned for, over all actions [nats]; None: minus the number of actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkrlTd3Config(_OffPolicyConfig):
    """skrl's TD3."""

    prefix = "agent.td3."

    exploration_noise: Annotated[float, at_least(0)] = 0.1
    """Standard deviation of the noise on actions. skrl has no default."""
    policy_delay: Annotated[int, at_least(1)] = 2
    """Updates of the critics for each update of the policy."""
    smooth_regularization_noise: Annotated[float, at_least(0)] = 0.2
    """Standard deviation of the noise on the target's actions. skrl has no default."""
    smooth_regularization_clip: Annotated[float, above(0)] = 0.5
    """Largest such noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SkrlBase(AgentConfig):
    """What skrl's agents for torch and JAX share."""

    needs_final_observations = True
    mini_batches_field = "ppo.mini_batches"

    hidden_dims: Annotated[tuple[int, ...], _WIDTHS] = (256, 128, 64)
    """Units of each hidden layer, with ELU, of every network."""
    initial_log_std: float = 0.0
    """Logarithm of PPO's exploration noise at the start."""
    normalize_observations: bool = True
    """Normalise observations by running mean and standard deviation, pooled over ranks."""
    normalize_values: bool = True
    """Normalise PPO's returns in the same way."""
    ppo: SkrlPpoConfig = field(default_factory=SkrlPpoConfig)
    """Settings of PPO."""

    @property
    def checkpoint_floats(self) -> int:
        """Least number of weights, and their moments."""
        return 6 * sum(self.hidden_dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkrlJaxConfig(_SkrlBase):
    """skrl's PPO for JAX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkrlConfig(_SkrlBase):
    """An agent of skrl for torch."""

    class_name: Literal["PPO", "SAC", "TD3"] = "PPO"
    """The agent; `ppo`, `sac` and `td3` hold the settings of each."""
    action_limit: Annotated[float, above(0)] = 1.0
    """Largest magnitude of an action of SAC and TD3; PPO's are not limited."""
    sac: SkrlSacConfig = field(default_factory=SkrlSacConfig)
    """Settings of SAC."""
    td3: SkrlTd3Config = field(default_factory=SkrlTd3Config)
    """Settings of TD3."""

    @property
    def mini_batches_asked(self) -> int:
        """Number of mini-batches of an epoch of PPO; 0 of the others."""
        return self.ppo.mini_batches if self.class_name == "PPO" else 0

    def plan_entries(self, num_envs: int) -> dict[str, Any]:
        """Return the agent, and the size of a mini-batch."""
        off_policy = {} if self.class_name == "PPO" else {"mini_batch_size": self.off_policy.batch_size}
        return {"agent": f"skrl's {self.class_name}", **_SkrlBase.plan_entries(self, num_envs), **off_policy}

    @property
    def off_policy(self) -> SkrlSacConfig | SkrlTd3Config:
        """The settings of SAC or TD3."""
        return self.sac if self.class_name == "SAC" else self.td3
