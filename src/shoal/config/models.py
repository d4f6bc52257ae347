"""The networks of a learner: layers, recurrence, encoders of images, and the distribution of actions.

One flat `ModelConfig` serves rsl_rl's three models, so that a command line can switch between them by
`class_name`. A field that only some of the classes take is None unless it is given, and is refused for the
others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from shoal.config.checks import Rule, above, at_least, check, check_class, each, is_given, one_of
from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

Activation = Literal[
    "elu",
    "selu",
    "relu",
    "crelu",
    "lrelu",
    "tanh",
    "sigmoid",
    "softplus",
    "gelu",
    "swish",
    "mish",
    "identity",
]
"""Names of activation functions that rsl_rl knows; its "crelu" is torch's CELU."""

RnnType = Literal["lstm", "gru"]
"""Recurrent cells that rsl_rl knows; it would take any other word for "lstm"."""

StdType = Literal["scalar", "log"]
"""How a standard deviation is parameterised."""

Padding = Literal["none", "zeros", "reflect", "replicate", "circular"]
"""How a convolution fills the border."""

Norm = Literal["none", "batch", "layer"]
"""Normalisation after a convolution."""

GlobalPool = Literal["none", "max", "avg"]
"""Pooling over the whole image after the last convolution."""

MODEL_FIELDS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "MLPModel": frozenset(),
        "RNNModel": frozenset({"rnn_type", "rnn_hidden_dim", "rnn_num_layers"}),
        "CNNModel": frozenset({"cnn", "cnn_groups"}),
    }
)
"""rsl_rl's models, each with the fields of `ModelConfig` that the others do not take."""

DISTRIBUTION_FIELDS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "GaussianDistribution": frozenset({"init_std", "std_range", "std_type", "learn_std"}),
        "HeteroscedasticGaussianDistribution": frozenset({"init_std", "std_range", "std_type"}),
        "BetaDistribution": frozenset({"action_range"}),
    }
)
"""rsl_rl's distributions, each with the fields of `DistributionConfig` that it takes."""

PER_LAYER: Final = ("kernel_size", "stride", "dilation", "norm", "max_pool")
"""Fields of `CnnConfig` with an entry for each convolution, or a single entry for all of them."""

WIDTH: Final = Rule("be at least 1, or -1 for as many as the input has", lambda v: v == -1 or v >= 1)
"""How wide a layer of a perceptron may be."""

_INTERVAL: Final = Rule("be finite, the lower first", lambda v: -math.inf < v[0] < v[1] < math.inf)
_STD_RANGE: Final = Rule("be finite, from 0 on, the lower first", lambda v: 0 <= v[0] < v[1] < math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionConfig:
    """The distribution that a model's output is drawn from; by default none, which is deterministic."""

    class_name: str | None = None
    """GaussianDistribution has one standard deviation for each action.
    HeteroscedasticGaussianDistribution has one that depends on the observation.
    BetaDistribution keeps actions within bounds. A class of your own is written "module:Class".
    None makes the model deterministic, which is rsl_rl's default."""
    init_std: float | None = None
    """Standard deviation at the start, in units of the action.
    Gaussian distributions only; None takes rsl_rl's 1.0."""
    std_range: tuple[float, float] | None = None
    """Least and greatest standard deviation, in units of the action; it is clamped to them.
    Gaussian distributions only; None takes rsl_rl's 1e-6 and 1e6."""
    std_type: StdType | None = None
    """Whether the network holds the standard deviation itself (scalar) or its logarithm (log).
    The values of init_std and std_range are no logarithms in either case.
    Gaussian distributions only; None takes rsl_rl's scalar."""
    learn_std: bool | None = None
    """Whether the standard deviation is learned; if not, it stays at `init_std`.
    GaussianDistribution only; None takes rsl_rl's True."""
    action_range: tuple[float, float] | None = None
    """Least and greatest action. BetaDistribution only; None takes rsl_rl's -1 and 1."""

    @property
    def enabled(self) -> bool:
        """Whether there is a distribution at all."""
        return self.class_name is not None

    def __post_init__(self) -> None:
        """Refuse values out of range, and fields that the distribution does not take."""
        prefix = "a distribution's "
        rules = {
            "init_std": above(0),
            "std_range": _STD_RANGE,
            "action_range": _INTERVAL,
            "std_type": one_of(StdType),
        }
        check(self, prefix, rules)
        check_class(self, self.class_name, prefix, DISTRIBUTION_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CnnConfig:
    """The convolutions that encode an observation group of images.

    The group has the shape ``(num_envs, channels, height, width)``. `output_channels` and `kernel_size`
    belong together; without them there is no encoder. In the other fields None takes rsl_rl's default.
    Settings of a layer hold one entry for each layer, or a single entry for all of them.
    """

    output_channels: tuple[int, ...] | None = None
    """Channels that each convolution puts out, and so also how many convolutions there are.
    None means no encoder."""
    kernel_size: tuple[int, ...] | None = None
    """Height and width of each kernel, in pixels. rsl_rl has no default for it."""
    stride: tuple[int, ...] | None = None
    """Pixels from one position of the kernel to the next. None takes rsl_rl's 1."""
    dilation: tuple[int, ...] | None = None
    """Pixels from one element of the kernel to the next. None takes rsl_rl's 1."""
    padding: Padding | None = None
    """What the border is filled with, in all layers; "none" lets the image shrink.
    None takes rsl_rl's "none"."""
    norm: tuple[Norm, ...] | None = None
    """Normalisation after each convolution. The running statistics of "batch" are not averaged over ranks.
    None takes rsl_rl's "none"."""
    activation: Activation | None = None
    """Activation function after each convolution.
    None takes rsl_rl's elu, whatever the model's own activation is."""
    max_pool: tuple[bool, ...] | None = None
    """Whether a 3 by 3 max pooling with stride 2 follows each convolution. None takes rsl_rl's False."""
    global_pool: GlobalPool | None = None
    """Pooling that leaves one number for each channel at the end. None takes rsl_rl's "none"."""

    @property
    def enabled(self) -> bool:
        """Whether an encoder is described."""
        return self.output_channels is not None

    def __post_init__(self) -> None:
        """Refuse values out of range, and settings that do not fit the number of layers."""
        prefix = "a CNN's "
        rules = dict.fromkeys(("output_channels", "kernel_size", "stride", "dilation"), each(at_least(1)))
        rules |= {"norm": each(one_of(Norm)), "max_pool": each(one_of(Literal[True, False]))}
        choices = {"padding": Padding, "activation": Activation, "global_pool": GlobalPool}
        rules |= {name: one_of(choice) for name, choice in choices.items()}
        check(self, prefix, rules)
        if self.output_channels is None:
            given = [name for name in rules if getattr(self, name) is not None]
            if given:
                message = f"{prefix}{given[0]} is given, but output_channels is None: set it, an entry a layer."
                raise UsageError(message)
            return
        if self.kernel_size is None:
            message = f"{prefix}output_channels is {self.output_channels}, but kernel_size is None: set both."
            raise UsageError(message)
        layers = len(self.output_channels)
        fits = Rule(f"have 1 entry, or {layers} as output_channels", lambda v: len(v) in (1, layers))
        check(self, prefix, dict.fromkeys(PER_LAYER, fits))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A network of a learner: its class, the layers of its head, and what only some of the classes have."""

    class_name: str = "MLPModel"
    """MLPModel is a perceptron, RNNModel has recurrent layers before it, CNNModel encoders of images.
    A class of your own is written "module:Class"; it is given every field that is not None."""
    hidden_dims: tuple[int, ...] = (256, 256, 256)
    """Units of each hidden layer; -1 takes as many as the input has (rsl_rl's default)."""
    activation: Activation = "elu"
    """Activation function of the hidden layers (rsl_rl's default)."""
    obs_normalization: bool = False
    """Whether observations are normalised by their running mean and standard deviation (rsl_rl's default)."""
    distribution: DistributionConfig = field(default_factory=DistributionConfig)
    """What the output is drawn from; deterministic unless it names a class (rsl_rl's default)."""
    rnn_type: RnnType | None = None
    """Kind of recurrent cell. RNNModel only; None takes rsl_rl's lstm."""
    rnn_hidden_dim: int | None = None
    """Units of the recurrent state. RNNModel only; None takes rsl_rl's 256."""
    rnn_num_layers: int | None = None
    """Recurrent layers on top of each other. RNNModel only; None takes rsl_rl's 1."""
    cnn: CnnConfig = field(default_factory=CnnConfig)
    """Encoder of images, one of the same shape for each group of them.
    CNNModel only, which has no default for it."""
    cnn_groups: dict[str, CnnConfig] = field(default_factory=dict[str, CnnConfig])
    """Instead of `cnn`: an encoder for each observation group of images, by the group's name.
    CNNModel only; empty means that `cnn` serves them all."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and fields that the class does not take."""
        prefix = "a model's "
        rules = {"hidden_dims": each(WIDTH), "activation": one_of(Activation), "rnn_type": one_of(RnnType)}
        check(self, prefix, rules | dict.fromkeys(("rnn_hidden_dim", "rnn_num_layers"), at_least(1)))
        check_class(self, self.class_name, prefix, MODEL_FIELDS)
        empty = [group for group, encoder in self.cnn_groups.items() if not encoder.enabled]
        if empty:
            message = f"{prefix}cnn_groups has {empty[0]!r} without output_channels: set it, an entry a layer."
            raise UsageError(message)
        if self.cnn_groups and is_given(self.cnn):
            message = f"{prefix}cnn and cnn_groups are both given, but a group has one encoder: leave one out."
            raise UsageError(message)
