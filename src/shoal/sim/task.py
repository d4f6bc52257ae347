"""The base class of tasks: arrays with one row for each environment, and a step that is a list of named stages.

The stages of a step are, in order, where a task has them::

    act        actions -> controls
    physics    controls -> new state
    reward     reward terms, metrics, terminated flags
    close      episode length, time-out, done, reward, sums over episodes     shoal.sim.bookkeeping
    final      the last observations of episodes, where they are asked for
    reset      where done: a new episode's first state
    interval   in running episodes: pushes, new commands
    derive     what observations read of the state that was written
    observe    state -> observations

`restart` and the validation run some of them by name. A step is captured once, when the task is built, and launched for
each step (`shoal.sim.graphs`): it runs no Python. So stages only launch kernels, and what changes from step to step
lives in arrays (`shoal.sim.validation`).

**Reward terms are rates.** The reward of a step is ``sum(weight * term) * step_dt``, as in Isaac Lab and mjlab: an
episode's return does not change with the control frequency, and a term that is always 1 with weight 1 returns the
episode's length in seconds. `reward_per_step` leaves the time step out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
import warp as wp

from shoal.config.env import EnvConfig
from shoal.errors import NoPictureError, ShoalError, UsageError
from shoal.sim import validation
from shoal.sim.bookkeeping import close_step, seed_environments
from shoal.sim.graphs import Call, StepGraph, run_all, torch_stream
from shoal.sim.nan.dump import Dump

if TYPE_CHECKING:
    import mujoco

    from shoal.sim.render.marks import Mark

Stage: TypeAlias = tuple[str, Call]
"""The name of a part of a step, and a function that only launches kernels, or a `HostStage`."""
ConfigT = TypeVar("ConfigT", bound=EnvConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRange:
    """Range and unit of one column of a task's commands, for viewers and exports."""

    low: float
    """Lowest value."""
    high: float
    """Highest value."""
    unit: str = ""
    """Unit, such as ``"m/s"``."""


class Task(ABC, Generic[ConfigT]):
    """A task of `num_envs` environments on one device. Shapes below: (num_envs, columns), or (num_envs,).

    See `shoal.tasks.registry` for what else a task in a user's own file may declare.
    """

    resets_diverged: bool = False
    """Whether an environment whose state or reward is not finite is reset. If not, its reward is NaN."""

    config: ConfigT
    """On the class: the defaults. On a task: the configuration it was built with."""

    observations: ClassVar[Mapping[str, int]]
    """Columns of each observation group, such as ``{"policy": 5}``. A task may set its own in `build`."""

    image_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    """Channels, height and width of each observation group of images, whose columns are in that order."""
    image_tiles: Mapping[str, Sequence[tuple[int, int, int]]] = MappingProxyType({})
    """Of those that videos and viewers show, channels that are red, green and blue of each tile, see `Images`."""

    num_actions: ClassVar[int]
    """Columns of the actions. A task may set its own in `build`."""

    reward_terms: ClassVar[tuple[str, ...]]
    """Names of the columns of `terms`."""

    metrics: ClassVar[tuple[str, ...]] = ()
    """Names of the columns of `metric_values`: logged as means, beside the reward terms."""
    best_metric: str | None = None
    """The one of `metrics` that scores checkpoints. None: the mean return, or with a curriculum nothing."""
    commands: ClassVar[Mapping[str, CommandRange]] = MappingProxyType({})
    """Names and ranges of the columns of `command_array`, in their order."""
    observation_terms: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    """Columns of each observation term by group, in their order; empty without terms."""
    terminations: ClassVar[tuple[str, ...]] = ()
    """Names of the columns of `done_terms`: the part of episodes that each ended is logged."""
    done_terms: wp.array
    """Which terminations hold after this step, if there are any. Shape (num_envs, number of terminations)."""
    checked_state: tuple[wp.array | None, wp.array | None] = (None, None)
    """Positions and velocities whose numbers show whether an environment has diverged. Shapes (num_envs, n)."""
    timers: Sequence[wp.array] = ()
    """Times that are left until something happens, which the checks shorten. Shapes (num_envs, n)."""
    log: Mapping[str, float] = MappingProxyType({})
    """Further numbers that are logged with each step, by name."""
    reward_per_step: ClassVar[bool] = False
    """Whether the weighted sum of the terms is the reward of a step as it is, and not a rate for each second."""

    def __init__(self, config: ConfigT, *, num_envs: int, device: str, seed: int) -> None:
        """Allocate, validate and capture the task, and begin the first episodes.

        Arrays live and kernels run on `device`, such as ``"cpu"`` or ``"cuda:0"``; `seed` is that of random numbers.

        Raises:
            UsageError: If `num_envs` is not positive.
            ShoalError: If the task's declarations or kernels are at fault.
        """
        if num_envs < 1:
            raise UsageError(f"{num_envs} environments were asked for: pass --num-envs 1 or more.")
        self.configure(config, num_envs, device, seed)
        with wp.ScopedDevice(self.device):
            self.build()
            self.max_episode_length = max(1, round(config.episode_length_s / self.step_dt))
            self._allocate_shared()
            self.allocate()
            self.after_allocate()
            validation.check_step(self)
            self.graph = self.capture()
            validation.check_capture(self)
        self.restart(seed)

    def configure(self, config: ConfigT, num_envs: int, device: str, seed: int) -> None:
        """Set what `build` needs, once the declarations are checked."""
        self.check_declarations(config)
        self.config = config
        self.num_envs = num_envs
        self.seed = seed
        self.device: wp.Device = wp.get_device(device)
        self._arrays: dict[str, wp.array] = {}

    build_once = classmethod(validation.build_once)

    def _allocate_shared(self) -> None:
        """Allocate the arrays of every task."""
        terms = len(self.reward_terms)
        self.actions = self.array("actions", self.num_actions)
        """Actions of the policy. Shape (num_envs, num_actions)."""
        self.terms = self.array("terms", terms)
        """Reward terms of this step, unweighted. Shape (num_envs, num_terms)."""
        self.terminated = self.array("terminated", dtype=wp.bool)
        """Written by the stages before `close`: the episode failed. Cleared by the base class."""
        self.truncated = self.array("truncated", dtype=wp.bool)
        """Written likewise: the episode is cut off before its time is up. Cleared by the base class."""
        self.diverged = self.array("diverged", dtype=wp.bool)
        """Set where the state is not finite any more. Cleared by the base class."""
        self.divergences = self.array("divergences", dtype=wp.int32)
        """Number of times that each environment diverged since `take_divergences`."""
        self.bad_terms = self.array("bad_terms", dtype=wp.int32)
        """Number of the first reward term of each environment that was not finite since it was cleared, or 0."""
        self.done = self.array("done", dtype=wp.bool)
        """The episode ended with this step, and `reset` begins a new one."""
        self.time_out = self.array("time_out", dtype=wp.bool)
        """The episode was cut off, because its time was up or it was `truncated`; it did not fail."""
        self.reward = self.array("reward")
        """Weighted sum of the terms, times `step_dt` unless `reward_per_step`."""
        self.episode_length = self.array("episode_length", dtype=wp.int32)
        """Steps since the episode began."""
        self.episode_sums = self.array("episode_sums", terms)
        """Sum of each weighted term over the running episode."""
        self.finished_sums = self.array("finished_sums", terms)
        """The same of the last episode that ended; new where `done`."""
        if self.metrics:
            self.metric_values = self.array("metrics", len(self.metrics))
            """Metrics of this step, written by the author's kernels. Shape (num_envs, number of metrics)."""
        if self.commands:
            self.command_array = self.array("commands", len(self.commands))
            """Commands to the policy. The kernels draw it, in `reset` at least. Shape (num_envs, num_commands)."""
            self.commands_held = wp.zeros(1, dtype=wp.int32, device=self.device)
            """Whether a viewer writes the commands before each step: kernels of terms then leave them alone."""
        self.rng = self.array("rng", dtype=wp.uint32)
        """Random state of each environment."""
        self.first_env = wp.zeros(1, dtype=wp.int32, device=self.device)
        """Index of the first environment, see `restart`. For kernels whose environments take turns."""
        self.obs: Mapping[str, wp.array] = {
            group: self.array(f"observations/{group}", size) for group, size in self.observations.items()
        }
        """Observations by group, written by `observe`."""
        self.final_obs: Mapping[str, wp.array] = {}
        """Observations before the reset, by group, valid where `done`; empty unless `keep_final_observations`."""
        self.per_step = 1.0 if self.reward_per_step else self.step_dt
        weights = [self.weight_of(term) * self.per_step for term in self.reward_terms]
        self.weights = wp.array(weights, dtype=wp.float32, device=self.device)
        """Contribution of one step of a term of 1 to the return. Shape (num_terms,)."""

    # Written by the author.

    def check_declarations(self, config: ConfigT) -> None:
        """Refuse class attributes or a configuration that cannot be meant."""

    def declare(self, **declarations: object) -> None:
        """Set what the class declares again for this task, in `build`."""
        for name, value in declarations.items():
            setattr(self, name, value)

    @abstractmethod
    def weight_of(self, term: str) -> float:
        """Return the weight of a reward term."""

    def build(self) -> None:
        """Prepare what `step_dt` and the declarations need, before any array is allocated."""

    @property
    @abstractmethod
    def step_dt(self) -> float:
        """Simulated time between two actions [s]."""

    @abstractmethod
    def allocate(self) -> None:
        """Make the task's arrays with `self.array`, and the constants of its kernels."""

    def after_allocate(self) -> None:
        """Finish what `allocate` has prepared, before the first kernel runs."""

    @abstractmethod
    def stages(self) -> list[Stage]:
        """Return the stages of one step, in order, each with its name: see above."""

    def scene(self) -> mujoco.MjModel:
        """Return the model that videos and viewers draw for one environment.

        Raises:
            NoPictureError: The task has no picture.
        """
        message = f"The task {type(self).__name__} cannot be shown, because it has no scene(): it can only be trained."
        raise NoPictureError(message)

    def positions(self) -> wp.array:
        """Return ``qpos`` of the scene, if there is one, in every environment. Shape (num_envs, the scene's nq)."""
        raise NotImplementedError

    def marks(self, row: Mapping[str, np.ndarray]) -> list[Mark]:
        """Return what videos and viewers draw beside the scene for one environment, see `shoal.sim.render.marks`.

        It is called on the host when something is drawn, and never by a step. `row` has the environment's row of each
        array of `arrays` by name; of a field of `MjData` by MuJoCo's name. Only what is read is copied: each call must
        read the same names.
        """
        del row
        return []

    def scan(self, row: Mapping[str, np.ndarray]) -> list[Mark]:
        """Return marks of what sensors of distance see, as `marks` does; viewers draw them on request."""
        del row
        return []

    def deployment(self) -> dict[str, Any]:
        """Return what a controller needs besides the network, by name; exports carry it.

        Finite numbers, strings, and lists of them. A task adds what its actions mean, in the order of their columns:
        ``joint_names``, ``default_joint_pos`` [rad or m], ``action_scale``.
        """
        return {"control_period_s": self.step_dt}

    def curriculum(self) -> dict[str, np.ndarray]:
        """Return the state of the curriculum as counts of environments by name. Waits for the device.

        Counts are added up over all ranks for a checkpoint, and a resumed training hands the sums to every rank.
        """
        return {}

    def set_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Restore sums of `curriculum` over all ranks, unless of another shape. New episodes begin everywhere after."""

    def follow_metrics(self, means: Mapping[str, float]) -> None:
        """Follow the metrics of an iteration of the training, by name: means over all ranks, the same on each."""

    def record(self) -> Mapping[str, wp.array]:
        """Return further values of the present state for a recording, by name. Shapes (num_envs, columns)."""
        return {}

    def array(self, name: str, columns: int | None = None, dtype: type = wp.float32) -> wp.array:
        """Return a new array of zeros with one row for each environment.

        `name` is its key in `arrays` and in checkpoints, and its name in errors. A row has so many `columns`; None
        makes an array with one dimension.
        """
        if name in self._arrays:
            raise ShoalError(
                f"{type(self).__name__} asked for a second array named '{name}': names must differ. "
                f"Taken are {', '.join(self._arrays)}."
            )
        shape = self.num_envs if columns is None else (self.num_envs, columns)
        self._arrays[name] = wp.zeros(shape, dtype=dtype, device=self.device)
        return self._arrays[name]

    def launch(
        self,
        kernel: Callable[..., None],
        inputs: Sequence[Any],
        outputs: Sequence[Any] = (),
        *,
        dim: int | tuple[int, ...] | None = None,
    ) -> None:
        """Launch `kernel` on the task's device, with one thread for each environment, or `dim` threads."""
        any_kernel: Any = kernel  # The decorator turns a function into a kernel.
        wp.launch(
            any_kernel, dim=self.num_envs if dim is None else dim, inputs=inputs, outputs=outputs, device=self.device
        )

    @property
    def arrays(self) -> Mapping[str, wp.array]:
        """Every array of the task's state, by name. A task whose arrays are all restored continues exactly."""
        return MappingProxyType(self._arrays)

    @property
    def host_state(self) -> Mapping[str, np.ndarray]:
        """State of a simulator on the host, live, by name. A task is restored with both."""
        return {}

    def apply_parameters(self) -> None:
        """Derive what follows from arrays of parameters, see `Engine.parameter`."""

    def take_divergences(self) -> np.ndarray:
        """Return and clear the number of divergences of each environment. Shape (num_envs,). Waits for the device."""
        divergences = self.divergences.numpy().copy()
        self.divergences.zero_()
        return divergences

    def dump(self, name: str, *, rank: int, iteration: int) -> Dump | None:
        """Return the last steps of the environments that diverged since `take_divergences`, if they are kept."""
        del name, rank, iteration

    def take_warnings(self) -> dict[str, str]:
        """Return what went wrong in some environments since the last call: a sentence by kind. Waits for the device."""
        return {}

    def step(self) -> None:
        """Advance all environments by one step with the actions in `self.actions`. Does not wait for a GPU."""
        self.graph.launch()

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Begin a new episode in every environment.

        `seed` begins the random numbers again; None continues the present ones. `first` is the index of the first
        environment: with 64 they get the random numbers that environments 64, 65, ... of a larger task have.
        """
        with torch_stream(self.device):
            if seed is not None:
                self.seed_rng(seed, first)
            for array in (self.terminated, self.truncated, self.diverged, self.episode_length, self.episode_sums):
                array.zero_()
            self.done.fill_(value=True)
            self.time_out.fill_(value=True)  # Nothing has failed.
            self.run("reset", "derive")
            self.done.zero_()
            self.time_out.zero_()
            self.run("observe")

    def run(self, *names: str) -> None:
        """Run the stages of some names, or all, in the order of a step."""
        run_all([call for name, call in self.stages() if not names or name in names])

    def seed_rng(self, seed: int, first: int = 0) -> None:
        """Give every environment a random state that follows from `seed` and its index, counted from `first`."""
        self.first_env.fill_(first)
        self.launch(seed_environments, inputs=[seed % 2**31, first], outputs=[self.rng])  # Seeds have 31 bits.

    def final_stages(self, observing: Sequence[Stage]) -> list[Stage]:
        """Return the stages that keep the last observations of episodes, if any; `observing` are those of a step."""
        copies = [partial(wp.copy, kept, self.obs[group]) for group, kept in self.final_obs.items()]
        return [("final", call) for call in (*(call for _, call in observing), *copies)] if copies else []

    def keep_final_observations(self) -> None:
        """Observe before the reset, too, in every step from now on, which draws twice as many random numbers."""
        self.final_obs = {group: wp.zeros_like(array) for group, array in self.obs.items()}
        self.graph = self.capture()

    def capture(self) -> StepGraph:
        """Return a new capture of a step."""
        return StepGraph([call for _, call in self.stages()], self.device, captures=self.config.step_graph)

    def close(self) -> None:
        """Launch the kernel that counts the step and closes episodes."""
        self.launch(
            close_step,
            inputs=[
                *(self.terms, self.weights, self.max_episode_length, self.resets_diverged, *self.checked_state),
                *(self.diverged, self.terminated, self.truncated, self.episode_length, self.episode_sums, self.reward),
                *(self.done, self.time_out, self.finished_sums, self.divergences, self.bad_terms),
            ],
        )
