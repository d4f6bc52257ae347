"""`mjlab:TASK` is refused where mjlab cannot run, with the command that mends it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.config import CnnConfig
from shoal.envs import mjlab_spec
from shoal.envs.mjlab_spec import OVERRIDES, problem_of_mjlab
from shoal.errors import UsageError
from shoal.tasks.registry import resolve

VISION = {
    "output_channels": [16, 32],
    "kernel_size": [5, 3],
    "stride": [2, 2],
    "padding": "zeros",
    "max_pool": False,
    "global_pool": "none",
    "spatial_softmax": True,
    "spatial_softmax_temperature": 0.5,
}
WHOLE = {"mjlab": "1.6.0", "rsl-rl-lib": "5.5.1", "mujoco": "4.0.0", "mujoco-warp": "4.0.0", "prettytable": "3.0"}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({"mjlab": None}, "mjlab is not installed: run `uv pip install --override "),
        ({"mjlab": "0.1.0"}, "mjlab's tasks were not tested with mjlab 0.1.0 (not 1.6.0): run"),
        ({"rsl-rl-lib": "5.4.2", "mujoco": "3.11.0"}, "with rsl-rl-lib 5.4.2 (not 5.5.1), mujoco 3.11.0 (not 4.0.0)"),
        ({"prettytable": None}, "mjlab needs prettytable, which are not installed: run"),
    ],
)
def test_what_mjlab_lacks_is_named(
    changed: dict[str, str | None], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mjlab_spec, "installed_version", (WHOLE | changed).get)
    monkeypatch.setattr(mjlab_spec, "requires", lambda _: ["mujoco==3.11", "prettytable", "pytest; extra == 'test'"])
    found = problem_of_mjlab() or ""
    assert (problem or "") in found
    assert (str(OVERRIDES) in found) == (problem is not None)
    if problem is not None:
        with pytest.raises(UsageError, match=r"mjlab:Mjlab-Cartpole-Balance was asked for, but " + re.escape(found)):
            resolve("mjlab:Mjlab-Cartpole-Balance")


def network(class_name: str, **cnn: Any) -> Any:
    """Return a configuration of a network of images, as mjlab has it."""
    plain = {"hidden_dims": (8,), "activation": "elu", "obs_normalization": True, "distribution_cfg": None}
    memory = {"rnn_type": None, "rnn_hidden_dim": 256, "rnn_num_layers": 1}
    return SimpleNamespace(class_name=class_name, cnn_cfg=cnn, **plain, **memory)


def test_mjlabs_convolutions_are_shoals() -> None:
    soft = mjlab_spec._model_of(network("mjlab.rl.spatial_softmax:SpatialSoftmaxCNNModel", **VISION))
    layers = {"output_channels": (16, 32), "kernel_size": (5, 3), "stride": (2, 2), "max_pool": (False, False)}
    assert soft.class_name == "CNNModel"
    assert soft.cnn == CnnConfig(**layers, padding="zeros", spatial_softmax_temperature=0.5)
    plain = mjlab_spec._model_of(network("CNNModel", output_channels=[8], kernel_size=3))
    assert plain.cnn == CnnConfig(output_channels=(8,), kernel_size=(3,))
    with pytest.raises(UsageError, match="has convolutions with global_pool, which Shoal's do not have"):
        mjlab_spec._model_of(network("CNNModel", output_channels=[8], kernel_size=3, global_pool="avg"))
