"""Export of a policy for deployment, with metadata for a controller: ONNX, and a program of `torch.export`.

The network is that of rsl_rl's `as_onnx()`: it takes plain tensors, normalises them, and returns deterministic actions.
Added here are a batch axis of any size, the metadata, and files that appear whole.
"""

import contextlib
import io
import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict
from torch import nn

from shoal import __version__
from shoal.config import ExportConfig
from shoal.envs.capabilities import capabilities_of
from shoal.envs.vec_env import build_vec_env
from shoal.errors import ShoalError, UsageError, refusing_os_errors
from shoal.files import Folder, folder_of
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.evaluation import TrainedPolicy
from shoal.learn.inference import concatenated
from shoal.learn.learner import Learner
from shoal.learn.state import restore_curriculum
from shoal.sim.isolation import isolated
from shoal.tasks.registry import TaskSpec

METADATA = "metadata.json"
"""Extra file of a `.pt2` with the metadata; in ONNX they are `metadata_props`."""
_OPSET = 18
"""Version of ONNX's operators, as in rsl_rl; runtimes since 2023 have it."""
_BATCH_AXES = {"h_in": 1, "c_in": 1}
"""Batch axis of inputs where it is not the first: states of recurrent networks."""
_PROBES = 16
"""Random observations for which exported network and policy are compared."""
_TOLERANCE = 1e-3
"""Allowed absolute and relative difference of the actions: a GPU may round more coarsely than a CPU."""


@dataclass(frozen=True, slots=True)
class ExportablePolicy:
    """A network with its metadata, ready to be written."""

    network: nn.Module
    """rsl_rl's exportable copy of the policy, on the CPU."""
    metadata: Mapping[str, str]
    """Written into each file. Strings are kept, other values are JSON."""


def read_policy(config: ExportConfig, spec: TaskSpec, model: Path, checkpoint: str) -> ExportablePolicy:
    """Load the policy of a checkpoint on the CPU, ready for export. `checkpoint` is its name in the metadata.

    Raises:
        ShoalError: The checkpoint cannot be read, or its policy cannot be exported.
    """
    with isolated("cpu"):
        env = build_vec_env(spec, config.env, num_envs=1, device="cpu", seed=0)
        trained = TrainedPolicy(env, config, "cpu")
        iteration = trained.load(model)
        restore_curriculum(capabilities_of(env), read_checkpoint(model))
        return exportable_policy(trained.learner, env, name=spec.name, checkpoint=checkpoint, iteration=iteration)


def exportable_policy(learner: Learner, env: VecEnv, *, name: str, checkpoint: str, iteration: int) -> ExportablePolicy:
    """Return the policy of `learner`, ready for export. The memory of a recurrent one is reset.

    `name`, `checkpoint` and `iteration` are those of the task and of the checkpoint in the metadata.

    Raises:
        ShoalError: The policy or the task cannot be exported.
    """
    policy: Any = learner.policy()
    if not hasattr(policy, "as_onnx"):
        raise UsageError(
            f"The policy is a {type(policy).__name__}, which has no as_onnx() as rsl_rl's models have, so it cannot be "
            "exported: give it one."
        )
    network = policy.as_onnx(verbose=False).to("cpu").eval().requires_grad_(requires_grad=False)
    observations, images = env.get_observations(), getattr(policy, "obs_groups_2d", [])
    groups = [*policy.obs_groups, *images]
    shapes = [tuple(observations[group].shape[1:]) for group in groups]
    if images:
        network = _SideBySide(network, shapes)
    _compare_actions(network, policy, observations, groups)
    base = {
        "task": name,
        "checkpoint": checkpoint,
        "iteration": iteration,
        "shoal_version": __version__,
        "observation_groups": groups,
        "observation_columns": [math.prod(shape) for shape in shapes],
        "observation_shapes": shapes,
    }
    of_task = _for_groups(capabilities_of(env).deployment(), groups)
    metadata = base | of_task | base  # A task cannot replace these.
    return ExportablePolicy(network, {key: _to_string(key, value, name) for key, value in metadata.items()})


def _for_groups(deployment: Mapping[str, Any], groups: Sequence[str]) -> dict[str, Any]:
    """Return the entries of a task, with the observations that the policy has: those of a critic need no sensors."""
    if not isinstance(deployment.get("observations"), Mapping):
        return dict(deployment)
    observations = {group: deployment["observations"][group] for group in groups}
    names = [term["name"] for terms in observations.values() for term in terms]
    return {**deployment, "observations": observations, "observation_names": names}


class _SideBySide(nn.Module):
    """rsl_rl's exportable model of images, with one input beside a memory: all groups, images row by row."""

    def __init__(self, network: Any, shapes: Sequence[tuple[int, ...]]) -> None:  # noqa: ANN401  As in `_example_inputs`.
        super().__init__()
        self.network, self.shapes = network, list(shapes)
        self.columns = [math.prod(shape) for shape in shapes]
        self.memory = {name: each for name, each in _example_inputs(network, 1).items() if name in _BATCH_AXES}
        self.input_names, self.output_names = ["obs", *self.memory], network.output_names

    def get_dummy_inputs(self) -> tuple[torch.Tensor, ...]:
        """Return inputs of one row."""
        return (torch.zeros(1, sum(self.columns)), *self.memory.values())

    def forward(self, obs: torch.Tensor, h_in: torch.Tensor | None = None, c_in: torch.Tensor | None = None) -> Any:  # noqa: ANN401
        """Return actions, shape (batch, num_actions); of a recurrent model also its memory."""
        parts = [*zip(obs.split(self.columns, dim=1), self.shapes, strict=True)]
        vectors = [part for part, shape in parts if len(shape) == 1]
        images = [part.unflatten(1, shape) for part, shape in parts if len(shape) > 1]
        memory = [each for each in (h_in, c_in) if each is not None]
        return self.network(torch.cat(vectors, dim=1) if vectors else obs[:, :0], *images, *memory)


def _compare_actions(network: nn.Module, policy: Any, observations: TensorDict, groups: Sequence[str]) -> None:  # noqa: ANN401  Any model.
    """Check that the exported network returns the actions of the policy.

    A user's model may inherit `as_onnx` from a class of rsl_rl that does not know of its changes.
    """
    random = torch.Generator().manual_seed(0)
    probes = {name: torch.randn((_PROBES, *group.shape[1:]), generator=random) for name, group in observations.items()}
    by_name = probes | {"obs": concatenated(probes, groups)}
    inputs = [by_name.get(name, zeros) for name, zeros in _example_inputs(network, _PROBES).items()]
    with torch.inference_mode():
        policy.reset()
        expected = policy(TensorDict(probes, batch_size=[_PROBES]).to(observations.device)).cpu()
        policy.reset()
        outputs = network(*inputs)
    actions = outputs[0] if isinstance(outputs, tuple) else outputs
    if not torch.allclose(actions, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ShoalError(
            f"What as_onnx() of {type(policy).__name__} returns does not act as the policy does: its actions differ by "
            f"{(actions - expected).abs().max():.3g}. Write an as_onnx() for that class."
        )


def _example_inputs(network: Any, num_envs: int) -> dict[str, torch.Tensor]:  # noqa: ANN401  rsl_rl adds to `nn.Module`.
    """Return zeros for each input of an exportable network, by name, with `num_envs` rows."""
    one = zip(network.input_names, network.get_dummy_inputs(), strict=True)
    return {name: zeros.repeat_interleave(num_envs, dim=_BATCH_AXES.get(name, 0)) for name, zeros in one}


def _to_string(key: str, value: object, task: str) -> str:
    """Return a metadata value as a string."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ShoalError(
            f"deployment() of the task {task} gives {value!r} for '{key}', which JSON cannot hold: "
            "give finite numbers, strings, and lists of them."
        ) from error


def write_policy(policy: ExportablePolicy, onnx_file: Path, folder: Folder | None = None) -> tuple[Path, Path]:
    """Write a policy as ONNX, and as a program of `torch.export` beside it; return both files. Each appears whole.

    They are in a directory of `folder`, by default where the user has named them.

    Raises:
        ShoalError: The files could not be written.
    """
    program_file = onnx_file.with_suffix(".pt2")
    with _quiet():
        onnx_bytes, program_bytes = _in_both_formats(policy)
    for file, data in ((onnx_file, onnx_bytes), (program_file, program_bytes)):
        remedy = "make room, or pass another --out"
        with refusing_os_errors(f"The policy could not be written to {file}", remedy, ShoalError):
            into = folder or folder_of(file)
            into.make(file.parent)
            into.write(file, data)
    return onnx_file, program_file


def _in_both_formats(policy: ExportablePolicy) -> tuple[bytes, bytes]:
    """Return the bytes of the ONNX file and of the `.pt2`."""
    network: Any = policy.network
    example = _example_inputs(network, 2)  # torch takes a batch of 1 for a constant.
    axes = tuple({_BATCH_AXES.get(name, 0): torch.export.Dim("batch")} for name in example)
    program = torch.export.export(policy.network, tuple(example.values()), dynamic_shapes=axes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # It has local paths.
    saved = io.BytesIO()
    torch.export.save(program, saved, extra_files={METADATA: json.dumps(dict(policy.metadata))})
    onnx: Any = torch.onnx.export(  # None only if it writes a file itself.
        program,
        input_names=network.input_names,
        output_names=network.output_names,
        opset_version=_OPSET,
        dynamic_shapes=axes,  # Again, for the names of the axes.
        dynamo=True,
        verbose=False,
    )
    onnx.model.metadata_props.update(policy.metadata)
    return onnx.model_proto.SerializeToString(), saved.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's exporters: warnings of packages that are not needed, and of deprecations."""
    exporter = logging.getLogger("torch.onnx")
    before = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        exporter.setLevel(before)
