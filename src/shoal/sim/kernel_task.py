"""The base class of tasks whose whole step is Warp kernels: dynamics, reward, reset and observation.

A task's author writes kernels and the methods that launch them. The base class owns the order of a step, the
counting and the records; the learner's side of the boundary is `shoal.envs.vec_env`.

One step is, for all environments at once::

    simulate()   actions -> new state, reward terms, terminated flags         the author's kernels
    close_step   episode length, time-out, done, reward, sums over episodes   shoal.sim.bookkeeping
    reset()      where done: a new episode's first state                      the author's kernels
    observe()    state -> observations                                        the author's kernels

It is captured once, when the task is built, and replayed for each step (`shoal.sim.graphs`): a step runs no
Python. So these methods may do nothing but launch kernels, and what a kernel needs to remember lives in arrays,
not in Python attributes. `shoal.sim.validation` runs the kernels first, and names what is wrong with them.

**Reward terms are rates.** The reward of a step is ``sum(weight * term) * step_dt``, as in Isaac Lab and
mjlab: an episode's return does not change with the control frequency, and a term that is always 1 with weight
1 returns the episode's length in seconds. A task with `reward_per_step` leaves the time step out, for returns that
are to be compared with those of others who do.

**Observations alternate between two sets of arrays**, with one record for each. rsl_rl keeps a reference to
the observations it acted on, and copies them only after the next step. They are valid until the step after
next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import warp as wp

from shoal.config.env import EnvConfig
from shoal.errors import ShoalError, UsageError
from shoal.sim import validation
from shoal.sim.bookkeeping import close_step, seed_environments
from shoal.sim.graphs import Script, Stage, torch_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import mujoco
    import numpy as np

    from shoal.sim.command import Command
    from shoal.sim.nan.dump import Dump

ConfigT = TypeVar("ConfigT", bound=EnvConfig)


class KernelTask(ABC, Generic[ConfigT]):
    """A task of `num_envs` environments on one device. Shapes below: (num_envs, columns), or (num_envs,).

    A subclass declares the class attributes, allocates its state in `allocate`, and launches its kernels in
    `simulate`, `reset` and `observe`. For each reward term its configuration has a field ``<term>_weight``.
    What else a task in a user's own file may declare is said in `shoal.tasks.registry`.
    """

    resets_lost: bool = False
    """Whether an environment whose state or reward is not finite is reset. If not, its reward is NaN."""

    config: ConfigT
    """On the class: the defaults. On a task: the configuration it was built with."""

    observations: ClassVar[Mapping[str, int]]
    """Columns of each observation group, such as ``{"policy": 5}``. A task may set it anew in `open`."""

    num_actions: ClassVar[int]
    """Columns of the actions. A task may set it anew in `open`."""

    reward_terms: ClassVar[tuple[str, ...]]
    """Names of the columns of `terms`."""

    metrics: ClassVar[tuple[str, ...]] = ()
    """Names of the columns of `measured`: what is logged, as means, beside the reward terms."""
    best_metric: str | None = None
    """The one of `metrics` that scores checkpoints. None: the mean return, or with a curriculum nothing."""
    commands: ClassVar[Mapping[str, Command]] = MappingProxyType({})
    """What the policy is told to follow: names and ranges of the columns of `command_array`, in their order."""
    reward_per_step: ClassVar[bool] = False
    """Whether the weighted sum of the terms is the reward of a step as it is, and not a rate for each second."""

    def __init__(self, config: ConfigT, *, num_envs: int, device: str, seed: int) -> None:
        """Allocate, validate and capture the task, and begin the first episodes.

        Args:
            config: The task's configuration.
            num_envs: Number of environments.
            device: Where all arrays live and all kernels run, such as ``"cpu"`` or ``"cuda:0"``.
            seed: Decides every random number that the kernels draw.

        Raises:
            UsageError: If `num_envs` is not positive.
            ShoalError: If the task's declarations or kernels are at fault.
        """
        if num_envs < 1:
            message = f"{num_envs} environments were asked for: pass --num-envs 1 or more."
            raise UsageError(message)
        validation.check_declarations(type(self), config)
        self.config = config
        self.num_envs = num_envs
        self.seed = seed
        self.device: wp.Device = wp.get_device(device)
        self._arrays: dict[str, wp.array] = {}
        self._newest = 0
        with wp.ScopedDevice(self.device):
            self.open()
            self.max_episode_length = max(1, round(config.episode_length_s / self.step_dt))
            self._allocate_shared()
            self.allocate()
            self.settle()
            validation.check_stages(self)
            validation.check_declared(self)
            self.scripts = [self.capture(index) for index in range(2)]
            validation.check_capture(self)
        self.restart(seed)

    def _allocate_shared(self) -> None:
        """Allocate what every task has."""
        terms = len(self.reward_terms)
        self.actions = self.array("actions", self.num_actions)
        """What the learner asks for. Shape (num_envs, num_actions)."""
        self.terms = self.array("terms", terms)
        """Reward terms of this step, unweighted. Shape (num_envs, num_terms)."""
        self.terminated = self.array("terminated", dtype=wp.bool)
        """Written by `simulate`: the episode failed. Cleared by the base class."""
        self.truncated = self.array("truncated", dtype=wp.bool)
        """Written by `simulate`: the episode is cut off before its time is up. Cleared by the base class."""
        self.lost = self.array("lost", dtype=wp.bool)
        """Set where the state is not finite any more. Cleared by the base class."""
        self.losses = self.array("losses", dtype=wp.int32)
        """How often each environment was lost since `take_losses` last asked."""
        self.done = self.array("done", dtype=wp.bool)
        """The episode ended with this step, and `reset` begins a new one."""
        self.time_out = self.array("time_out", dtype=wp.bool)
        """The episode was cut off, because its time was up or it was `truncated`; it did not fail."""
        self.reward = self.array("reward")
        """Weighted sum of the terms, times `step_dt` unless `reward_per_step`."""
        self.episode_length = self.array("episode_length", dtype=wp.int32)
        """Steps since the episode began."""
        self.episode_sums = self.array("episode_sums", terms)
        """What each term has added to the return of the episode that runs."""
        self.finished_sums = self.array("finished_sums", terms)
        """The same of the last episode that ended; new where `done`."""
        if self.metrics:
            self.measured = self.array("measured", len(self.metrics))
            """What the author's kernels measure each step. Shape (num_envs, number of metrics)."""
        if self.commands:
            self.command_array = self.array("commands", len(self.commands))
            """What the policy is told to follow. The kernels draw it, in `reset` at least, and read it where it stands:
            a viewer writes what its user wants before each step. Shape (num_envs, num_commands)."""
        self.rng = self.array("rng", dtype=wp.uint32)
        """State of each environment's random numbers."""
        self.observation_sets = tuple(
            {group: self.array(f"observations/{index}/{group}", size) for group, size in self.observations.items()}
            for index in range(2)
        )
        """Both sets of observation arrays, each by group."""
        self.obs: Mapping[str, wp.array] = self.observation_sets[0]
        """The set that `observe` writes, by group."""
        per_step = 1.0 if self.reward_per_step else self.step_dt
        weights = [getattr(self.config, f"{term}_weight") * per_step for term in self.reward_terms]
        self.weights = wp.array(weights, dtype=wp.float32, device=self.device)
        """What one step of a term that is 1 adds to the return. Shape (num_terms,)."""

    def open(self) -> None:
        """Do what comes before all else, and what `step_dt` needs."""

    def settle(self) -> None:
        """Do what follows `allocate`, before the first kernel runs."""

    # What the author writes.

    @property
    @abstractmethod
    def step_dt(self) -> float:
        """Simulated time between two actions [s]."""

    @abstractmethod
    def allocate(self) -> None:
        """Make the task's arrays with `self.array`, and whatever constants its kernels take."""

    @abstractmethod
    def simulate(self) -> None:
        """Launch what turns `self.actions` into the next state, `self.terms` and `self.terminated`.

        Every reward term is written for every environment. The terminated flag needs to be written only where
        an environment failed.
        """

    @abstractmethod
    def reset(self) -> None:
        """Launch what gives environments whose `self.done` is set a new episode's first state, and no others.

        Random numbers come from `self.rng`, one state for each environment, which the kernel writes back:
        then a task that is restored continues exactly. Warp's ``randf`` advances the state that it is given.
        """

    @abstractmethod
    def observe(self) -> None:
        """Launch what fills the arrays of `self.obs` from the state, every column for every environment."""

    def scene(self) -> mujoco.MjModel:
        """Return a model of what can be seen of one environment: films and viewers draw it.

        Raises:
            UsageError: The task has no picture.
        """
        message = f"The task {type(self).__name__} cannot be shown, because it has no scene(): it can only be trained."
        raise UsageError(message)

    def positions(self) -> wp.array:
        """Return ``qpos`` of the scene, if there is one, in every environment. Shape (num_envs, the scene's nq)."""
        raise NotImplementedError

    def deployment(self) -> dict[str, Any]:
        """Return what a controller must know besides the network, by name; exports carry it.

        Finite numbers, strings, and lists of them. A task adds what its actions mean, in the order of their columns:
        ``joint_names``, ``default_joint_pos`` [rad or m], ``action_scale``.
        """
        return {"control_period_s": self.step_dt}

    def curriculum(self) -> dict[str, np.ndarray]:
        """Return what a curriculum has come to, as counts by name. Waits for the device.

        Counts are of environments, such as how many are on each level, and are added up over all ranks: they go into
        checkpoints, and a training that is resumed hands them to every rank, however many there are then.
        """
        return {}

    def take_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Take up what `curriculum` has returned, added up over all ranks. A new episode begins everywhere after it.

        Counts of another shape are of another curriculum, and are left alone.
        """

    def array(self, name: str, columns: int | None = None, dtype: type = wp.float32) -> wp.array:
        """Return a new array of zeros with one row for each environment, known to the task by `name`.

        Args:
            name: What the array is called in `arrays`, in checkpoints and in errors.
            columns: Numbers in each row; None makes an array with one dimension.
            dtype: Any Warp type.
        """
        if name in self._arrays:
            message = (
                f"{type(self).__name__} asked for a second array named '{name}': names must differ. "
                f"Taken are {', '.join(self._arrays)}."
            )
            raise ShoalError(message)
        shape = self.num_envs if columns is None else (self.num_envs, columns)
        made = wp.zeros(shape, dtype=dtype, device=self.device)
        self._arrays[name] = made
        return made

    def launch(
        self,
        kernel: Callable[..., None],
        inputs: Sequence[Any],
        outputs: Sequence[Any] = (),
        *,
        dim: int | tuple[int, ...] | None = None,
    ) -> None:
        """Launch `kernel` on the task's device, with one thread for each environment.

        Args:
            kernel: A function decorated with ``@wp.kernel``.
            inputs: Its first arguments.
            outputs: Its remaining arguments.
            dim: How many threads to launch instead, along each of the indices that ``wp.tid()`` returns.
        """
        wp.launch(
            kernel,  # pyright: ignore[reportArgumentType] - the decorator turns a function into a kernel
            dim=self.num_envs if dim is None else dim,
            inputs=inputs,
            outputs=outputs,
            device=self.device,
        )

    # What the learner's side uses.

    @property
    def arrays(self) -> Mapping[str, wp.array]:
        """Every array of the task's state, by name. A task whose arrays are all restored goes on exactly."""
        return MappingProxyType(self._arrays)

    @property
    def host_state(self) -> Mapping[str, np.ndarray]:
        """What a simulator keeps in arrays of its own, by name and live. A task is restored with both."""
        return {}

    def take_parameters(self) -> None:
        """Do what has to follow where arrays of parameters were put back, see `MujocoTask.parameter`."""

    def take_losses(self) -> np.ndarray:
        """Return how often each environment was lost since the last call. Shape (num_envs,). Waits for the device."""
        losses = self.losses.numpy().copy()
        self.losses.zero_()
        return losses

    def dump(self, name: str, *, rank: int, iteration: int) -> Dump | None:
        """Return what led to the environments that were lost since `take_losses` last asked, if that is kept.

        Args:
            name: What is trained.
            rank: This rank.
            iteration: The iteration that runs, counted from 1.
        """
        del name, rank, iteration
        return None

    def trouble(self) -> dict[str, str]:
        """Return what went wrong in some environments since the last call: a sentence by kind. Waits for the device."""
        return {}

    @property
    def newest(self) -> int:
        """Index in `observation_sets` of the observations that the last step, or the last restart, wrote."""
        return self._newest

    @property
    def is_recorded(self) -> bool:
        """Whether a step costs one launch."""
        return all(script.is_recorded for script in self.scripts)

    def step(self) -> None:
        """Advance all environments by one step with the actions in `self.actions`. A GPU is not waited for."""
        self._newest = 1 - self._newest
        self.replay(self._newest)

    def restart(self, seed: int | None = None) -> None:
        """Begin a new episode in every environment.

        Args:
            seed: Starts the random numbers anew; None goes on with those at hand.
        """
        with torch_stream(self.device):
            if seed is not None:
                self.seed_rng(seed)
            for array in (self.terminated, self.truncated, self.lost, self.episode_length, self.episode_sums):
                array.zero_()
            self.done.fill_(value=True)
            self.time_out.fill_(value=True)  # Nothing has failed.
            self.reset()
            self.done.zero_()
            self.time_out.zero_()
            self.observe_into(self._newest)

    # How a step is made; `shoal.sim.validation` takes it apart.

    def seed_rng(self, seed: int) -> None:
        """Give every environment a random state that follows from `seed` and its index."""
        # Warp's kernels take seeds as signed 32-bit numbers.
        self.launch(seed_environments, inputs=[seed % 2**31], outputs=[self.rng])

    def capture(self, index: int) -> Script:
        """Return a new capture of a step whose observations go to set `index`."""
        return Script(self.stages(index), self.device, captures=self.config.step_graph)

    def replay(self, index: int) -> None:
        """Replay the captured step whose observations go to set `index`."""
        self.scripts[index].replay()

    def stages(self, index: int) -> list[Stage]:
        """Return what one step does, in order, with the observations going to set `index`."""
        return [self.simulate, self.close, self.reset, partial(self.observe_into, index)]

    def run_stages(self, index: int) -> None:
        """Do the same as `replay`, stage by stage and kernel by kernel."""
        for stage in self.stages(index):
            stage()

    def close(self) -> None:
        """Launch what counts the step and closes episodes."""
        self.launch(
            close_step,
            inputs=[self.terms, self.weights, self.max_episode_length, self.resets_lost, self.lost],
            outputs=[
                self.terminated,
                self.truncated,
                self.episode_length,
                self.episode_sums,
                self.reward,
                self.done,
                self.time_out,
                self.finished_sums,
                self.losses,
            ],
        )

    def observe_into(self, index: int) -> None:
        """Launch what writes the observations of set `index`."""
        self.obs = self.observation_sets[index]
        self.observe()
