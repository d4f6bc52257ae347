"""Settings of the learning algorithm and its extensions: PPO, random network distillation (RND) and symmetry.

Networks are in `models`, the length of a rollout in `agent`. What rsl_rl fills in by itself (devices, ranks,
sizes that follow from the observations) is not here.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from shoal.config.checks import Config, Rule, above, at_least, check, each, within
from shoal.config.models import WIDTH, Activation
from shoal.errors import UsageError

Optimizer = Literal["adam", "adamw", "sgd", "rmsprop"]
"""Names of optimizers that rsl_rl knows."""

Schedule = Literal["adaptive", "fixed"]
"""How PPO's learning rate moves; rsl_rl takes any other word for "fixed"."""

ScheduleMode = Literal["constant", "step", "linear"]
"""Names of schedules of the RND weight that rsl_rl knows."""

SCHEDULE_FIELDS: dict[str, tuple[str, ...]] = {
    "constant": (),
    "step": ("final_step", "final_value"),
    "linear": ("initial_step", "final_step", "final_value"),
}
"""Modes of `RndWeightScheduleConfig`, each with the fields that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RndWeightScheduleConfig(Config):
    """Schedule of the RND weight, over the environment steps of one worker in the whole run."""

    prefix = "agent.algorithm.rnd.weight_schedule."

    mode: ScheduleMode | None = None
    """constant, a step to final_value at final_step, or linear from initial_step on; None: no schedule (rsl_rl's)."""
    initial_step: Annotated[int | None, at_least(0)] = None
    """Begin of the change [environment steps]; linear needs it."""
    final_step: Annotated[int | None, at_least(0)] = None
    """End of the change [environment steps]; step and linear need it."""
    final_value: Annotated[float | None, at_least(0)] = None
    """Weight afterwards [reward per environment step]; step and linear need it.
    rsl_rl multiplies `weight` by the length of a step in seconds, but not this value."""

    @property
    def enabled(self) -> bool:
        """Whether there is a schedule."""
        return self.mode is not None

    def __post_init__(self) -> None:
        """Refuse values out of range, and fields that do not go with the mode."""
        Config.__post_init__(self)
        needed = SCHEDULE_FIELDS[self.mode] if self.mode else ()
        for name in SCHEDULE_FIELDS["linear"]:
            value = getattr(self, name)
            if (value is not None) != (name in needed):
                verdict = "needs it: set it" if name in needed else "does not take it: set it to None"
                message = f"{self.prefix}{name} is {value!r}, but mode {self.mode!r} {verdict}, or change the mode."
                raise UsageError(message)
        if self.initial_step is not None:
            first = self.initial_step
            later = Rule(f"come after initial_step, {first}", lambda step: step > first)
            check(self, self.prefix, {"final_step": later})


@dataclass(frozen=True, slots=True, kw_only=True)
class RndConfig(Config):
    """Random network distillation: an intrinsic reward for the observation set `rnd_state`."""

    prefix = "agent.algorithm.rnd."

    enabled: bool = False
    """Use random network distillation (rsl_rl's default: no)."""
    num_outputs: Annotated[int, at_least(1)] = 1
    """Size of the embedding that is predicted. rsl_rl has no default; this is Isaac Lab's."""
    predictor_hidden_dims: Annotated[tuple[int, ...], each(WIDTH)] = (-1,)
    """Units of each hidden layer of the predictor; -1: as many as the input (Isaac Lab's default; rsl_rl has none)."""
    target_hidden_dims: Annotated[tuple[int, ...], each(WIDTH)] = (-1,)
    """Units of each hidden layer of the fixed target network, as above."""
    activation: Activation = "elu"
    """Activation function of both networks (rsl_rl's default)."""
    state_normalization: bool = False
    """Normalise its observations by running mean and standard deviation (rsl_rl's default: no)."""
    reward_normalization: bool = False
    """Divide its reward by the running deviation of its discounted sum (rsl_rl's default: no).
    With several ranks this costs three collectives per environment step."""
    weight: Annotated[float, at_least(0)] = 0.0
    """Factor on its reward [reward per second]; rsl_rl multiplies it by the length of a step."""
    weight_schedule: RndWeightScheduleConfig = field(default_factory=RndWeightScheduleConfig)
    """Schedule of the factor; none unless it names a mode (rsl_rl's default)."""
    learning_rate: Annotated[float, above(0)] = 1e-3
    """Step size of the predictor's optimizer, which is Adam (rsl_rl's default)."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and a weight without random network distillation."""
        Config.__post_init__(self)
        if self.weight and not self.enabled:
            raise UsageError(
                f"agent.algorithm.rnd.weight is {self.weight!r}, but agent.algorithm.rnd.enabled is False: set it to"
                " True, or the weight to 0."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetryConfig(Config):
    """Mirrored copies of observations and actions, for symmetric robots and networks without recurrence."""

    prefix = "agent.algorithm.symmetry."

    enabled: bool = False
    """Use symmetry (rsl_rl's default: no). Without one of the two uses below its loss is only logged."""
    data_augmentation_func: str | None = None
    """Function that mirrors, as "module:function"; needed if `enabled`.
    It is called with env, obs and actions, and returns the latter two with mirrored copies appended."""
    use_data_augmentation: bool = False
    """Extend mini-batches by mirrored copies (rsl_rl's default: no)."""
    use_mirror_loss: bool = False
    """Add a loss for actions that are not mirrored (rsl_rl's default: no)."""
    mirror_loss_coeff: Annotated[float, at_least(0)] = 0.0
    """Coefficient of that loss (rsl_rl's default)."""

    def __post_init__(self) -> None:
        """Refuse values out of range, symmetry without a function, and its uses without symmetry."""
        Config.__post_init__(self)
        for name in ("use_data_augmentation", "use_mirror_loss"):
            if getattr(self, name) and not self.enabled:
                raise UsageError(
                    f"agent.algorithm.symmetry.{name} is True, but agent.algorithm.symmetry.enabled is False: set both"
                    " to True, or both to False."
                )
        if self.enabled and not self.data_augmentation_func:
            raise UsageError(
                "agent.algorithm.symmetry.enabled is True, but data_augmentation_func is not given:"
                " set it to the function that mirrors observations and actions, as 'module:function'."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoConfig(Config):
    """Proximal policy optimisation. All defaults are rsl_rl's."""

    prefix = "agent.algorithm."
    classes: ClassVar = {"PPO": ()}
    """rsl_rl's own, which takes every field."""

    class_name: str = "PPO"
    """PPO, or a class of your own as "module:Class"."""
    num_learning_epochs: Annotated[int, at_least(1)] = 5
    """Passes over the experience of an iteration."""
    num_mini_batches: Annotated[int, at_least(1)] = 4
    """Mini-batches, and so optimizer steps, of each epoch."""
    clip_param: Annotated[float, above(0)] = 0.2
    """Clipping range of the probability ratio, and of the critic's change in units of the return."""
    gamma: Annotated[float, within(0, 1)] = 0.99
    """Discount of the future for each environment step."""
    lam: Annotated[float, within(0, 1)] = 0.95
    """Lambda of the generalised advantage estimate: 0 trusts the critic, 1 the returns."""
    value_loss_coef: Annotated[float, at_least(0)] = 1.0
    """Factor on the critic's loss."""
    entropy_coef: Annotated[float, at_least(0)] = 0.01
    """Factor on the entropy of the actions, which is rewarded."""
    learning_rate: Annotated[float, above(0)] = 1e-3
    """Step size of the optimizer; its initial value if `schedule` is adaptive."""
    max_grad_norm: Annotated[float, above(0)] = 1.0
    """Largest norm of the gradients of actor and critic; longer ones are clipped."""
    optimizer: Optimizer = "adam"
    """Optimizer of both networks."""
    use_clipped_value_loss: bool = True
    """Clip the critic's change by `clip_param`, too."""
    schedule: Schedule = "adaptive"
    """adaptive changes the learning rate after each mini-batch towards desired_kl, within 1e-5 and 1e-2."""
    desired_kl: Annotated[float, above(0)] = 0.01
    """Target KL divergence between the policies before and after an update [nats]."""
    normalize_advantage_per_mini_batch: bool = False
    """Normalise advantages in each mini-batch instead of over the whole iteration."""
    use_mixed_precision: bool = False
    """Compute losses in bfloat16."""
    grad_reduce_bucket_mb: Annotated[float, above(0)] = 25
    """Largest buffer of the gradient all-reduce [MiB]."""
    rnd: RndConfig = field(default_factory=RndConfig)
    """Intrinsic reward by random network distillation; off unless enabled."""
    symmetry: SymmetryConfig = field(default_factory=SymmetryConfig)
    """Data augmentation and loss by mirrored copies; off unless enabled."""
