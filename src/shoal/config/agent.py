"""The learner as a whole: how much experience an iteration has, the algorithm, and its networks.

`to_rsl_rl` is the only maker of the nested dicts that rsl_rl reads. Logging, run names, seeds and the number
of iterations belong to `TrainConfig`, ranks and devices to the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from shoal.config.algorithm import DistillationConfig, PpoConfig
from shoal.config.checks import Rule, at_least, check, is_custom, is_given, listed, one_of
from shoal.config.models import DISTRIBUTION_FIELDS, PER_LAYER, CnnConfig, DistributionConfig, ModelConfig
from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

CompileMode = Literal["default", "max-autotune-no-cudagraphs"]
"""Modes of `torch.compile` that rsl_rl lets through: those without CUDA graphs."""

RSL_RL_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "distribution": "distribution_cfg",
        "cnn": "cnn_cfg",
        "cnn_groups": "cnn_cfg",
        "rnd": "rnd_cfg",
        "symmetry": "symmetry_cfg",
    }
)
"""Fields that rsl_rl calls by another name."""

_NOT_EMPTY: Final = Rule("name one or more observation groups for each set", lambda sets: all(sets.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseAgentConfig:
    """What every learner can be told; the algorithm and its networks come in the subclasses."""

    num_steps_per_env: int = 24
    """Steps of each environment in one iteration. rsl_rl has no default; this is Isaac Lab's and mjlab's."""
    save_interval: int = 50
    """Iterations from one checkpoint to the next. rsl_rl has no default; this is Isaac Lab's and mjlab's."""
    check_for_nan: bool = True
    """Whether NaN or infinity, in the observations and rewards of an iteration or in the weights after it, ends the
    training. It is looked for once an iteration: before the gradients, and after the update. rsl_rl's default is to
    look, for NaN alone, in every step."""
    torch_compile_mode: CompileMode | None = None
    """Mode in which `torch.compile` compiles the networks; None does not compile (rsl_rl's default)."""
    obs_groups: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Observation groups of the environment that each observation set consists of, by the name of the set."""

    def to_rsl_rl(self) -> dict[str, Any]:
        """Return the configuration that rsl_rl's runner reads, in dicts and lists of its own.

        Names are rsl_rl's. What is None is left out, so that rsl_rl's default holds, except that `rnd_cfg`
        and `symmetry_cfg` are None while they are off. The runner edits what it gets: ask anew for each
        runner.
        """
        return _section(self)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        rules = dict.fromkeys(("num_steps_per_env", "save_interval"), at_least(1))
        check(self, "agent.", rules | {"torch_compile_mode": one_of(CompileMode), "obs_groups": _NOT_EMPTY})


def _gaussian() -> ModelConfig:
    """Return rsl_rl's default model with the usual distribution, since a policy must be able to explore."""
    return ModelConfig(distribution=DistributionConfig(class_name="GaussianDistribution"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(BaseAgentConfig):
    """A learner that improves an actor with the help of a critic, by PPO."""

    obs_groups: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"actor": ("policy",), "critic": ("policy",)}
    )
    """Observation groups that each network sees: the sets are `actor`, `critic` and, for RND, `rnd_state`.
    A set that is missing is the group of the same name, or else the group `policy` (rsl_rl's rule)."""
    algorithm: PpoConfig = field(default_factory=PpoConfig)
    """How the networks learn."""
    actor: ModelConfig = field(default_factory=_gaussian)
    """The policy. Unlike rsl_rl's model its default has a distribution: PPO draws actions from it."""
    critic: ModelConfig = field(default_factory=ModelConfig)
    """The network that estimates returns."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and parts that do not fit together."""
        BaseAgentConfig.__post_init__(self)
        _require_distribution("agent.actor", self.actor)
        shared = self.algorithm.share_cnn_encoders
        _require_encoder("agent.actor", self.actor)
        if not shared:
            _require_encoder("agent.critic", self.critic)
        for name, model in (("actor", self.actor), ("critic", self.critic)):
            asked = f"agent.{name}.class_name is '{model.class_name}', but agent.algorithm."
            if shared and model.class_name != "CNNModel" and not is_custom(model.class_name):
                message = f"{asked}share_cnn_encoders is True: set one to 'CNNModel' or the other to False."
                raise UsageError(message)
            if self.algorithm.symmetry.enabled and model.class_name == "RNNModel":
                message = f"{asked}symmetry.enabled is True, and rsl_rl mirrors no recurrence: change one of them."
                raise UsageError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationAgentConfig(BaseAgentConfig):
    """A learner whose student learns to act as a teacher that was trained before and may see more."""

    num_steps_per_env: int = 120
    """Steps of each environment in one iteration.
    rsl_rl has no default; Isaac Lab's for distillation, a multiple of gradient_length."""
    obs_groups: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"student": ("policy",), "teacher": ("policy",)}
    )
    """Observation groups that each network sees: the sets are `student` and `teacher`.
    A set that is missing is the group of the same name, or else the group `policy` (rsl_rl's rule)."""
    algorithm: DistillationConfig = field(default_factory=DistillationConfig)
    """How the student learns."""
    student: ModelConfig = field(default_factory=_gaussian)
    """The policy that learns.
    Unlike rsl_rl's model its default has a distribution: rsl_rl logs its deviation."""
    teacher: ModelConfig = field(default_factory=_gaussian)
    """The policy that is imitated: the actor as it was trained, since its weights are loaded into this."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and parts that do not fit together."""
        BaseAgentConfig.__post_init__(self)
        _require_distribution("agent.student", self.student)
        _require_encoder("agent.student", self.student)
        _require_encoder("agent.teacher", self.teacher)


def _require_distribution(path: str, model: ModelConfig) -> None:
    """Refuse a deterministic policy: rsl_rl draws actions from its distribution, and logs how wide it is."""
    if not model.distribution.enabled and not is_custom(model.class_name):
        message = (
            f"{path}.distribution.class_name is None, but rsl_rl needs a distribution of the actions:"
            f" set it to {listed(DISTRIBUTION_FIELDS)}, the first of which is the usual one."
        )
        raise UsageError(message)


def _require_encoder(path: str, model: ModelConfig) -> None:
    """Refuse a CNNModel that has nothing to look at images with."""
    if model.class_name == "CNNModel" and not (is_given(model.cnn) or model.cnn_groups):
        message = (
            f"{path}.class_name is 'CNNModel', but its encoder is not described:"
            f" set {path}.cnn.output_channels and {path}.cnn.kernel_size."
        )
        raise UsageError(message)


def _section(config: DataclassInstance) -> dict[str, Any]:
    """Return a dataclass under rsl_rl's names, without what is not given."""
    made: dict[str, Any] = {}
    for name in (item.name for item in fields(config) if item.name != "enabled"):
        value = getattr(config, name)
        if isinstance(config, CnnConfig) and name in PER_LAYER and value is not None and len(value) == 1:
            value *= len(config.output_channels or ())  # A list must have an entry for each layer.
        if is_given(value):
            made[RSL_RL_NAMES.get(name, name)] = _value(value)
        elif isinstance(config, PpoConfig) and is_dataclass(value):
            made[RSL_RL_NAMES.get(name, name)] = None
    return made


def _value(value: Any) -> Any:  # noqa: ANN401 - a field of any configuration.
    """Return a field's value in fresh dicts and lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return _section(value)
    if isinstance(value, dict):
        return {name: _value(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, (tuple, list)):
        return [_value(item) for item in cast("tuple[Any, ...]", value)]
    return value
