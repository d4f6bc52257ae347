"""Networks of a learner: hidden layers, recurrence, and the distribution of actions.

One flat `ModelConfig` serves rsl_rl's MLP and recurrent models, so that the command line can switch between them by
`class_name`. A field that only some of the classes take is None unless it is given, and is refused for the others.
"""

import itertools
import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from shoal.config.checks import Config, Rule, above, at_least, each

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

MODEL_FIELDS = {"MLPModel": frozenset[str](), "RNNModel": frozenset({"rnn_type", "rnn_hidden_dim", "rnn_num_layers"})}
"""rsl_rl's models, each with the fields of `ModelConfig` that the others do not take."""

DISTRIBUTION_FIELDS = {
    "GaussianDistribution": frozenset({"init_std", "std_range", "std_type", "learn_std"}),
    "HeteroscedasticGaussianDistribution": frozenset({"init_std", "std_range", "std_type"}),
    "BetaDistribution": frozenset({"action_range"}),
}
"""rsl_rl's distributions, each with the fields of `DistributionConfig` that it takes."""

WIDTH = Rule("be at least 1, or -1 for as many as the input has", lambda v: v == -1 or v >= 1)
"""How wide a layer of a perceptron may be."""

_INTERVAL = Rule("be finite, the lower first", lambda v: -math.inf < v[0] < v[1] < math.inf)
_STD_RANGE = Rule("be finite, from 0 on, the lower first", lambda v: 0 <= v[0] < v[1] < math.inf)


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
    std_type: StdType | None = None
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
class ModelConfig(Config):
    """One network of a learner: its class and its layers."""

    prefix = "a model's "
    classes = MODEL_FIELDS

    class_name: str = "MLPModel"
    """MLPModel is a perceptron, RNNModel has recurrent layers before it.
    A class of your own is written "module:Class"; it is given every field that is not None."""
    hidden_dims: Annotated[tuple[int, ...], each(WIDTH)] = (256, 256, 256)
    """Units of each hidden layer; -1 takes as many as the input has (rsl_rl's default)."""
    activation: Activation = "elu"
    """Activation function of the hidden layers (rsl_rl's default)."""
    obs_normalization: bool = False
    """Whether observations are normalised by their running mean and standard deviation (rsl_rl's default)."""
    distribution: DistributionConfig = field(default_factory=DistributionConfig)
    """What the output is drawn from; deterministic unless it names a class (rsl_rl's default)."""
    rnn_type: RnnType | None = None
    """Kind of recurrent cell. RNNModel only; None takes rsl_rl's lstm."""
    rnn_hidden_dim: Annotated[int | None, at_least(1)] = None
    """Units of the recurrent state. RNNModel only; None takes rsl_rl's 256."""
    rnn_num_layers: Annotated[int | None, at_least(1)] = None
    """Recurrent layers on top of each other. RNNModel only; None takes rsl_rl's 1."""

    @property
    def least_weights(self) -> int:
        """Number of weights and biases of a perceptron with one input and one output."""
        # A width of -1 is that of the input, at least 1.
        widths = (1, *(max(width, 1) for width in self.hidden_dims), 1)
        return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))
