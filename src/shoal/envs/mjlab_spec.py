"""Tasks `mjlab:TASK`: a task of mjlab, or of a package that adds some to it, with its own agent configuration."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import requires
from pathlib import Path
from typing import Any, Self

from shoal.config import BaseEnvConfig, CnnConfig, DistributionConfig, ModelConfig, PpoConfig, RslRlConfig
from shoal.envs.library_settings import change_all
from shoal.errors import UsageError, did_you_mean
from shoal.provenance import installed_version
from shoal.tasks.registry import TaskSpec

MJLAB = "1.6.0"
"""The version that was tested."""
_NUM_ENVS = 4096
"""Environments on each worker where a task names none, as in the commands of mjlab's README."""
_LEFT_OUT = {"spatial_softmax": True, "global_pool": "none", "norm": "none", "dilation": 1}
"""Settings of convolutions that are Shoal's too, or follow from the class."""
OVERRIDES = Path(__file__).with_name("mjlab_overrides.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class MjlabConfig(BaseEnvConfig):
    """Settings of a task of mjlab."""

    mjlab_task: str = ""
    """mjlab's name of the task, which the task names."""
    play: bool = False
    """Use the task's configuration for `play`, as play and evaluate do."""
    set: dict[str, str] = field(default_factory=dict[str, str])
    """Changes of the task's own configuration, by path: `--env.set rewards.pose.weight 0.5 episode_length_s 10`."""
    clip_actions: float | None = None
    """Largest action; larger ones are clipped. The default is that of the task's agent."""

    def in_play(self) -> Self:
        """Return the same with the task's configuration for `play`."""
        return replace(self, play=True)


def spec_of(task: str) -> TaskSpec:
    """Return a task of mjlab.

    Raises:
        UsageError: mjlab is not installed, or another version of it, or it has no such task.
    """
    agent = _registry(task).load_rl_cfg(task)
    num_envs = load_env_cfg(MjlabConfig(mjlab_task=task)).scene.num_envs
    return TaskSpec(
        name=f"mjlab:{task}",
        summary=f"{task} of mjlab.",
        env=MjlabConfig(mjlab_task=task, clip_actions=agent.clip_actions),
        agent=_agent_of(agent),
        num_envs=num_envs if num_envs > 1 else _NUM_ENVS,  # 1 is the default of mjlab's scene.
        max_iterations=agent.max_iterations,
        builder="shoal.envs.mjlab_env:MjlabEnv",
        check="shoal.envs.mjlab_spec:check",
    )


def check(config: MjlabConfig, default: MjlabConfig) -> tuple[str, ...]:
    """Check that changes of the configuration name what is there.

    Raises:
        UsageError: They do not, or a file of a motion is missing.
    """
    del default
    motion = load_env_cfg(config).commands.get("motion")
    file = getattr(motion, "motion_file", None)
    if file is not None and not Path(file).is_file():
        raise UsageError(
            f"mjlab:{config.mjlab_task} follows a motion, and the file '{file}' does not exist: pass --env.set "
            "commands.motion.motion_file FILE.npz, which `shoal motion` writes."
        )
    return ()


def load_env_cfg(config: MjlabConfig) -> Any:  # noqa: ANN401  mjlab's ManagerBasedRlEnvCfg.
    """Return mjlab's configuration of a task, with the changes of `config`.

    Raises:
        UsageError: A change names nothing, or has a value of another kind.
    """
    registry = _registry(config.mjlab_task)
    made = registry.load_env_cfg(config.mjlab_task, play=config.play)
    if config.play:  # Its episodes last for years there, and an evaluation would never end.
        made.episode_length_s = registry.load_env_cfg(config.mjlab_task).episode_length_s
    change_all(made, config.set)
    return made


def import_mjlab() -> Any:  # noqa: ANN401  The package.
    """Import mjlab, which says how MuJoCo renders unless something else did: that choice stays Shoal's."""
    import mujoco

    del mujoco
    renderer = os.environ.get("MUJOCO_GL")
    os.environ.setdefault("MJLAB_WARP_QUIET", "1")
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # Of torch, about functions that mjlab uses.
        import mjlab.tasks  # pyright: ignore[reportMissingImports]
    if renderer is None:
        os.environ.pop("MUJOCO_GL", None)
    return mjlab


def problem_of_mjlab() -> str | None:
    """Return why mjlab's tasks cannot be trained here, with the command that mends it; None if they can."""
    mend = f"run `uv pip install --override {OVERRIDES} mjlab=={MJLAB}`"
    wanted = {"mjlab": MJLAB} | dict(line.split("==") for line in OVERRIDES.read_text().splitlines() if "==" in line)
    installed = {name: installed_version(name) for name in wanted}
    if installed["mjlab"] is None:
        return f"mjlab is not installed: {mend}"
    wrong = [f"{name} {number} (not {wanted[name]})" for name, number in installed.items() if number != wanted[name]]
    if wrong:
        return f"mjlab's tasks were not tested with {', '.join(wrong)}: {mend}"
    needed = (re.match(r"[\w.-]+", each) for each in requires("mjlab") or () if "extra ==" not in each)
    missing = [name[0] for name in needed if name and installed_version(name[0]) is None]
    return f"mjlab needs {', '.join(missing)}, which are not installed: {mend}" if missing else None


def _registry(task: str) -> Any:  # noqa: ANN401  A module.
    """Return mjlab's registry, which has `task`."""
    problem = problem_of_mjlab()
    if problem is not None:
        raise UsageError(f"mjlab:{task} was asked for, but {problem}.")
    registry = import_mjlab().tasks.registry
    known = registry.list_tasks()
    if task not in known:
        raise UsageError(f"mjlab has no task '{task}'.{did_you_mean(task, known)} It has {', '.join(known)}.")
    return registry


def _agent_of(theirs: Any) -> RslRlConfig:  # noqa: ANN401  mjlab's RslRlOnPolicyRunnerCfg.
    """Return mjlab's configuration of an agent as Shoal's."""
    ppo = {item.name: getattr(theirs.algorithm, item.name, None) for item in fields(PpoConfig)}
    return RslRlConfig(
        num_steps_per_env=theirs.num_steps_per_env,
        obs_groups={name: tuple(groups) for name, groups in theirs.obs_groups.items()},
        actor=_model_of(theirs.actor),
        critic=_model_of(theirs.critic),
        algorithm=PpoConfig(**{name: value for name, value in ppo.items() if value is not None}),
    )


def _model_of(theirs: Any) -> ModelConfig:  # noqa: ANN401  mjlab's RslRlModelCfg.
    """Return mjlab's configuration of a network as Shoal's."""
    recurrence = {name: getattr(theirs, name) for name in ("rnn_type", "rnn_hidden_dim", "rnn_num_layers")}
    return ModelConfig(
        class_name="CNNModel" if theirs.cnn_cfg else theirs.class_name,
        hidden_dims=tuple(theirs.hidden_dims),
        activation=theirs.activation,
        obs_normalization=theirs.obs_normalization,
        distribution=DistributionConfig(**(theirs.distribution_cfg or {})),
        cnn=_cnn_of(theirs),
        **(recurrence if theirs.rnn_type is not None else {}),
    )


def _cnn_of(theirs: Any) -> CnnConfig:  # noqa: ANN401
    """Return the convolutions of such a network."""
    given: dict[str, Any] = {
        name: value for name, value in (theirs.cnn_cfg or {}).items() if _LEFT_OUT.get(name) != value
    }
    layers = len(given.get("output_channels", ()))
    if theirs.class_name.endswith("SpatialSoftmaxCNNModel"):
        given.setdefault("spatial_softmax_temperature", 1.0)
    other = given.keys() - {item.name for item in fields(CnnConfig)}
    if other:
        raise UsageError(
            f"The task's agent has convolutions with {min(other)}, which Shoal's do not have: choose another task."
        )
    for name in {"output_channels", "kernel_size", "stride", "max_pool"} & given.keys():
        given[name] = tuple(given[name]) if isinstance(given[name], list | tuple) else (given[name],) * layers
    return CnnConfig(**given)
