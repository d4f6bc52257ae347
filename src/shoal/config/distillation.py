"""Configuration of distillation: a student that learns to act as a trained teacher, which observes more."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from shoal.config.agent import AgentConfig
from shoal.config.algorithm import Optimizer
from shoal.config.checks import Config, above, at_least
from shoal.config.models import DistributionConfig, ModelConfig
from shoal.config.rsl_rl import MOMENTS, CompileMode, gaussian
from shoal.errors import UsageError


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


def recurrent() -> ModelConfig:
    """Return a recurrent model whose actions have Isaac Lab's noise of students."""
    noise = DistributionConfig(class_name="GaussianDistribution", init_std=0.1)
    return ModelConfig(class_name="RNNModel", obs_normalization=True, distribution=noise)


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
    student: ModelConfig = field(default_factory=recurrent)
    """The policy network. The loss does not reach the deviation of a distribution, which stays as it is."""
    teacher: ModelConfig = field(default_factory=gaussian)
    """The teacher's network. Where `--teacher` is of a run, it is that run's."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and steps that no gradient would come from."""
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
