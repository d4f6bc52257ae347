"""A policy in other formats: what runs elsewhere acts as the policy does, and says what it is."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
import torch
from rsl_rl.models import MLPModel
from support.learners import tiny_agent, tiny_config, tiny_loop
from tensordict import TensorDict

from shoal import __version__
from shoal.config import DistributionConfig, ModelConfig
from shoal.envs.capabilities import Capabilities
from shoal.errors import ShoalError, UsageError
from shoal.learn.export import METADATA, ExportablePolicy, exportable_policy, write_policy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rsl_rl.env import VecEnv

    from shoal.learn.loop import TrainingLoop

NUM_OBSERVATIONS = 1000
TOLERANCE = 2e-6
"""Actions are about 1, and float32 has 1.2e-7 there: sums of some dozens of products, added up in another order."""

GAUSSIAN = DistributionConfig(class_name="GaussianDistribution")
ACTORS = {
    "a perceptron": ModelConfig(hidden_dims=(64, 64), obs_normalization=True, distribution=GAUSSIAN),
    "one without a normaliser": ModelConfig(hidden_dims=(64, 64), distribution=GAUSSIAN),
    "one whose deviation is learned": ModelConfig(
        obs_normalization=True, distribution=DistributionConfig(class_name="HeteroscedasticGaussianDistribution")
    ),
    "one with bounded actions": ModelConfig(
        obs_normalization=True, distribution=DistributionConfig(class_name="BetaDistribution", action_range=(-2, 3))
    ),
    "an LSTM": ModelConfig(
        class_name="RNNModel", rnn_num_layers=2, rnn_hidden_dim=32, obs_normalization=True, distribution=GAUSSIAN
    ),
    "a GRU": ModelConfig(
        class_name="RNNModel", rnn_type="gru", rnn_hidden_dim=32, obs_normalization=True, distribution=GAUSSIAN
    ),
}
GROUPS = {"actor": ("privileged", "policy"), "critic": ("policy",)}
COLUMNS = (5, 3)


class Deployed(Capabilities):
    """Environments with what a controller needs."""

    def __init__(self, env: VecEnv, **more: object) -> None:
        self.get_observations, self.more = env.get_observations, more

    def deployment(self) -> dict[str, object]:
        """Return the control period and more."""
        return {"control_period_s": 0.02, **self.more}


class Doubled(MLPModel):
    """Acts otherwise than the model whose `as_onnx` it has."""

    def forward(self, *arguments: Any, **named: Any) -> torch.Tensor:
        return 2 * super().forward(*arguments, **named)


def loop_of(actor: ModelConfig) -> TrainingLoop:
    """A policy with two groups of observations, whose mean and spread its normaliser has seen."""
    loop = tiny_loop(tiny_config(agent=tiny_agent(actor=actor, obs_groups=GROUPS)))
    loop.learner.alg.get_policy().update_normalization(observations(4096, seed=1))
    return loop


def observations(count: int, *, seed: int) -> TensorDict:
    """Random observations, each column with a mean and a spread of its own."""
    random = torch.Generator().manual_seed(seed)
    drawn = 10.0 ** torch.linspace(-1, 1, 8) * torch.randn(count, 8, generator=random) + torch.arange(-4.0, 4.0)
    groups = dict(zip(GROUPS["actor"], drawn.split(COLUMNS, dim=-1), strict=True))
    return TensorDict(groups, batch_size=[count])


def stacked(seen: TensorDict) -> torch.Tensor:
    """What a controller hands over: all groups side by side."""
    return torch.cat([seen[group] for group in GROUPS["actor"]], dim=-1)


def exportable(loop: TrainingLoop, checkpoint: str = "", **more: object) -> ExportablePolicy:
    """The policy of a loop, with `more` for a controller."""
    env: Any = Deployed(loop.env, **more)
    return exportable_policy(loop.learner, env, iteration=7, name="tiny", checkpoint=checkpoint)


def write(loop: TrainingLoop, directory: Path, **more: object) -> tuple[Path, Path]:
    """Export a policy."""
    policy = exportable(loop, "run/checkpoints/000007", **more)
    return write_policy(policy, directory / "exports" / "policy.onnx")


RARELY = ("one without a normaliser", "a GRU")
"""What CI leaves out for its time; `make test-soak` has them."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.soak) if kind in RARELY else kind for kind in ACTORS],
)
def loop(request: pytest.FixtureRequest) -> TrainingLoop:
    """Each kind of policy."""
    return loop_of(ACTORS[request.param])


@pytest.fixture(scope="module")
def files(loop: TrainingLoop, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Its two files."""
    return write(loop, tmp_path_factory.mktemp("exported"))


class InOnnxRuntime:
    """A controller with onnxruntime, which keeps the states of a recurrent policy."""

    def __init__(self, file: Path, num_envs: int) -> None:
        self.session = onnxruntime.InferenceSession(file)
        shapes = {
            each.name: [num_envs if n == "batch" else n for n in each.shape] for each in self.session.get_inputs()
        }
        self.states = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name != "obs"}

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        actions, *states = self.session.run(None, {"obs": obs.numpy(), **self.states})
        self.states = dict(zip(self.states, states, strict=True))
        return torch.from_numpy(actions)


class InTorch:
    """A controller with torch alone."""

    def __init__(self, file: Path, num_envs: int) -> None:
        self.network = torch.export.load(file).module()
        (example, *zeros), _ = torch.export.load(file).example_inputs or ((None,), {})
        assert example is not None
        self.states = [torch.zeros(layers, num_envs, width) for layers, _, width in (each.shape for each in zeros)]

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        made = self.network(obs, *self.states)
        if not self.states:
            return made
        actions, *states = (each for each in made if each is not None)
        self.states = states
        return actions


@pytest.mark.parametrize("num_envs", [NUM_OBSERVATIONS, 1])
@pytest.mark.parametrize("controller", [InOnnxRuntime, InTorch])
def test_it_acts_as_the_policy_does(
    loop: TrainingLoop, files: tuple[Path, Path], controller: type[InOnnxRuntime | InTorch], num_envs: int
) -> None:
    policy = loop.learner.policy()
    policy.reset()
    exported = controller(files[controller is InTorch], num_envs)
    for step in range(3):  # A recurrent policy remembers what it saw before.
        seen = observations(num_envs, seed=10 + step)
        with torch.inference_mode():
            wanted = policy(seen)
        actions = exported.act(stacked(seen))
        assert actions.shape == (num_envs, 2)
        assert wanted.abs().max() > 1000 * TOLERANCE
        assert (actions - wanted).abs().max() <= TOLERANCE
    policy.reset()


def metadata_in(file: Path) -> Mapping[str, str]:
    """What a file says beside its network."""
    if file.suffix == ".onnx":
        return onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    extra = {METADATA: ""}
    torch.export.load(file, extra_files=extra)
    return json.loads(extra[METADATA])


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_it_says_what_a_controller_must_know(files: tuple[Path, Path], suffix: str) -> None:
    (file,) = (file for file in files if file.suffix == suffix)
    assert metadata_in(file) == {
        "task": "tiny",
        "checkpoint": "run/checkpoints/000007",
        "iteration": "7",
        "shoal_version": __version__,
        "observation_groups": '["privileged", "policy"]',
        "observation_columns": "[5, 3]",
        "observation_shapes": "[[5], [3]]",
        "control_period_s": "0.02",
    }


def test_inputs_and_outputs_have_names_and_a_batch_axis(tmp_path: Path) -> None:
    def axes_of(kind: str) -> list[tuple[str, list[object]]]:
        session = onnxruntime.InferenceSession(write(loop_of(ACTORS[kind]), tmp_path)[0])
        return [(each.name, each.shape) for each in (*session.get_inputs(), *session.get_outputs())]

    assert axes_of("a perceptron") == [("obs", ["batch", 8]), ("actions", ["batch", 2])]
    states = [2, "batch", 32]
    assert axes_of("an LSTM") == [
        *(("obs", ["batch", 8]), ("h_in", states), ("c_in", states)),
        *(("actions", ["batch", 2]), ("h_out", states), ("c_out", states)),
    ]


def test_nothing_of_this_machine_is_in_the_files(files: tuple[Path, Path]) -> None:
    place = MLPModel.__module__.replace(".", "/").encode()
    assert [file.name for file in files if place in file.read_bytes()] == []


def test_a_task_adds_lists_and_changes_nothing_of_ours(tmp_path: Path) -> None:
    more = {"joint_names": ["hip", "knee"], "default_joint_pos": [0.0, -0.5], "iteration": 0}
    metadata = metadata_in(write(loop_of(ACTORS["a perceptron"]), tmp_path, **more)[0])
    assert json.loads(metadata["joint_names"]) == ["hip", "knee"]
    assert json.loads(metadata["default_joint_pos"]) == [0.0, -0.5]
    assert metadata["iteration"] == "7"


@pytest.mark.parametrize("value", [np.zeros(2), float("nan"), {1, 2}], ids=str)
def test_what_no_file_can_hold_is_named(value: object) -> None:
    with pytest.raises(ShoalError, match=r"deployment\(\) of the task tiny gives .* for 'pose'"):
        exportable(loop_of(ACTORS["a perceptron"]), pose=value)


def test_a_model_that_exports_another_is_refused() -> None:
    actor = ModelConfig(class_name=f"{Doubled.__module__}:Doubled", hidden_dims=(8,), distribution=GAUSSIAN)
    with pytest.raises(ShoalError, match=r"as_onnx\(\) of Doubled returns does not act as the policy does"):
        exportable(loop_of(actor))


def test_a_model_that_cannot_export_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of(ACTORS["a perceptron"])
    monkeypatch.delattr(MLPModel, "as_onnx")
    with pytest.raises(UsageError, match=r"a MLPModel, which has no as_onnx\(\)"):
        exportable(loop)


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "exports" / "policy.pt2").mkdir(parents=True)
    with pytest.raises(ShoalError, match=r"could not be written to .*policy\.pt2 \(Is a directory\)"):
        write(loop_of(ACTORS["a perceptron"]), tmp_path)
    assert sorted(path.name for path in (tmp_path / "exports").iterdir()) == ["policy.onnx", "policy.pt2"]


def test_torch_says_nothing_and_its_logging_stays_as_it_was(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    before = logging.getLogger("torch.onnx").level
    write(loop_of(ACTORS["an LSTM"]), tmp_path)
    assert [str(each.message) for each in recwarn] == []
    assert logging.getLogger("torch.onnx").level == before
