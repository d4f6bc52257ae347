"""Configuration of the learner: rollout length, algorithm, and networks.

`to_rsl_rl` alone makes the nested dicts that rsl_rl reads. Logging, run names, seeds and the number of iterations
belong to `TrainConfig`, ranks and devices to the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from shoal.config.algorithm import PpoConfig
from shoal.config.checks import Config, Rule, at_least, is_custom, is_given, listed
from shoal.config.models import DISTRIBUTION_FIELDS, DistributionConfig, ModelConfig
from shoal.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CompileMode = Literal["default", "max-autotune-no-cudagraphs"]
"""Modes of `torch.compile` that rsl_rl allows: those without CUDA graphs."""

RSL_RL_NAMES = {"distribution": "distribution_cfg", "rnd": "rnd_cfg", "symmetry": "symmetry_cfg"}
"""Fields that have another name in rsl_rl."""

_NOT_EMPTY = Rule("name one or more observation groups for each set", lambda sets: all(sets.values()))


def _gaussian() -> ModelConfig:
    """Return rsl_rl's default model with a Gaussian distribution, without which a policy cannot explore."""
    return ModelConfig(distribution=DistributionConfig(class_name="GaussianDistribution"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(Config):
    """An actor and a critic, trained by PPO."""

    prefix = "agent."

    num_steps_per_env: Annotated[int, at_least(1)] = 24
    """Steps of each environment in one iteration. rsl_rl has no default; this is Isaac Lab's and mjlab's."""
    save_interval: Annotated[int, at_least(1)] = 50
    """Iterations between checkpoints. rsl_rl has no default; this is Isaac Lab's and mjlab's."""
    check_for_nan: bool = True
    """End the training when observations, rewards or weights are NaN or infinite.
    Checked once an iteration; rsl_rl's default checks every step, for NaN alone."""
    torch_compile_mode: CompileMode | None = None
    """Mode of `torch.compile` for the networks; None does not compile (rsl_rl's default)."""
    obs_groups: Annotated[dict[str, tuple[str, ...]], _NOT_EMPTY] = field(
        default_factory=lambda: {"actor": ("policy",), "critic": ("policy",)}
    )
    """Observation groups of each network: the sets are `actor`, `critic` and, for RND, `rnd_state`.
    A set that is missing is the group of the same name, or else the group `policy` (rsl_rl's rule)."""
    algorithm: PpoConfig = field(default_factory=PpoConfig)
    """PPO: learning rate, epochs, clipping, discount, entropy."""
    actor: ModelConfig = field(default_factory=_gaussian)
    """The policy network. Unlike in rsl_rl it has a distribution by default: PPO samples actions from it."""
    critic: ModelConfig = field(default_factory=ModelConfig)
    """The value network."""

    def to_rsl_rl(self) -> dict[str, Any]:
        """Return the configuration that rsl_rl's runner reads, in new dicts and lists, which the runner edits.

        Names are rsl_rl's. What is None is left out, so that rsl_rl's default holds, except that `rnd_cfg` and
        `symmetry_cfg` are None while they are off.
        """
        return _section(self)

    def __post_init__(self) -> None:
        """Refuse values out of range, and parts that do not fit together."""
        Config.__post_init__(self)
        if not self.actor.distribution.enabled and not is_custom(self.actor.class_name):
            raise UsageError(
                "agent.actor.distribution.class_name is None, but rsl_rl needs a distribution of the actions:"
                f" set it to {listed(DISTRIBUTION_FIELDS)}, the first of which is the usual one."
            )
        for name, model in (("actor", self.actor), ("critic", self.critic)):
            if self.algorithm.symmetry.enabled and model.class_name == "RNNModel":
                raise UsageError(
                    f"agent.{name}.class_name is 'RNNModel', but agent.algorithm.symmetry.enabled is True, and rsl_rl"
                    " mirrors no recurrence: change one of them."
                )


def _section(config: DataclassInstance) -> dict[str, Any]:
    """Return a dataclass under rsl_rl's names, without what is not given."""
    made: dict[str, Any] = {}
    for name in (item.name for item in fields(config) if item.name != "enabled"):
        value = getattr(config, name)
        if is_given(value):
            made[RSL_RL_NAMES.get(name, name)] = _value(value)
        elif isinstance(config, PpoConfig) and is_dataclass(value):
            made[RSL_RL_NAMES.get(name, name)] = None
    return made


def _value(value: Any) -> Any:  # noqa: ANN401 - a field of any configuration.
    """Return a field's value in new dicts and lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return _section(value)
    if isinstance(value, dict):
        return {name: _value(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, (tuple, list)):
        return [_value(item) for item in cast("tuple[Any, ...]", value)]
    return value
