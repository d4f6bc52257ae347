"""Networks of actuators: weights from a file, and what a kernel computes with them for one joint of one environment.

A network is a chain of LSTM and linear layers. Its inputs are the last position errors and as many last speeds of a
joint, and its one output is a torque.
"""

from pathlib import Path
from typing import Any

import numpy as np
import warp as wp

from shoal.reading import read_tensors, refusing

WIDEST = 128
"""Most inputs and outputs of a layer, which a thread keeps."""
_Values = wp.types.vector(length=WIDEST, dtype=wp.float32)
_REMEDY = (
    "pass the weights of an MLP or LSTM as torch.save(module.state_dict(), FILE) writes them, with module = "
    "torch.jit.load(FILE) of a TorchScript file"
)


@wp.struct
class NetworkData:
    """A network, and what it remembers of each joint."""

    weights: wp.array[wp.vec4]
    """Of each four outputs of a linear layer, or of the four gates of each output of an LSTM's: those of the inputs, of
    the layer's own last outputs if it is an LSTM's, and the bias."""
    layers: wp.array[wp.vec4i]
    """Of each layer the inputs, the outputs, how many of these it remembers, and the place of its first weight."""
    columns: wp.int32
    """Columns of a joint in `memory`: the inputs, and the outputs and cells of each LSTM layer."""
    memory: wp.array2d[wp.float32]
    """Cleared when an episode begins. Shape (num_envs, joints * columns)."""


def read_network(path: str, file: str, device: wp.Device) -> Any:
    """Return the network of a file that a parameter at `path` names, still without its memory.

    Raises:
        UsageError: The file has no such network.
    """
    with refusing(Path(file).expanduser(), _REMEDY, f"{path} "):
        layers, weights = _layers_of(read_tensors(Path(file).expanduser()))
    network = NetworkData()
    network.weights = wp.array(weights, dtype=wp.vec4, device=device)
    network.layers = wp.array(layers, dtype=wp.vec4i, device=device)
    network.columns = layers[0][0] + 2 * sum(kept for _, _, kept, _ in layers)
    return network


def _layers_of(tensors: Any) -> tuple[list[tuple[int, int, int, int]], np.ndarray]:
    """Return `layers` and `weights` of a `state_dict` of torch's, whose layers are in their order."""
    left = {name: each.float().numpy() for name, each in tensors.items()}
    layers, weights = list[tuple[int, int, int, int]](), np.zeros((0, 4))
    while left:
        name = next(iter(left))
        names = (name, name.replace("_ih_", "_hh_")) if "weight_ih_l" in name else (name,)
        parts = [left.pop(each) for each in names]
        if not name.split(".")[-1].startswith("weight") or parts[0].ndim != 2:  # noqa: PLR2004
            raise ValueError(f"it has {name}, which is no weight of a linear or LSTM layer")
        biases = [each.replace("weight", "bias") for each in names]
        bias = sum((left.pop(each) for each in biases if each in left), np.zeros(len(parts[0])))
        kept = parts[1].shape[1] if len(parts) > 1 else 0
        rows = np.column_stack([*parts, bias])
        if kept and len(rows) != 4 * kept:
            raise ValueError(f"{name} has {len(rows)} rows, but those of an LSTM with {kept} outputs are {4 * kept}")
        layers.append((parts[0].shape[1], kept or len(rows), kept, len(weights)))
        rows = np.pad(rows, ((0, -len(rows) % 4), (0, 0)))
        fours = np.arange(len(rows)).reshape(4, -1).T if kept else np.arange(len(rows)).reshape(-1, 4)
        weights = np.concatenate([weights, rows[fours].transpose(0, 2, 1).reshape(-1, 4)])
    inputs, outputs = ([each[at] for each in layers] or [0] for at in (0, 1))
    if inputs[1:] != outputs[:-1] or inputs[0] % 2 or outputs[-1] != 1 or max(inputs) > WIDEST:
        raise ValueError(
            f"its layers have {inputs} inputs and {outputs} outputs, but must be a chain from an even number of inputs "
            f"to one output, with at most {WIDEST} between"
        )
    if not np.isfinite(weights).all():
        raise ValueError("it has weights that are not finite")
    return layers, weights


@wp.func
def remember_inputs(
    network: NetworkData, env: int, i: int, error: float, speed: float, speeds_first: int, is_first: bool
) -> None:
    """Put the newest inputs of joint `i` before the older ones; in the first call of an episode in their stead, too."""
    half = network.layers[0][0] // 2
    errors = i * network.columns + wp.where(speeds_first == 1, half, 0)
    speeds = i * network.columns + wp.where(speeds_first == 1, 0, half)
    for k in range(half):
        at = half - 1 - k
        before = wp.max(at - 1, 0)
        is_new = is_first or at == 0
        network.memory[env, errors + at] = wp.where(is_new, error, network.memory[env, errors + before])
        network.memory[env, speeds + at] = wp.where(is_new, speed, network.memory[env, speeds + before])


@wp.func
def output_of(network: NetworkData, env: int, i: int, activation: int) -> float:
    """Return the output for the inputs of joint `i`, and remember those of its LSTM layers."""
    values, outputs = _Values(), _Values()
    own = i * network.columns
    for k in range(network.layers[0][0]):
        values[k] = network.memory[env, own + k]
    own += network.layers[0][0]
    for at in range(network.layers.shape[0]):
        layer = network.layers[at]
        kept = layer[2]
        for four in range(wp.where(kept > 0, kept, (layer[1] + 3) // 4)):
            first = layer[3] + four * (layer[0] + kept + 1)
            sums = wp.vec4()
            for k in range(layer[0]):
                sums += network.weights[first + k] * values[k]
            for k in range(kept):
                sums += network.weights[first + layer[0] + k] * network.memory[env, own + k]
            sums += network.weights[first + layer[0] + kept]
            if kept > 0:
                cell = sigmoid(sums[1]) * network.memory[env, own + kept + four] + sigmoid(sums[0]) * wp.tanh(sums[2])
                network.memory[env, own + kept + four] = cell
                outputs[four] = sigmoid(sums[3]) * wp.tanh(cell)
            else:
                is_last = at == network.layers.shape[0] - 1
                for k in range(4):
                    outputs[4 * four + k] = wp.where(is_last, sums[k], activated(activation, sums[k]))
        for row in range(layer[1]):
            values[row] = outputs[row]
            if kept > 0:
                network.memory[env, own + row] = outputs[row]
        own += 2 * kept
    return values[0]


@wp.func
def sigmoid(x: float) -> float:
    """Return the logistic function."""
    return 1.0 / (1.0 + wp.exp(-x))


@wp.func
def activated(activation: int, x: float) -> float:
    """Return the function of `CHOICES` with this number."""
    if activation == 0:
        return wp.where(x > 0.0, x, wp.exp(wp.min(x, 0.0)) - 1.0)
    if activation == 1:
        return wp.max(x, 0.0)
    if activation == 2:  # noqa: PLR2004
        return x / (1.0 + wp.abs(x))
    return wp.tanh(x)
