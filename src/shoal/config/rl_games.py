"""Configuration of rl_games' continuous PPO. Names of its settings are those of rl_games' YAML files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from shoal.config.agent import AgentConfig
from shoal.config.checks import WIDTH, above, at_least, each, within
from shoal.errors import UsageError

_OF_CONFIG = (
    *("learning_rate", "lr_schedule", "schedule_type", "kl_threshold", "gamma", "tau", "e_clip", "entropy_coef"),
    *("critic_coef", "bounds_loss_coef", "grad_norm", "mini_epochs", "normalize_input", "normalize_value"),
    "clip_actions",
)
"""Fields that are in the section `config` of rl_games' files, under the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RlGamesConfig(AgentConfig):
    """rl_games' `a2c_continuous`. Defaults are those of Isaac Lab's tasks, which most have in common."""

    mini_batches_field = "num_mini_batches"

    yaml: str | None = None
    """A configuration file of rl_games, with `params` at its top, which replaces all settings below but
    `num_mini_batches`. The environments, their number, the rollout's length, the number of epochs, the seed and the
    devices are Shoal's.
    A run keeps the text of the file in its place."""
    num_mini_batches: Annotated[int, at_least(1)] = 4
    """Mini-batches, and so optimizer steps, of each epoch; samples must divide evenly."""
    mini_epochs: Annotated[int, at_least(1)] = 5
    """Passes over the experience of an iteration."""
    hidden_dims: Annotated[tuple[int, ...], each(WIDTH)] = (256, 128, 64)
    """Units of each hidden layer."""
    activation: Literal["elu", "relu", "selu", "tanh", "swish", "gelu"] = "elu"
    """Activation function of the hidden layers."""
    separate: bool = False
    """Whether actor and critic have networks of their own; by default they share the hidden layers."""
    learning_rate: Annotated[float, above(0)] = 3e-4
    """Step size of the optimizer; its initial value if `lr_schedule` is adaptive."""
    lr_schedule: Literal["adaptive", "linear"] | None = "adaptive"
    """adaptive follows `kl_threshold`; linear falls to 1e-6 at `--max-iterations`; None keeps the rate."""
    schedule_type: Literal["legacy", "standard"] = "legacy"
    """Adapt the rate after each mini-batch (legacy) or each epoch (standard)."""
    kl_threshold: Annotated[float, above(0)] = 0.008
    """KL divergence that the learning rate is adapted to [nats]."""
    gamma: Annotated[float, within(0, 1)] = 0.99
    """Discount of the future for each environment step."""
    tau: Annotated[float, within(0, 1)] = 0.95
    """Lambda of the generalised advantage estimate."""
    e_clip: Annotated[float, above(0)] = 0.2
    """Clipping range of the probability ratio."""
    entropy_coef: Annotated[float, at_least(0)] = 0.0
    """Factor on the entropy of the actions, which is rewarded."""
    critic_coef: Annotated[float, at_least(0)] = 2.0
    """Factor on the critic's loss."""
    bounds_loss_coef: Annotated[float, at_least(0)] = 1e-4
    """Factor on the loss of means beyond -1.1 and 1.1."""
    grad_norm: Annotated[float, above(0)] = 1.0
    """Largest norm of the gradient; longer ones are clipped."""
    normalize_input: bool = True
    """Normalise observations by running mean and standard deviation."""
    normalize_value: bool = True
    """Normalise returns in the same way."""
    clip_actions: bool = False
    """Clip actions to [-1, 1]. rl_games' default is yes."""

    def check_samples(self, num_envs: int) -> None:
        """Refuse samples that do not divide into mini-batches, which rl_games requires."""
        samples = num_envs * self.num_steps_per_env
        if samples % self.num_mini_batches:
            raise UsageError(
                f"--agent.num-mini-batches {self.num_mini_batches} was asked for, but the {samples} samples of a "
                "worker do not divide evenly by it, which rl_games requires: pass another number."
            )

    @staticmethod
    def unsupported(params: Mapping[str, Any]) -> str | None:
        """Return what a file of rl_games asks for and this learner does not have; None if there is nothing."""
        config = params["config"]
        central: dict[str, Any] = config.get("central_value_config") or {"network": {}}
        if "rnn" in params["network"] or "rnn" in central["network"]:
            return "a recurrent network (rnn)"
        # Its moments would be in no checkpoint, and others on each rank.
        return "normalize_rms_advantage" if config.get("normalize_rms_advantage") else None

    def to_params(self) -> dict[str, Any]:
        """Return the settings as rl_games' files hold them, below `params`."""
        return {
            "algo": {"name": "a2c_continuous"},
            "model": {"name": "continuous_a2c_logstd"},
            "network": {
                "name": "actor_critic",
                "separate": self.separate,
                "space": {
                    "continuous": {
                        "mu_activation": "None",
                        "sigma_activation": "None",
                        "mu_init": {"name": "default"},
                        "sigma_init": {"name": "const_initializer", "val": 0},
                        "fixed_sigma": True,
                    }
                },
                "mlp": {
                    "units": list(self.hidden_dims),
                    "activation": self.activation,
                    "d2rl": False,
                    "initializer": {"name": "default"},
                    "regularizer": {"name": "None"},
                },
            },
            "config": {
                "ppo": True,
                "normalize_advantage": True,
                "value_bootstrap": True,
                "truncate_grads": True,
                "clip_value": True,
                **{name: getattr(self, name) for name in _OF_CONFIG},
            },
        }
