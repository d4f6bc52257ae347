"""The base class of tasks with a MuJoCo model: the physics is an engine's, everything around it is Warp kernels.

One step is, for all environments at once::

    apply_actions()    actions -> controls                                    the author's kernels
    history            with `on_nan` stop: the physics' inputs are kept       shoal.sim.nan.history
    the engine         `decimation` physics steps                             shoal.sim.engines
    compute_rewards()  state -> reward terms, terminated flags                the author's kernels
    close              as in every kernel task                                shoal.sim.kernel_task
    reset_state()      where done: a new episode's first state                the author's kernels
    interval_events()  in running episodes: pushes, new commands              the author's kernels, if any
    the engine         where the state was written: derived fields
    observe()          state -> observations                                  the author's kernels

On a GPU all of it is one CUDA graph. On the CPU, MuJoCo's C engine runs on the host, and the stages between its calls
are captured. The same kernels serve both engines, because both have the same fields (`shoal.sim.engines.engine`).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, Generic, TypeVar

import mujoco
import numpy as np
import torch
import warp as wp

from shoal.config.env import MujocoConfig
from shoal.config.plain import to_plain
from shoal.errors import ShoalError
from shoal.sim.engines.engine import Engine, rows_of
from shoal.sim.engines.native import NativeEngine
from shoal.sim.graphs import HostStage, Stage, run_all, torch_stream
from shoal.sim.kernel_task import KernelTask
from shoal.sim.nan.dump import Dump
from shoal.sim.nan.history import History

ConfigT = TypeVar("ConfigT", bound=MujocoConfig)


class MujocoTask(KernelTask[ConfigT], Generic[ConfigT]):
    """A task of `num_envs` simulations of one MuJoCo model.

    A subclass declares what a `KernelTask` declares, returns its model in `build_model`, asks in `allocate` for the
    fields that its kernels take, and launches them in `apply_actions`, `compute_rewards`, `reset_state` and `observe`.
    """

    engine: Engine
    """The physics engine."""

    history: History | None = None
    """The last steps of every environment, with `on_nan` stop. Otherwise nothing is kept."""

    model: mujoco.MjModel
    """The model, for its names and numbers. Writing to it changes nothing."""

    capacities: ClassVar[tuple[int, int] | None] = None
    """Contacts and constraints that MuJoCo Warp has room for in each environment, where `--env.nconmax` and
    `--env.njmax` do not say it. They hold for the model of this class's `config`. None: computed from the model."""

    @classmethod
    @abstractmethod
    def build_model(cls, config: ConfigT) -> mujoco.MjModel:
        """Return the model of a configuration. In a task, its `engine` is the one that was chosen, never `auto`."""

    @abstractmethod
    def apply_actions(self) -> None:
        """Launch kernels that turn `self.actions` into controls."""

    @abstractmethod
    def compute_rewards(self) -> None:
        """Launch kernels that compute `self.terms` and `self.terminated`, as in `KernelTask.simulate`."""

    @abstractmethod
    def reset_state(self) -> None:
        """Launch kernels that write a first state where `self.done` is set, and nowhere else.

        The engine has set it to the model's own state already.
        """

    def interval_events(self) -> None:
        """Launch kernels that change running episodes; they set `self.moved` where they write positions or speeds."""

    def randomize(self) -> None:
        """Startup randomisation: launch kernels that write the engine's parameters in each environment.

        It runs when the random numbers begin anew, and so once in a training.
        """

    # The parts of a kernel task.

    @property
    def step_dt(self) -> float:
        """Simulated time between two actions [s]."""
        return float(self.model.opt.timestep) * self.config.decimation

    def data(self, name: str) -> wp.array:
        """Return a field of `MjData`, see `Engine.data`."""
        return self.engine.data(name)

    def rows(self, name: str) -> wp.array:
        """Return a field of `MjData` as rows of numbers. Shape (num_envs, n)."""
        return rows_of(self.data(name))

    def parameter(self, name: str) -> wp.array:
        """Return a field of `MjModel` that differs between environments, see `Engine.parameter`."""
        return self.engine.parameter(name)

    def build(self) -> None:
        """Build the model and the engine.

        Raises:
            ShoalError: The configuration is not that of a task with a MuJoCo model.
            UsageError: The engine cannot simulate this model.
        """
        if not isinstance(self.config, MujocoConfig):
            raise ShoalError(
                f"The config of {type(self).__name__} is a {type(self.config).__name__}, but a MujocoTask needs a "
                "MujocoConfig: make its class a subclass of that."
            )
        config = replace(self.config, engine=self.config.engine_on(self.device.alias))
        self.model = self.build_model(config)
        if config.physics_dt is not None:
            self.model.opt.timestep = config.physics_dt
        sizes = {"num_envs": self.num_envs, "decimation": config.decimation, "device": self.device}
        if config.engine == "native":
            self.engine = NativeEngine(self.model, **sizes, threads=torch.get_num_threads())
        else:
            from shoal.sim.engines.warp_engine import WarpEngine  # Slow to import, and not needed on the CPU.

            self.engine = WarpEngine(
                self.model,
                **sizes,
                declared=self._declared_capacities(),
                chosen={
                    name: value for name in MujocoConfig.size_fields if (value := getattr(config, name)) is not None
                },
                deterministic=config.deterministic,
            )
        self.resets_diverged = self.config.on_nan == "reset"
        self.qpos, self.qvel, self.ctrl = (self.data(name) for name in ("qpos", "qvel", "ctrl"))
        self.checked_state = self.qpos, self.qvel
        self.moved = self.array("moved", dtype=wp.bool)
        """Set by kernels of `interval_events` where they have written positions or speeds. Cleared by the engine."""

    def _declared_capacities(self) -> dict[str, int]:
        """Return `capacities` by their flags; nothing where another model than the declaring class's is simulated."""
        declaring = next(each for each in type(self).__mro__ if "capacities" in vars(each))
        if self.capacities is None or any(
            to_plain(getattr(self.config, name)) != to_plain(getattr(declaring.config, name))
            for name in self.config.model_fields
        ):
            return {}
        return dict(zip(MujocoConfig.size_fields, self.capacities, strict=True))

    def after_allocate(self) -> None:
        """Start the engine with all fields that were asked for, and declare its arrays."""
        self.engine.start()
        self._arrays |= {f"data/{name}": array for name, array in self.engine.fields.items()}
        self._arrays |= {f"parameter/{name}": array for name, array in self.engine.parameters.items()}
        if self.config.on_nan == "stop":
            inputs = self.engine.step_inputs()
            self.history = History(inputs, self.divergences, self.config.replay_steps, self.device)

    def stages(self) -> list[Stage]:
        """Return the stages of one step, in order."""
        fresh = self.config.fresh_observations
        return [
            *self._physics(),
            self.close,
            *self.final_stages(),
            self._by_engine(partial(self.engine.reset, self.done)),
            self.reset_state,
            self.interval_events,
            *([partial(self.history.mark, self.done, self.moved)] if self.history else []),
            self._by_engine(partial(self.engine.forward, self.done, self.moved, all_fields=False, everywhere=fresh)),
            *self.observe_stages(),
        ]

    def _physics(self) -> list[Stage]:
        """Return the stages from actions to the next state, terms and flags."""
        return [
            self.apply_actions,
            *([self.history.keep] if self.history else []),
            self._by_engine(self.engine.step),
            *self.reward_stages(),
        ]

    def reward_stages(self) -> list[Stage]:
        """Return the stages of `compute_rewards`."""
        return [self.compute_rewards]

    def _by_engine(self, call: Callable[[], None]) -> Stage:
        return HostStage(call) if self.engine.is_on_host else call

    def simulate(self) -> None:
        """Turn actions into the next state, terms and flags."""
        run_all(self._physics())

    def reset(self) -> None:
        """Begin new episodes where done."""
        self.engine.reset(self.done)
        self.reset_state()
        self.engine.forward(self.done, self.moved)

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Begin a new episode in every environment, as `KernelTask.restart` does."""
        super().restart(seed, first)
        if self.history:
            with torch_stream(self.device):
                self.history.clear()

    def seed_rng(self, seed: int, first: int = 0) -> None:
        """Give every environment a random state of its own, and randomised parameters."""
        super().seed_rng(seed, first)
        self.randomize()
        self.apply_parameters()

    def apply_parameters(self) -> None:
        """Let the engine read the parameters of all environments."""
        self.engine.apply_parameters()

    @property
    def host_state(self) -> Mapping[str, np.ndarray]:
        """The engine's state on the host."""
        return self.engine.host_state

    def dump(self, name: str, *, rank: int, iteration: int) -> Dump | None:
        """Return the last steps of the environments that diverged; None where there are none, or nothing is kept."""
        if self.history is None:
            return None
        where = {"task": name, "rank": rank, "iteration": iteration, "seed": self.seed}
        scene = self.scene()
        return self.history.dump(self.engine, None if scene is self.model else scene, **where)

    def take_warnings(self) -> dict[str, str]:
        """Return the engine's warnings. Where its capacities did not suffice, it has more from now on."""
        warnings = self.engine.take_warnings()
        if self.engine.planned:
            del self.graph  # Its memory is free for the next.
            with torch_stream(self.device):
                self.engine.enlarge()
                self.graph = self.capture()
        return warnings

    def scene(self) -> mujoco.MjModel:
        """Return the model."""
        return self.model

    def positions(self) -> wp.array:
        """Return the joint positions. Shape (num_envs, nq)."""
        return self.qpos
