"""rsl_rl's model of images, whose convolutions may end in a spatial softmax, and one with a memory behind them.

Names of weights are mjlab's.
"""

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rsl_rl import models
from rsl_rl.models.rnn_model import _OnnxRNNModel
from rsl_rl.modules import CNN, RNN
from tensordict import TensorDict
from torch import nn


class SpatialSoftmax(nn.Module):
    """The mean position of what each channel responds to, weighted by a softmax (Levine et al., arXiv:1504.00702)."""

    pos_x: torch.Tensor
    pos_y: torch.Tensor

    def __init__(self, rows: int, columns: int, temperature: float) -> None:
        super().__init__()
        down, right = torch.linspace(-1.0, 1.0, rows), torch.linspace(-1.0, 1.0, columns)
        self.register_buffer("pos_x", down.repeat_interleave(columns).view(1, 1, -1))
        self.register_buffer("pos_y", right.repeat(rows).view(1, 1, -1))
        self.temperature = temperature

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the position downwards and to the right, from -1 to 1, of each channel. Shape (num, 2 * channels).

        `features` has the shape (num, channels, rows, columns).
        """
        weights = torch.softmax(features.flatten(2) / self.temperature, dim=2)
        return torch.stack([(weights * each).sum(dim=2) for each in (self.pos_x, self.pos_y)], dim=2).flatten(1)


def encoder_of(shape: Sequence[int], settings: Mapping[str, Any]) -> nn.Module:
    """Return the convolutions of images of such a shape, (channels, height, width), by a `CnnConfig` as a dict."""
    rest = dict(settings)
    temperature = rest.pop("spatial_softmax_temperature", None)
    channels, height, width = shape
    cnn: Any = CNN((height, width), channels, flatten=temperature is None, **rest)
    if temperature is None:
        return cnn
    rows, columns = cnn.output_dim
    encoder: Any = nn.Sequential(OrderedDict(cnn=cnn, spatial_softmax=SpatialSoftmax(rows, columns, temperature)))
    encoder.output_channels, encoder.output_dim = None, 2 * cnn.output_channels  # As rsl_rl's CNN has them.
    return encoder


class CNNModel(models.CNNModel):
    """rsl_rl's, with the encoders of `encoder_of`, or those of another model."""

    def __init__(  # noqa: PLR0913  rsl_rl's signature.
        self,
        obs: TensorDict,
        obs_groups: dict[str, list[str]],
        obs_set: str,
        output_dim: int,
        *,
        cnn_cfg: dict[str, Any],
        cnns: Any = None,  # noqa: ANN401  A module by the name of each group.
        **settings: Any,  # noqa: ANN401
    ) -> None:
        if cnns is None and "spatial_softmax_temperature" in cnn_cfg:
            images = [group for group in obs_groups[obs_set] if obs[group].dim() > 2]  # noqa: PLR2004
            cnns = {group: encoder_of(obs[group].shape[1:], cnn_cfg) for group in images}
        super().__init__(obs, obs_groups, obs_set, output_dim, cnn_cfg=cnn_cfg, cnns=cnns, **settings)


class RecurrentCNNModel(models.RNNModel, CNNModel):
    """Convolutions, then recurrent layers of their output and of the other groups, then the perceptron."""

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401  Of rsl_rl's signature.
        rnn_type: str = "lstm",
        rnn_hidden_dim: int = 256,
        rnn_num_layers: int = 1,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        self.latent_dim = rnn_hidden_dim
        CNNModel.__init__(self, *arguments, **settings)
        self.rnn = RNN(self.obs_dim + self.cnn_latent_dim, rnn_hidden_dim, rnn_num_layers, rnn_type)

    def get_latent(self, obs: TensorDict, masks: Any = None, hidden_state: Any = None) -> torch.Tensor:  # noqa: ANN401
        """Return the output of the recurrent layers, of one step or of whole trajectories, which have `masks`."""
        rows = obs if masks is None else obs.flatten(0, 1)  # Convolutions take no axis of time.
        latent = CNNModel.get_latent(self, rows).unflatten(0, obs.batch_size)
        return self.rnn(latent, masks, hidden_state).squeeze(0)

    def as_onnx(self, verbose: bool = False) -> nn.Module:  # noqa: FBT001, FBT002  rsl_rl's signature.
        """Return an exportable copy, which takes numbers, images and the memory."""
        del verbose
        return _Exportable(self)


class _Exportable(_OnnxRNNModel):
    """rsl_rl's exportable recurrent model, whose input are numbers and images."""

    def __init__(self, model: RecurrentCNNModel) -> None:
        super().__init__(model, verbose=False)
        self.normalizer, self.obs_normalizer = self.obs_normalizer, nn.Identity()
        self.cnns = copy.deepcopy(nn.ModuleList(model.cnns[group] for group in model.obs_groups_2d))

    def forward(self, obs: torch.Tensor, *rest: torch.Tensor) -> Any:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return actions, shape (batch, num_actions), and the memory. `rest` is the images, then the memory before."""
        images, memory = rest[: len(self.cnns)], rest[len(self.cnns) :]
        seen = [cnn(image) for cnn, image in zip(self.cnns, images, strict=True)]
        return super().forward(torch.cat([self.normalizer(obs), *seen], dim=1), *memory)
