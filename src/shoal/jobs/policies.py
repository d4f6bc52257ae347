"""Policies of evaluation jobs: checkpoints, exported files, `zero`, `random`, and classes of the user's own.

A policy is built on the device that it is handed, and nothing is wrapped around its network. Observations come from the
device of the environments, and actions go back there.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict

from shoal.config import PlayConfig
from shoal.config.plain import from_plain
from shoal.envs.vec_env import VecEnv
from shoal.errors import UsageError
from shoal.learn.episodes import Policy
from shoal.learn.evaluation import TrainedPolicy, UntrainedPolicy
from shoal.learn.export import METADATA
from shoal.learn.inference import concatenated
from shoal.machine.gpus import visible_gpus
from shoal.plan.job import Job
from shoal.reading import parse_json, refusing
from shoal.tasks import registry
from shoal.user_code import load

_BLOCK = 64
"""Steps of random actions that are drawn at once."""


class JobPolicy(Policy, Protocol):
    """Maps observations to actions, float32, on the device of the environments; an episode in each of these."""

    def begin(self, indices: Sequence[int], seed: int) -> None:
        """Begin new episodes in all environments. `indices` are those of the episodes, one for each environment."""
        ...


def policy_device(
    job: Job,
    device: str | None,
    *,
    env_device: torch.device | str,
    environ: Mapping[str, str] = os.environ,
    num_gpus: int | None = None,
) -> torch.device:
    """Return the device of a job's policy.

    The first of these that exists decides: a launcher's `LOCAL_RANK`, which stands for the device of this rank and of
    its environments; `device` (of `--policy-device`: a name, or the index of a GPU); `policy_device` of the job; and
    the device of the environments. `num_gpus` is the number of visible GPUs; None counts them.

    Raises:
        UsageError: There is no such device.
    """
    num_gpus = len(visible_gpus(environ)) if num_gpus is None else num_gpus
    env_device = torch.device(env_device)
    if "LOCAL_RANK" in environ:
        return env_device
    name = device or job.policy_device
    if name is None or (name == "cuda" and env_device.type == "cuda"):
        return env_device
    name = "cuda:0" if name == "cuda" else f"cuda:{name}" if name.isdecimal() else name
    devices = ["cpu", *(f"cuda:{index}" for index in range(num_gpus))]
    if name not in devices:
        raise UsageError(f"The policy's device is '{name}', but the devices here are {', '.join(devices)}: pass one.")
    return torch.device(name)


def open_policy(job: Job, env: VecEnv, device: torch.device) -> JobPolicy:
    """Build the policy of a job on `device`. What the constructor of a user's class raises is passed on.

    Raises:
        UsageError: There is no such policy, it is of another task, or a package that it needs is not installed.
    """
    if job.policy == "random":
        return RandomPolicy(env)
    if job.policy == "zero":
        zeros = UntrainedPolicy((env.num_envs, env.num_actions), env.device, spread=0.0)
        return DevicePolicy(job.policy, zeros, env, torch.device(env.device))
    path = Path(job.policy)
    if path.suffix == ".pt":
        return DevicePolicy(job.policy, _open_checkpoint(job, env, device), env, device)
    if path.suffix == ".onnx":  # Even on a GPU it takes and returns arrays in host memory.
        return DevicePolicy(job.policy, _open_onnx(path, env, device), env, torch.device("cpu"))
    if path.suffix == ".pt2":
        return DevicePolicy(job.policy, _open_program(path, env, device), env, device)
    return DevicePolicy(job.policy, _load_class(job.policy)(device=device, **job.config), env, device)


class DevicePolicy(JobPolicy):
    """A policy that computes on a device of its own, without gradients. Its `reset(dones)` is optional."""

    def __init__(
        self, name: str, policy: Callable[[TensorDict], torch.Tensor], env: VecEnv, device: torch.device
    ) -> None:
        self._name, self.policy, self._device = name, policy, device
        self._reset: Callable[[torch.Tensor], None] | None = getattr(policy, "reset", None)
        self._env_device, self._rows, self._num_actions = torch.device(env.device), env.num_envs, env.num_actions

    def begin(self, indices: Sequence[int], seed: int) -> None:
        """Reset the memory of all episodes."""
        del indices, seed
        self.reset()

    @torch.no_grad()
    def __call__(self, observations: TensorDict) -> torch.Tensor:
        """Return actions, float32, on the device of the environments: a row for each row of the observations.

        Raises:
            UsageError: The actions have another shape.
        """
        self._rows = len(observations)
        if self._device != self._env_device:
            observations = observations.to(self._device)
        actions = torch.as_tensor(self.policy(observations))
        shape = (self._rows, self._num_actions)
        if actions.shape != shape:
            raise UsageError(
                f"The policy {self._name} returned actions of the shape {tuple(actions.shape)}, but {shape[0]} "
                f"environments with {shape[1]} actions each need {shape}: return that."
            )
        return actions.to(self._env_device, torch.float32)

    @torch.no_grad()
    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Reset the memory of the episodes that ended, of shape (num_envs,); of all with None."""
        dones = torch.ones(self._rows, dtype=torch.bool) if dones is None else dones
        if self._reset is not None:
            self._reset(dones.to(self._device))


class RandomPolicy(JobPolicy):
    """Uniform random actions in [-1, 1], which follow from the seed, the index of the episode and the step alone.

    Steps count from `begin`, also where an episode ends and another one follows.
    """

    def __init__(self, env: VecEnv) -> None:
        self._num_actions, self._device = env.num_actions, env.device

    def begin(self, indices: Sequence[int], seed: int) -> None:
        """Begin the actions of these episodes."""
        self._steps = self._draw([np.random.default_rng([seed, index]) for index in indices])

    def _draw(self, generators: Sequence[np.random.Generator]) -> Iterator[torch.Tensor]:
        """Yield the actions of each step, each episode's from a generator of its own."""
        while True:
            drawn = [generator.uniform(-1, 1, (_BLOCK, self._num_actions)) for generator in generators]
            yield from torch.from_numpy(np.stack(drawn, axis=1).astype(np.float32)).to(self._device)

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        """Return the actions of the next step. Shape (num_envs, num_actions)."""
        del observations
        return next(self._steps)


def _open_checkpoint(job: Job, env: VecEnv, device: torch.device) -> TrainedPolicy:
    """Rebuild networks from the job's learner and its configuration, and load those of the checkpoint."""
    spec = registry.resolve(job.task)
    learner = job.learner or spec.learner
    agent = from_plain(spec.agent_of(learner), job.agent or {}, "agent")
    trained = TrainedPolicy(env, PlayConfig(task=job.task, learner=learner, agent=agent), device)
    trained.load(Path(job.policy))
    return trained


class _ExportedPolicy:
    """A network that `shoal.learn.export` wrote, which takes observations and states, and returns actions and states.

    States have the shape (layers, num_envs, units), and begin as `empty` ones, without an environment. A network
    without memory has none.
    """

    def __init__(
        self, network: Callable[..., Sequence[torch.Tensor]], groups: Sequence[str], empty: Sequence[torch.Tensor]
    ) -> None:
        self._network, self._groups, self._empty = network, groups, empty
        self._states: list[torch.Tensor] = []

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        states = self._states or [each.new_zeros(len(each), len(observations), each.shape[2]) for each in self._empty]
        actions, *self._states = self._network(concatenated(observations, self._groups), *states)
        return actions

    def reset(self, dones: torch.Tensor) -> None:
        # Not multiplied: the states of an environment that diverged may be NaN.
        self._states = [state.masked_fill(dones.bool()[:, None], 0.0) for state in self._states]


def _open_onnx(file: Path, env: VecEnv, device: torch.device) -> _ExportedPolicy:
    """Open an ONNX file in onnxruntime, on a GPU if its build has CUDA."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise UsageError(f"The policy {file} needs onnxruntime, which is not installed: run `uv add 'shoal[onnx]'`.")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # By default each worker would take all cores.
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": device.index or 0}))
    session = onnxruntime.InferenceSession(file, options, providers=providers)
    inputs = session.get_inputs()
    # The batch axis has a name for its size.
    shapes = [[0 if isinstance(size, str) else size for size in each.shape] for each in inputs[1:]]

    def network(*tensors: torch.Tensor) -> list[torch.Tensor]:
        arrays = {each.name: tensor.numpy() for each, tensor in zip(inputs, tensors, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, arrays)]

    groups = _observation_groups(file, session.get_modelmeta().custom_metadata_map, env)
    return _ExportedPolicy(network, groups, [torch.zeros(shape) for shape in shapes])


def _open_program(file: Path, env: VecEnv, device: torch.device) -> _ExportedPolicy:
    """Open a program of `torch.export` on `device`."""
    from torch.export.passes import move_to_device_pass

    extra = {METADATA: "{}"}
    program = move_to_device_pass(torch.export.load(file, extra_files=extra), device)
    module = program.module()
    (_, *states), _ = program.example_inputs or ((None,), {})

    def network(*tensors: torch.Tensor) -> list[torch.Tensor]:
        outputs = module(*tensors)
        # A GRU returns None in the place of an LSTM's second state.
        return [each for each in outputs if each is not None] if isinstance(outputs, tuple) else [outputs]

    groups = _observation_groups(file, parse_json(extra[METADATA]), env)
    empty = [torch.zeros(len(each), 0, each.shape[2], device=device) for each in states]
    return _ExportedPolicy(network, groups, empty)


def _observation_groups(file: Path, metadata: Mapping[str, str], env: VecEnv) -> list[str]:
    """Return the observation groups of an exported policy, in the order in which it takes them."""
    with refusing(file, "pass a policy that `shoal export` wrote", "The metadata of "):
        groups, columns = (parse_json(metadata.get(f"observation_{part}", "[]")) for part in ("groups", "columns"))
        needed: dict[str, int] = dict(zip(groups, columns, strict=True))
    given = {name: group[0].numel() for name, group in env.get_observations().items()}
    if not needed or not needed.items() <= given.items():
        raise UsageError(
            f"The policy {file} needs the observation groups {needed}, by their columns, but the task has {given}: "
            "pass a policy of this task that `shoal export` wrote."
        )
    return groups


def _load_class(reference: str) -> Callable[..., Any]:
    """Import a user's class."""
    try:
        return load(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"The policy '{reference}' cannot be imported ({error}): pass a .pt, .onnx or .pt2 file, zero, random, "
            "package.module:Class, or path/to/file.py:Class."
        ) from error
