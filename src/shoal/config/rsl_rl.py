"""Configurations of rsl_rl's learners, PPO and the distillation of a teacher, which observes more, into a student.

`to_rsl_rl` alone makes the nested dicts that rsl_rl reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, cast

from shoal.config.agent import AgentConfig
from shoal.config.algorithm import DISTRIBUTION_FIELDS, DistributionConfig, ModelConfig, Optimizer, PpoConfig
from shoal.config.checks import Config, above, at_least, is_custom, is_given, listed
from shoal.errors import UsageError, counted

CompileMode = Literal["default", "max-autotune-no-cudagraphs"]
"""Modes of `torch.compile` that rsl_rl allows: those without CUDA graphs."""

RSL_RL_NAMES = {"distribution": "distribution_cfg", "cnn": "cnn_cfg", "rnd": "rnd_cfg", "symmetry": "symmetry_cfg"}
"""Fields that have another name in rsl_rl."""

_OWN_CLASSES = {
    "GaussianDistribution": "shoal.learn.rsl_rl.gaussian:GaussianDistribution",
    "HeteroscedasticGaussianDistribution": "shoal.learn.rsl_rl.gaussian:HeteroscedasticGaussianDistribution",
    "CNNModel": "shoal.learn.rsl_rl.cnn:CNNModel",
}
"""Shoal's classes in the place of rsl_rl's of that name."""

MOMENTS = {"adam": 2, "adamw": 2, "rmsprop": 1}
"""Numbers that an optimizer keeps for each weight."""


def gaussian() -> ModelConfig:
    """Return rsl_rl's default model with a Gaussian distribution, without which a policy cannot explore."""
    return ModelConfig(distribution=DistributionConfig(class_name="GaussianDistribution"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RslRlConfig(AgentConfig):
    """An actor and a critic, trained by PPO."""

    mini_batches_field = "algorithm.num_mini_batches"

    torch_compile_mode: CompileMode | None = None
    """Mode of `torch.compile` for the networks; None does not compile (rsl_rl's default)."""
    cuda_graphs: bool = True
    """On a GPU, capture step and update of PPO as CUDA graphs; networks with a memory or of one's own never are."""
    algorithm: PpoConfig = field(default_factory=PpoConfig)
    """PPO: learning rate, epochs, clipping, discount, entropy."""
    actor: ModelConfig = field(default_factory=gaussian)
    """The policy network. Unlike in rsl_rl it has a distribution by default: PPO samples actions from it."""
    critic: ModelConfig = field(default_factory=ModelConfig)
    """The value network."""

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if not self.actor.distribution.enabled and not is_custom(self.actor.class_name):
            raise UsageError(
                "agent.actor.distribution.class_name is None, but rsl_rl needs a distribution of the actions:"
                f" set it to {listed(DISTRIBUTION_FIELDS)}, the first of which is the usual one."
            )
        for name, model in (("actor", self.actor), ("critic", self.critic)):
            if self.algorithm.symmetry.enabled and model.is_recurrent:
                raise UsageError(
                    f"agent.{name} is recurrent, but agent.algorithm.symmetry.enabled is True, and rsl_rl"
                    " mirrors no recurrence: change one of them."
                )
        classes = {self.actor.class_name, self.critic.class_name}
        has_one = (
            len(classes) == 1 and classes.isdisjoint({"MLPModel", "RNNModel"}) and self.actor.cnn == self.critic.cnn
        )
        if self.algorithm.share_cnn_encoders and not has_one:
            raise UsageError(
                "agent.algorithm.share_cnn_encoders is True, but agent.actor and agent.critic are not both a CNNModel "
                "with the same cnn: make them so, or set it to False."
            )

    def check_samples(self, num_envs: int) -> None:
        """Refuse what rsl_rl's mini-batches are not made for: they are equal parts of samples, or of environments."""
        requested, steps = self.algorithm.num_mini_batches, self.num_steps_per_env
        if self.actor.is_recurrent or self.critic.is_recurrent:
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
        if num_envs * steps == 1:
            raise UsageError(
                "--agent.num-steps-per-env 1 was asked for with 1 environment on each worker, but rsl_rl divides "
                "advantages by their standard deviation, which takes two samples: pass more steps or environments."
            )
        AgentConfig.check_samples(self, num_envs)

    @property
    def least_mini_batch(self) -> int:
        """Least number of samples of a mini-batch: two, if advantages are divided by their deviation in each."""
        return 2 if self.algorithm.normalize_advantage_per_mini_batch else 1

    @property
    def checkpoint_floats(self) -> int:
        """Weights of both networks, and their moments."""
        moments = MOMENTS.get(self.algorithm.optimizer or "adam", 0)
        return (1 + moments) * (self.actor.least_weights + self.critic.least_weights)

    def plan_entries(self, num_envs: int) -> dict[str, Any]:
        """Return the size of a mini-batch, and the number of samples of a worker that rsl_rl leaves out."""
        rest = num_envs * self.num_steps_per_env % self.algorithm.num_mini_batches
        return AgentConfig.plan_entries(self, num_envs) | ({"samples_left_out": rest} if rest else {})


def ppo(
    *hidden_dims: int,
    init_std: float = 1.0,
    std_range: tuple[float, float] | None = None,
    steps: int = 24,
    privileged: bool = False,
    **algorithm: Any,  # noqa: ANN401  Fields of `PpoConfig`.
) -> RslRlConfig:
    """Return rsl_rl's PPO with an actor, whose actions are normally distributed, and a critic like it.

    One that is `privileged` observes the group `critic`. An iteration has so many `steps` of each environment.
    """
    critic = ModelConfig(hidden_dims=hidden_dims, obs_normalization=True)
    drawn = DistributionConfig(class_name="GaussianDistribution", init_std=init_std, std_range=std_range)
    return RslRlConfig(
        num_steps_per_env=steps,
        obs_groups={"actor": ("policy",), "critic": ("critic" if privileged else "policy",)},
        actor=replace(critic, distribution=drawn),
        critic=critic,
        algorithm=PpoConfig(**algorithm),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationAlgorithmConfig(Config):
    """Settings of rsl_rl's `Distillation`."""

    prefix = "agent.algorithm."
    classes: ClassVar = {"Distillation": ()}
    """rsl_rl's own, which takes every field."""

    class_name: str = "Distillation"
    """The algorithm: rsl_rl's Distillation, or "module:Class" of your own."""
    num_learning_epochs: Annotated[int, at_least(1)] = 1
    """Passes over the steps of an iteration, in their order."""
    gradient_length: Annotated[int, at_least(1)] = 12
    """Steps of an optimizer step, and of the backpropagation through time; divides the steps of all passes.
    rsl_rl's default of 15 does not divide 24."""
    learning_rate: Annotated[float, above(0)] = 1e-3
    """Step size of the optimizer."""
    max_grad_norm: Annotated[float | None, above(0)] = 1.0
    """Largest norm of the gradient; longer ones are clipped. rsl_rl's default clips none."""
    loss_type: Literal["mse", "huber"] = "mse"
    """Loss between the actions of student and teacher."""
    optimizer: Optimizer = "adam"
    """Optimizer of the student."""
    use_mixed_precision: bool = False
    """Compute losses in bfloat16."""
    grad_reduce_bucket_mb: Annotated[float, above(0)] = 25
    """Largest buffer of the gradient all-reduce [MiB]."""


def student(class_name: str = "RNNModel", **fields: Any) -> ModelConfig:  # noqa: ANN401  Of `ModelConfig`.
    """Return a model, by default a recurrent one, whose actions have Isaac Lab's noise of students."""
    noise = DistributionConfig(class_name="GaussianDistribution", init_std=0.1)
    return ModelConfig(class_name=class_name, obs_normalization=True, distribution=noise, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationConfig(AgentConfig):
    """A student acts, and learns what the teacher would have done (DAgger: Ross et al., arXiv:1011.0686)."""

    teacher_task: str = ""
    """Task that the teacher of `--teacher` was trained on; empty for this one."""
    obs_groups: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"student": ("policy",), "teacher": ("policy",)}
    )
    """Observation groups of each network: the sets are `student` and `teacher`."""
    torch_compile_mode: CompileMode | None = None
    """Mode of `torch.compile` for the networks; None does not compile (rsl_rl's default)."""
    algorithm: DistillationAlgorithmConfig = field(default_factory=DistillationAlgorithmConfig)
    """Learning rate, epochs, and the length of backpropagation."""
    student: ModelConfig = field(default_factory=student)
    """The policy network. The loss does not reach the deviation of a distribution, which stays as it is."""
    teacher: ModelConfig = field(default_factory=gaussian)
    """The teacher's network. Where `--teacher` is of a run, it is that run's."""

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        steps, length = self.num_steps_per_env * self.algorithm.num_learning_epochs, self.algorithm.gradient_length
        if steps % length:
            raise UsageError(
                f"agent.algorithm.gradient_length is {length}, which does not divide the {steps} steps of an "
                "iteration's epochs, and rsl_rl would not learn from the rest: set it to a divisor."
            )

    @property
    def checkpoint_floats(self) -> int:
        """Weights of both networks, and the moments of the student's."""
        moments = MOMENTS.get(self.algorithm.optimizer, 0)
        return (1 + moments) * self.student.least_weights + self.teacher.least_weights


def to_rsl_rl(value: Any) -> Any:  # noqa: ANN401 - a configuration, or a field of one.
    """Return a configuration as rsl_rl reads it, in new dicts and lists, which its runner edits.

    Names are rsl_rl's. What is None is left out, so that rsl_rl's default holds, except that `rnd_cfg` and
    `symmetry_cfg` are None while they are off.
    """
    if isinstance(value, dict):
        return {name: to_rsl_rl(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, (tuple, list)):
        return [to_rsl_rl(item) for item in cast("tuple[Any, ...]", value)]
    if not is_dataclass(value):
        return value
    made: dict[str, Any] = {}
    for name in (item.name for item in fields(value) if item.name != "enabled"):
        given = getattr(value, name)
        if is_given(given):
            own = _OWN_CLASSES.get(given, given) if name == "class_name" else given
            if isinstance(value, ModelConfig) and given == "CNNModel" and value.is_recurrent:
                own = "shoal.learn.rsl_rl.cnn:RecurrentCNNModel"
            made[RSL_RL_NAMES.get(name, name)] = to_rsl_rl(own)
        elif isinstance(value, PpoConfig) and is_dataclass(given):
            made[RSL_RL_NAMES.get(name, name)] = None
    return made
