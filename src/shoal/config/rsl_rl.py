"""Configuration of rsl_rl's PPO: algorithm and networks. `to_rsl_rl` alone makes the nested dicts that rsl_rl reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from shoal.config.agent import AgentConfig
from shoal.config.algorithm import PpoConfig
from shoal.config.checks import Config, is_custom, is_given, listed
from shoal.config.models import DISTRIBUTION_FIELDS, DistributionConfig, ModelConfig
from shoal.errors import UsageError, counted

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CompileMode = Literal["default", "max-autotune-no-cudagraphs"]
"""Modes of `torch.compile` that rsl_rl allows: those without CUDA graphs."""

RSL_RL_NAMES = {"distribution": "distribution_cfg", "rnd": "rnd_cfg", "symmetry": "symmetry_cfg"}
"""Fields that have another name in rsl_rl."""

MOMENTS = {"adam": 2, "adamw": 2, "rmsprop": 1}
"""Numbers that an optimizer keeps for each weight."""


def gaussian() -> ModelConfig:
    """Return rsl_rl's default model with a Gaussian distribution, without which a policy cannot explore."""
    return ModelConfig(distribution=DistributionConfig(class_name="GaussianDistribution"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RslRlConfig(AgentConfig):
    """An actor and a critic, trained by PPO."""

    torch_compile_mode: CompileMode | None = None
    """Mode of `torch.compile` for the networks; None does not compile (rsl_rl's default)."""
    algorithm: PpoConfig = field(default_factory=PpoConfig)
    """PPO: learning rate, epochs, clipping, discount, entropy."""
    actor: ModelConfig = field(default_factory=gaussian)
    """The policy network. Unlike in rsl_rl it has a distribution by default: PPO samples actions from it."""
    critic: ModelConfig = field(default_factory=ModelConfig)
    """The value network."""

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

    def check_samples(self, num_envs: int) -> None:
        """Refuse what rsl_rl's mini-batches are not made for: they are equal parts of samples, or of environments."""
        requested, steps = self.algorithm.num_mini_batches, self.num_steps_per_env
        if "RNNModel" in (self.actor.class_name, self.critic.class_name):
            # With one environment its loss compares each step's action with those of all steps.
            if num_envs % requested or num_envs < 2 * requested:
                raise UsageError(
                    f"--agent.algorithm.num-mini-batches {requested} was asked for, but a worker has "
                    f"{counted(num_envs, 'environment')}, which rsl_rl does not divide evenly into mini-batches of two "
                    "or more, as recurrent networks need: pass --num-envs "
                    f"{max(2, math.ceil(num_envs / requested)) * requested}, or another number of mini-batches."
                )
            if steps == 1:
                raise UsageError(
                    "--agent.num-steps-per-env 1 was asked for, but rsl_rl's recurrent networks have no memory "
                    "to learn from after the first step: pass 2 or more."
                )
        samples = num_envs * steps
        least = 2 if self.algorithm.normalize_advantage_per_mini_batch else 1
        if samples == 1:
            raise UsageError(
                "--agent.num-steps-per-env 1 was asked for with 1 environment on each worker, but rsl_rl divides "
                "advantages by their standard deviation, which takes two samples: pass more steps or environments."
            )
        if requested * least > samples:
            why = "" if least == 1 else ", and the advantages of one sample cannot be normalised"
            raise UsageError(
                f"--agent.algorithm.num-mini-batches {requested} was asked for, but a worker collects only "
                f"{counted(steps, 'step')} of {counted(num_envs, 'environment')}{why}: pass "
                f"--agent.algorithm.num-mini-batches {samples // least} or fewer, or more environments."
            )

    @property
    def checkpoint_floats(self) -> int:
        """Weights of both networks, and their moments."""
        moments = MOMENTS.get(self.algorithm.optimizer or "adam", 0)
        return (1 + moments) * (self.actor.least_weights + self.critic.least_weights)

    def plan_entries(self, num_envs: int) -> dict[str, Any]:
        """Return the size of a mini-batch, and the number of samples of a worker that rsl_rl leaves out."""
        size, rest = divmod(num_envs * self.num_steps_per_env, self.algorithm.num_mini_batches)
        return {"mini_batch_size": size} | ({"samples_left_out": rest} if rest else {})


def to_rsl_rl(config: DataclassInstance) -> dict[str, Any]:
    """Return a configuration as rsl_rl reads it, in new dicts and lists, which its runner edits.

    Names are rsl_rl's. What is None is left out, so that rsl_rl's default holds, except that `rnd_cfg` and
    `symmetry_cfg` are None while they are off.
    """
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
        return to_rsl_rl(value)
    if isinstance(value, dict):
        return {name: _value(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, (tuple, list)):
        return [_value(item) for item in cast("tuple[Any, ...]", value)]
    return value
