"""The policy as files for deployment: ONNX, and a program of `torch.export`, each with what a controller must know.

rsl_rl says what is exported: its models make a network of themselves that takes plain tensors, normalises them, and
returns the deterministic actions. What is ours are a batch axis of any size, the metadata, and files that appear whole.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from shoal import __version__
from shoal.errors import ShoalError, UsageError
from shoal.files import write_whole
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.evaluation import rebuild
from shoal.sim.isolation import isolated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import nn

    from shoal.config import ExportConfig
    from shoal.learn.runner import Runner
    from shoal.sim.kernel_task import KernelTask
    from shoal.tasks.registry import TaskSpec

METADATA = "metadata.json"
"""Extra file of a `.pt2` that holds the metadata; in ONNX they are `metadata_props`."""
_OPSET = 18
"""Version of ONNX's operators; rsl_rl's own, which runtimes from 2023 on have."""
_BATCH_AXES = {"h_in": 1, "c_in": 1}
"""The axis of each input that counts environments, where it is not the first: states of recurrent networks."""
_PROBES = 16
"""Observations that the exported network is tried on."""
_TOLERANCE = 1e-3
"""How far its actions may be from the policy's, absolutely and relatively: a GPU may round more coarsely than a CPU."""


@dataclass(frozen=True, slots=True)
class Deployable:
    """A policy on its way into files."""

    network: nn.Module
    """rsl_rl's exportable copy of the policy, on the CPU."""
    metadata: Mapping[str, str]
    """What is written beside it. Strings are as they are, all else is JSON."""


def read_policy(config: ExportConfig, spec: TaskSpec, model: Path, checkpoint: str) -> Deployable:
    """Build the networks of a checkpoint again, on the CPU, and make their policy ready.

    Args:
        config: What was asked.
        spec: The task, of which one environment is built: it knows the shapes, and what actions mean.
        model: The file with the weights.
        checkpoint: What the files call it.

    Raises:
        ShoalError: The checkpoint cannot be read, or its policy cannot be exported.
    """
    with isolated("cpu"):
        state = read_checkpoint(model)
        env, runner = rebuild(config, spec, "cpu", num_envs=1, seed=0)
        runner.restore(state, weights_only=True)
        runner.iteration = int(state["iter"]) + 1
        return deployable(runner, env.task, name=spec.name, checkpoint=checkpoint)


def deployable(runner: Runner, task: KernelTask[Any], *, name: str, checkpoint: str) -> Deployable:
    """Make the policy of `runner` ready. A recurrent one forgets what it has seen.

    Args:
        runner: Holds the policy.
        task: What it acts in.
        name: What the task is registered as.
        checkpoint: What holds the same weights.

    Raises:
        ShoalError: The policy or the task cannot be exported.
    """
    policy = runner.get_inference_policy()
    if not hasattr(policy, "as_onnx"):
        message = (
            f"The policy is a {type(policy).__name__}, which has no as_onnx() as rsl_rl's models have, so it cannot be "
            "exported: give it one."
        )
        raise UsageError(message)
    network = policy.as_onnx(verbose=False).to("cpu").eval().requires_grad_(requires_grad=False)
    observations = runner.env.get_observations()
    _refuse_another(network, policy, observations)
    ours = {
        "task": name,
        "checkpoint": checkpoint,
        "iteration": runner.iteration,
        "shoal_version": __version__,
        "observation_groups": list(policy.obs_groups),
        "observation_columns": [observations[group].shape[-1] for group in policy.obs_groups],
    }
    metadata = ours | task.deployment() | ours  # A task adds to ours, and changes none of them.
    return Deployable(network, {key: _text(key, value, task) for key, value in metadata.items()})


def _refuse_another(network: nn.Module, policy: Any, seen: TensorDict) -> None:  # noqa: ANN401  Any class of rsl_rl's kind.
    """Refuse a network that does not act as the policy does.

    A model of a user's own may inherit `as_onnx` from one of rsl_rl's, which knows nothing of what was changed.
    """
    random = torch.Generator().manual_seed(0)
    probes = {name: torch.randn((_PROBES, *group.shape[1:]), generator=random) for name, group in seen.items()}
    given = probes | {"obs": torch.cat([probes[group] for group in policy.obs_groups], dim=-1)}
    inputs = [given.get(name, zeros) for name, zeros in _example(network, _PROBES).items()]
    with torch.inference_mode():
        policy.reset()
        wanted = policy(TensorDict(probes, batch_size=[_PROBES]).to(seen.device)).cpu()
        policy.reset()
        made = network(*inputs)
    actions = made[0] if isinstance(made, tuple) else made
    if not torch.allclose(actions, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
        message = (
            f"What as_onnx() of {type(policy).__name__} returns does not act as the policy does: its actions differ by "
            f"{(actions - wanted).abs().max():.3g}. Write an as_onnx() for that class."
        )
        raise ShoalError(message)


def _example(network: Any, num_envs: int) -> dict[str, torch.Tensor]:  # noqa: ANN401  rsl_rl adds to `nn.Module`.
    """Return zeros for each input of an exportable network, by name, with `num_envs` rows."""
    one = zip(network.input_names, network.get_dummy_inputs(), strict=True)
    return {name: zeros.repeat_interleave(num_envs, dim=_BATCH_AXES.get(name, 0)) for name, zeros in one}


def _text(key: str, value: object, task: KernelTask[Any]) -> str:
    """Return what stands for a value in a file that holds strings."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        message = (
            f"deployment() of the task {type(task).__name__} gives {value!r} for '{key}', which JSON cannot hold: "
            "give finite numbers, strings, and lists of them."
        )
        raise ShoalError(message) from error


def write_policy(policy: Deployable, onnx_file: Path) -> tuple[Path, Path]:
    """Write a policy as ONNX, and beside it as a program of `torch.export`. Each file appears whole or not at all.

    Returns:
        The two files.

    Raises:
        ShoalError: The disk refused it.
    """
    program_file = onnx_file.with_suffix(".pt2")
    with _quiet():
        onnx_bytes, program_bytes = _in_both_formats(policy)
    _write(onnx_file, onnx_bytes)
    _write(program_file, program_bytes)
    return onnx_file, program_file


def _in_both_formats(policy: Deployable) -> tuple[bytes, bytes]:
    """Return the policy as ONNX, and as a program of `torch.export`."""
    network: Any = policy.network
    example = _example(network, 2)  # torch takes a batch of 1 for one that is always 1.
    axes = tuple({_BATCH_AXES.get(name, 0): torch.export.Dim("batch")} for name in example)
    program = torch.export.export(policy.network, tuple(example.values()), dynamic_shapes=axes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # Paths of this machine.
    saved = io.BytesIO()
    torch.export.save(program, saved, extra_files={METADATA: json.dumps(dict(policy.metadata))})
    onnx: Any = torch.onnx.export(  # None only where it writes a file itself.
        program,
        input_names=network.input_names,
        output_names=network.output_names,
        opset_version=_OPSET,
        dynamic_shapes=axes,  # Once more: it names the axes.
        dynamo=True,
        verbose=False,
    )
    onnx.model.metadata_props.update(policy.metadata)
    return onnx.model_proto.SerializeToString(), saved.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what torch's exporters say of packages that are not needed, and of their own future."""
    exporter = logging.getLogger("torch.onnx")
    before = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(before)


def _write(file: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, data)
    except OSError as error:
        message = (
            f"The policy could not be written to {file} ({error.strerror or error}): make room, or pass another --out."
        )
        raise ShoalError(message) from error
