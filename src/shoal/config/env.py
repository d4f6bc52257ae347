"""Configuration of environments: the fields that all tasks share.

A task adds its own settings in a subclass, beside its kernels and not here.
"""

from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal, Self

from shoal.config.checks import Config, above, at_least, within
from shoal.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseEnvConfig(Config):
    """Base of every environment configuration, and the configuration of environments without settings.

    The number of environments belongs to the run, not to the task.
    """

    prefix: ClassVar[str] = "env."
    size_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that change the memory of an environment or the size of an observation: sizes that a `TaskSpec` declares
    hold where these have the task's defaults."""
    model_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that name MJCF files, or have declarations with a `file`: a run keeps a copy of each, with all that it
    refers to."""

    def model_files(self) -> dict[str, str]:
        """Return what the `model_fields` name, by dotted names: of declarations ``objects.cube.file``."""
        found: dict[str, str] = {}
        for name in self.model_fields:
            value = getattr(self, name)
            named = (
                {name: value}
                if isinstance(value, str)
                else {
                    f"{name}.{each.name}.file": getattr(getattr(value, each.name), "file", "") for each in fields(value)
                }
            )
            found |= {path: file for path, file in named.items() if file}
        return found

    def in_play(self) -> Self:
        """Return the defaults of `play` and `evaluate` for a policy that was trained with this: the same."""
        return self

    def undisturbed(self) -> Self:
        """Return the same without disturbances of training, such as pushes and observation noise."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig(BaseEnvConfig):
    """Base of the environment configuration of every task of kernels.

    A subclass with slots that checks ranges of its own calls ``EnvConfig.__post_init__(self)``; ``super()``
    without arguments does not work there, because a dataclass with slots is a copy of the class that was
    written.
    """

    episode_length_s: Annotated[float, above(0)] = 20.0
    """Longest episode [s of simulated time]; then it is truncated (a time-out). Isaac Lab's and mjlab's default."""
    step_graph: bool = True
    """Capture each environment step as one graph (on a GPU a CUDA graph). Without, each kernel is launched separately,
    which is much slower: for debugging, or if capturing is impossible."""


OLDER_ENGINES = {"older": {"warp": "mjwarp", "native": "mujoco"}}
"""Names of engines in files of older versions."""


@dataclass(frozen=True, kw_only=True)
class MujocoConfig(EnvConfig):
    """Base of the configuration of every task with a MuJoCo model.

    It has no slots, so that a task which exists without MuJoCo too can inherit both configurations.
    """

    size_fields: ClassVar[tuple[str, ...]] = ("nconmax", "njmax")

    engine: Literal["auto", "mjwarp", "mujoco"] = field(default="auto", metadata=OLDER_ENGINES)
    """Physics engine: `mjwarp` is MuJoCo Warp, `mujoco` MuJoCo's C engine on the cores of this worker. `auto` is
    `mjwarp` on a GPU and `mujoco` on the CPU, where it is up to a hundred times as fast."""
    physics_dt: Annotated[float | None, above(0)] = None
    """Time step of the physics [s], instead of the model file's. None: the file's."""
    decimation: Annotated[int, at_least(1)] = 4
    """Physics steps for each action."""
    fresh_observations: bool = False
    """Derive what observations read, such as positions of bodies and sensors, from the state at the end of a step, as
    mjlab does. Without, it is of the beginning of the last physics step, as after MuJoCo's own `mj_step`; positions and
    speeds of joints are current in any case. On the CPU it costs a forward pass for each step."""
    on_nan: Literal["reset", "stop"] = "reset"
    """Handling of non-finite states and rewards: `reset` begins a new episode of that environment and counts it; `stop`
    ends the training before the next gradient, and writes a file for `shoal replay`."""
    replay_steps: Annotated[int, at_least(1)] = 50
    """With `stop`: number of last steps in that file. They are kept in memory for all environments."""
    diverged_limit: Annotated[float, within(0, 1)] = 0.01
    """With `reset`: largest part of all environments that may diverge in one iteration before training ends. Up to
    three may diverge however few environments there are, unless this is 0."""
    nconmax: Annotated[int | None, at_least(1)] = None
    """Capacity of MuJoCo Warp for contacts, per environment on average. None: the task's, or else computed from the
    model, and enlarged where it does not suffice."""
    njmax: Annotated[int | None, at_least(1)] = None
    """Capacity of MuJoCo Warp for constraints of each environment. None: likewise."""
    deterministic: bool = False
    """Make MuJoCo Warp's steps bit-identical for the same seed and actions on the same kind of GPU: contacts and
    constraints are sorted, and sums are computed in a fixed order, which takes time and memory. MuJoCo's C engine is
    deterministic without it."""

    def engine_on(self, device: str) -> Literal["mjwarp", "mujoco"]:
        """Return the engine that simulates on a device, ``cpu`` or ``cuda:<index>``."""
        if self.engine == "auto":
            return "mujoco" if device == "cpu" else "mjwarp"
        if self.engine == "mujoco" and device != "cpu":
            raise UsageError(
                f"--env.engine mujoco was asked for on {device}, but MuJoCo's C engine runs on the CPU: "
                "pass --gpu-ids None, or --env.engine mjwarp."
            )
        return self.engine
