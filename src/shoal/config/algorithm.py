"""What rsl_rl's learners are made of: networks, PPO, and its extensions, random network distillation and symmetry.

One `ModelConfig` serves all of rsl_rl's models, so that the command line can switch between them by `class_name`. A
field that only some of the classes take is None unless it is given, and is refused for the others.

The length of a rollout is in `agent`. What rsl_rl fills in by itself (devices, ranks, sizes that follow from the
observations) is not here.
"""

import itertools
import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from shoal.config.checks import WIDTH, Config, Rule, above, at_least, check, each, within
from shoal.errors import UsageError

Activation = Literal[
    "elu", "selu", "relu", "crelu", "lrelu", "tanh", "sigmoid", "softplus", "gelu", "swish", "mish", "identity"
]
"""Names of activation functions that rsl_rl knows; its "crelu" is torch's CELU."""

_RECURRENT = frozenset({"rnn_type", "rnn_hidden_dim", "rnn_num_layers"})
MODEL_FIELDS = {"MLPModel": frozenset[str](), "RNNModel": _RECURRENT, "CNNModel": _RECURRENT | {"cnn"}}
"""rsl_rl's models, each with the fields of `ModelConfig` that some others do not take."""

DISTRIBUTION_FIELDS = {
    "GaussianDistribution": frozenset({"init_std", "std_range", "std_type", "learn_std"}),
    "HeteroscedasticGaussianDistribution": frozenset({"init_std", "std_range", "std_type"}),
    "BetaDistribution": frozenset({"action_range"}),
}
"""rsl_rl's distributions, each with the fields of `DistributionConfig` that it takes."""

WIDTH_OR_INPUT = Rule(f"{WIDTH.must}, or be -1 for as many as the input has", lambda v: v == -1 or WIDTH.holds(v))
"""How wide a layer of a perceptron may be."""

_INTERVAL = Rule("be finite, the lower first", lambda v: -math.inf < v[0] < v[1] < math.inf)
_STD_RANGE = Rule("be finite, from 0 on, the lower first", lambda v: 0 <= v[0] < v[1] < math.inf)

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
class DistributionConfig(Config):
    """Distribution of a model's output; by default none, which makes the model deterministic."""

    prefix = "a distribution's "
    classes = DISTRIBUTION_FIELDS

    class_name: str | None = None
    """GaussianDistribution has one standard deviation for each action.
    HeteroscedasticGaussianDistribution has one that depends on the observation.
    BetaDistribution bounds the actions. "module:Class" is your own. None: deterministic (rsl_rl's default)."""
    init_std: Annotated[float | None, above(0)] = None
    """Standard deviation at the start, in units of the action.
    Gaussian distributions only; None takes rsl_rl's 1.0."""
    std_range: Annotated[tuple[float, float] | None, _STD_RANGE] = None
    """Least and greatest standard deviation, in units of the action; it is clamped to them.
    Gaussian distributions only; None takes rsl_rl's 1e-6 and 1e6."""
    std_type: Literal["scalar", "log"] | None = None
    """Whether the network holds the standard deviation itself (scalar) or its logarithm (log).
    The values of init_std and std_range are no logarithms in either case.
    Gaussian distributions only; None takes rsl_rl's scalar."""
    learn_std: bool | None = None
    """Whether the standard deviation is learned; if not, it stays at `init_std`.
    GaussianDistribution only; None takes rsl_rl's True."""
    action_range: Annotated[tuple[float, float] | None, _INTERVAL] = None
    """Least and greatest action. BetaDistribution only; None takes rsl_rl's -1 and 1."""

    @property
    def enabled(self) -> bool:
        """Whether there is a distribution at all."""
        return self.class_name is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CnnConfig(Config):
    """Convolutions that images pass before the perceptron, the same for each group of images."""

    prefix = "a CNN's "

    output_channels: tuple[int, ...] = ()
    """Channels of each layer; none for no convolutions."""
    kernel_size: tuple[int, ...] = ()
    """Side of each layer's kernel [pixels]."""
    stride: tuple[int, ...] | None = None
    """Step of each layer's kernel [pixels]; None takes rsl_rl's 1."""
    padding: Literal["none", "zeros", "reflect", "replicate", "circular"] = "none"
    """What is beyond the edges; without padding images become smaller (rsl_rl's default)."""
    activation: Activation = "elu"
    """Activation function of the layers (rsl_rl's default)."""
    max_pool: tuple[bool, ...] | None = None
    """Whether each layer halves the image by the largest of its neighbours; None takes rsl_rl's False."""
    spatial_softmax_temperature: Annotated[float | None, above(0)] = None
    """Temperature of a spatial softmax, which makes of each channel the mean position of what it responds to.
    None: all pixels go on to the perceptron."""

    @property
    def enabled(self) -> bool:
        """Whether there are convolutions."""
        return bool(self.output_channels)

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        for name in ("output_channels", "kernel_size", "stride", "max_pool"):
            given = getattr(self, name)
            if given is not None and (
                len(given) != len(self.output_channels) or min(given, default=1) < (name != "max_pool")
            ):
                raise UsageError(
                    f"{self.prefix}{name} is {given!r}, but must have a number of 1 or more for each of the "
                    f"{len(self.output_channels)} layers of output_channels."
                )


SMALL_CNN = CnnConfig(output_channels=(16, 32), kernel_size=(5, 3), stride=(2, 2))
"""Two layers for images of some 32 pixels a side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Config):
    """One network of a learner: its class and its layers."""

    prefix = "a model's "
    classes = MODEL_FIELDS

    class_name: str = "MLPModel"
    """MLPModel is a perceptron, RNNModel has recurrent layers before it, CNNModel convolutions of images.
    A CNNModel with any of the recurrent fields has recurrent layers between the two.
    A class of your own is written "module:Class"; it is given every field that is not None."""
    hidden_dims: Annotated[tuple[int, ...], each(WIDTH_OR_INPUT)] = (256, 256, 256)
    """Units of each hidden layer; -1 takes as many as the input has (rsl_rl's default)."""
    activation: Activation = "elu"
    """Activation function of the hidden layers (rsl_rl's default)."""
    obs_normalization: bool = False
    """Whether observations are normalised by their running mean and standard deviation (rsl_rl's default)."""
    distribution: DistributionConfig = field(default_factory=DistributionConfig)
    """What the output is drawn from; deterministic unless it names a class (rsl_rl's default)."""
    rnn_type: Literal["lstm", "gru"] | None = None
    """Kind of recurrent cell. RNNModel and CNNModel; None takes rsl_rl's lstm."""
    rnn_hidden_dim: Annotated[int | None, WIDTH] = None
    """Units of the recurrent state. RNNModel and CNNModel; None takes rsl_rl's 256."""
    rnn_num_layers: Annotated[int | None, at_least(1)] = None
    """Recurrent layers on top of each other. RNNModel and CNNModel; None takes rsl_rl's 1."""
    cnn: CnnConfig = field(default_factory=CnnConfig)
    """Convolutions of images. CNNModel only, which needs them."""

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.class_name == "CNNModel" and not self.cnn.enabled:
            raise UsageError(
                "a model's class_name is 'CNNModel', but cnn.output_channels is empty: give it channels, such as "
                "(16, 32), and cnn.kernel_size as many numbers."
            )

    @property
    def is_recurrent(self) -> bool:
        """Whether it is one of rsl_rl's models, or Shoal's, that has a memory."""
        is_given = any(getattr(self, name) is not None for name in _RECURRENT)
        return self.class_name == "RNNModel" or (self.class_name == "CNNModel" and is_given)

    @property
    def least_weights(self) -> int:
        """Number of weights and biases of a perceptron with one input and one output."""
        # A width of -1 is that of the input, at least 1.
        widths = (1, *(max(width, 1) for width in self.hidden_dims), 1)
        return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))


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
    predictor_hidden_dims: Annotated[tuple[int, ...], each(WIDTH_OR_INPUT)] = (-1,)
    """Units of each hidden layer of the predictor; -1: as many as the input (Isaac Lab's default; rsl_rl has none)."""
    target_hidden_dims: Annotated[tuple[int, ...], each(WIDTH_OR_INPUT)] = (-1,)
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
    share_cnn_encoders: bool = False
    """Let the critic have the convolutions of the actor, which learn from both losses (rsl_rl's default: no)."""
    rnd: RndConfig = field(default_factory=RndConfig)
    """Intrinsic reward by random network distillation; off unless enabled."""
    symmetry: SymmetryConfig = field(default_factory=SymmetryConfig)
    """Data augmentation and loss by mirrored copies; off unless enabled."""
