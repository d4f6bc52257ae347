"""What every task's environment can be told, whatever the robot.

A task adds its own settings in a subclass, beside its kernels and not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from shoal.config.checks import Config, above, at_least, within
from shoal.errors import UsageError

EngineName = Literal["auto", "warp", "native"]
OnNan = Literal["reset", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig(Config):
    """Base of every task's environment configuration.

    A subclass with slots that checks ranges of its own calls ``EnvConfig.__post_init__(self)``; ``super()``
    without arguments does not work there, because a dataclass with slots is a copy of the class that was
    written. How many environments there are is not said here: it belongs to the run, not to the task.
    """

    prefix: ClassVar[str] = "env."
    size_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that change the memory of an environment or the size of an observation: sizes that a `TaskSpec` declares
    hold where these have the task's defaults."""
    model_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that name MJCF files: a run keeps a copy of each, with all that it refers to."""

    episode_length_s: Annotated[float, above(0)] = 20.0
    """Longest time that an episode may take, in seconds of simulated time; then it is cut off (a time-out).
    The default is the one that Isaac Lab and mjlab use for locomotion."""
    step_graph: bool = True
    """Capture each environment step as one graph (on a GPU a CUDA graph) and replay it. Without, each kernel is
    launched by itself, which is much slower: for debugging, or where capturing is impossible."""

    def in_play(self) -> Self:
        """Return what `play` and `evaluate` begin with, where a policy was trained with this: the same by default."""
        return self

    def undisturbed(self) -> Self:
        """Return the same without what disturbs a policy in training, such as pushes and noise of the observations."""
        return self


@dataclass(frozen=True, kw_only=True)
class MujocoConfig(EnvConfig):
    """What every task with a MuJoCo model can be told.

    It has no slots, so that a task which exists without MuJoCo too can inherit both configurations.
    """

    size_fields: ClassVar[tuple[str, ...]] = ("nconmax", "njmax")

    engine: EngineName = "auto"
    """What simulates: `warp` is MuJoCo Warp, `native` MuJoCo's own C engine on the cores of this worker. `auto` is
    `warp` on a GPU and `native` on the CPU, where it is up to a hundred times as fast."""
    physics_dt: Annotated[float | None, above(0)] = None
    """Time step of the physics [s], whatever the model's file says. None leaves it to the file."""
    decimation: Annotated[int, at_least(1)] = 4
    """Physics steps for each action."""
    on_nan: OnNan = "reset"
    """What happens where a state or a reward is not finite any more: `reset` begins a new episode there and counts
    it; `stop` stops the training before the next gradient, and leaves a file for `shoal replay`."""
    replay_steps: Annotated[int, at_least(1)] = 50
    """With `stop`, how many steps that led to a loss the file has. They are kept of all environments, in memory."""
    lost_limit: Annotated[float, within(0, 1)] = 0.01
    """With `reset`, training stops all the same when more than this share of all environments is lost in one
    iteration. Up to three losses are borne however few environments there are, unless this is 0."""
    nconmax: Annotated[int | None, at_least(1)] = None
    """Contacts that MuJoCo Warp has room for, for each environment in the mean. None leaves its own guess."""
    njmax: Annotated[int | None, at_least(1)] = None
    """Constraints that MuJoCo Warp has room for in each environment. None leaves its own guess."""
    deterministic: bool = False
    """Make MuJoCo Warp's steps bit-identical for the same seed and actions on the same kind of GPU: contacts and
    constraints are sorted, and sums are computed in a fixed order, which takes time and memory. MuJoCo's C engine is
    deterministic without it."""

    def engine_on(self, device: str) -> Literal["warp", "native"]:
        """Return the engine that simulates on a device.

        Args:
            device: ``cpu``, or ``cuda:<index>``.
        """
        if self.engine == "auto":
            return "native" if device == "cpu" else "warp"
        if self.engine == "native" and device != "cpu":
            message = (
                f"--env.engine native was asked for on {device}, but MuJoCo's C engine runs on the CPU: "
                "pass --gpu-ids None, or --env.engine warp."
            )
            raise UsageError(message)
        return self.engine
