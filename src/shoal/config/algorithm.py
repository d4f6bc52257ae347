"""Settings of the learning algorithm and its extensions: PPO, random network distillation (RND) and symmetry.

Networks are in `models`, the length of a rollout in `agent`. What rsl_rl fills in by itself (devices, ranks,
sizes that follow from the observations) is not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from shoal.config.checks import Config, Rule, above, at_least, check, check_class, each, within
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
    """How the weight of the RND reward changes with time. The default is none: the weight stays.

    Steps are environment steps of one worker, counted over the whole run: a run that is resumed goes on counting.
    """

    prefix = "agent.algorithm.rnd.weight_schedule."

    mode: ScheduleMode | None = None
    """constant stays, step jumps to final_value at final_step, linear moves there from initial_step on.
    None means no schedule, rsl_rl's default."""
    initial_step: Annotated[int | None, at_least(0)] = None
    """Where the change begins [environment steps]. For linear only, which needs it."""
    final_step: Annotated[int | None, at_least(0)] = None
    """Where the change ends [environment steps]. For step and linear, which need it."""
    final_value: Annotated[float | None, at_least(0)] = None
    """The weight afterwards [reward for each environment step].
    rsl_rl multiplies `weight` by the length of a step in seconds, but not this value.
    For step and linear, which need it."""

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
    """Random network distillation: a reward for seeing what a predictor network has not learned yet.

    For PPO only. What it looks at is the observation set `rnd_state` of the agent's `obs_groups`.
    """

    prefix = "agent.algorithm.rnd."

    enabled: bool = False
    """Whether it is used (rsl_rl's default is not to)."""
    num_outputs: Annotated[int, at_least(1)] = 1
    """Size of the embedding that is predicted. rsl_rl has no default; this is Isaac Lab's."""
    predictor_hidden_dims: Annotated[tuple[int, ...], each(WIDTH)] = (-1,)
    """Units of each hidden layer of the predictor; -1 takes as many as the input has.
    rsl_rl has no default; this is Isaac Lab's."""
    target_hidden_dims: Annotated[tuple[int, ...], each(WIDTH)] = (-1,)
    """Units of each hidden layer of the fixed target network, as above."""
    activation: Activation = "elu"
    """Activation function of both networks (rsl_rl's default)."""
    state_normalization: bool = False
    """Whether what it looks at is normalised by running mean and standard deviation (rsl_rl's default)."""
    reward_normalization: bool = False
    """Whether its reward is divided by the running deviation of its discounted sum (rsl_rl's default).
    On several ranks this costs three collectives in every environment step."""
    weight: Annotated[float, at_least(0)] = 0.0
    """Factor on its reward [reward for each second]; rsl_rl multiplies it by the length of a step.
    The default, rsl_rl's, adds nothing."""
    weight_schedule: RndWeightScheduleConfig = field(default_factory=RndWeightScheduleConfig)
    """How the factor changes with time; not at all unless it names a mode (rsl_rl's default)."""
    learning_rate: Annotated[float, above(0)] = 1e-3
    """Step size of the predictor's optimizer, which is Adam (rsl_rl's default)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetryConfig(Config):
    """Mirrored copies of what was seen and done, for a robot that has a symmetry.

    For PPO without recurrent networks only.
    """

    prefix = "agent.algorithm.symmetry."

    enabled: bool = False
    """Whether it is used (rsl_rl's default is not to).
    If neither of the two uses below is on, its loss is only logged."""
    data_augmentation_func: str | None = None
    """Function that mirrors, as "module:function".
    It is called with env, obs and actions, and returns the latter two with mirrored copies appended.
    Needed if `enabled`."""
    use_data_augmentation: bool = False
    """Whether mini-batches are extended by mirrored copies (rsl_rl's default)."""
    use_mirror_loss: bool = False
    """Whether the policy is punished for not acting as mirrored (rsl_rl's default)."""
    mirror_loss_coeff: Annotated[float, at_least(0)] = 0.0
    """Factor on that punishment in the loss (rsl_rl's default)."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and symmetry without a function."""
        Config.__post_init__(self)
        if self.enabled and not self.data_augmentation_func:
            message = (
                "agent.algorithm.symmetry.enabled is True, but data_augmentation_func is not given:"
                " set it to the function that mirrors observations and actions, as 'module:function'."
            )
            raise UsageError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoConfig(Config):
    """Proximal policy optimisation. All defaults are rsl_rl's."""

    prefix = "agent.algorithm."

    class_name: str = "PPO"
    """PPO, or a class of your own as "module:Class"."""
    num_learning_epochs: Annotated[int, at_least(1)] = 5
    """How often the experience of an iteration is gone through."""
    num_mini_batches: Annotated[int, at_least(1)] = 4
    """Mini-batches, and so optimizer steps, of each epoch."""
    clip_param: Annotated[float, above(0)] = 0.2
    """How far the probability ratio may leave 1 before it is cut off.
    It also bounds how far the critic may move, in units of the return."""
    gamma: Annotated[float, within(0, 1)] = 0.99
    """Discount of the future for each environment step."""
    lam: Annotated[float, within(0, 1)] = 0.95
    """Lambda of the generalised advantage estimate: 0 trusts the critic, 1 the returns."""
    value_loss_coef: Annotated[float, at_least(0)] = 1.0
    """Factor on the critic's loss."""
    entropy_coef: Annotated[float, at_least(0)] = 0.01
    """Factor on the entropy of the actions, which is rewarded."""
    learning_rate: Annotated[float, above(0)] = 1e-3
    """Step size of the optimizer; where it begins, if `schedule` is adaptive."""
    max_grad_norm: Annotated[float, above(0)] = 1.0
    """Greatest norm of the gradient, for the actor and for the critic; longer ones are shortened to it."""
    optimizer: Optimizer = "adam"
    """Optimizer of both networks."""
    use_clipped_value_loss: bool = True
    """Whether the critic's change is bounded by `clip_param` too."""
    schedule: Schedule = "adaptive"
    """adaptive moves the learning rate after each mini-batch, so that the policy changes by about desired_kl.
    It stays within 1e-5 and 1e-2. fixed leaves it where it is."""
    desired_kl: Annotated[float, above(0)] = 0.01
    """Divergence of the policy after an update from the one before that the schedule aims at [nats]."""
    normalize_advantage_per_mini_batch: bool = False
    """Whether advantages are normalised in each mini-batch, and not over all of an iteration's."""
    use_mixed_precision: bool = False
    """Whether losses are computed in bfloat16."""
    grad_reduce_bucket_mb: Annotated[float, above(0)] = 25
    """Largest buffer in which gradients are averaged over ranks [MiB]."""
    rnd: RndConfig = field(default_factory=RndConfig)
    """Reward for what is new; off unless enabled."""
    symmetry: SymmetryConfig = field(default_factory=SymmetryConfig)
    """Mirrored copies; off unless enabled."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        Config.__post_init__(self)
        check_class(self, self.class_name, self.prefix, {"PPO": ()})
