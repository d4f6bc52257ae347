"""The base class of tasks with a MuJoCo model: the physics is an engine's, everything around it is Warp kernels.

One step is, for all environments at once::

    actuate()    actions -> controls                                          the author's kernels
    history      with `on_nan` stop: what the physics start from is kept      shoal.sim.nan.history
    the engine   `decimation` physics steps                                   shoal.sim.engines.native or shoal.sim.engines.warp_engine
    find_lost    states that are not finite                                   shoal.sim.bookkeeping
    judge()      state -> reward terms, terminated flags                      the author's kernels
    close        as in every kernel task                                      shoal.sim.kernel_task
    place()      where done: a new episode's first state                      the author's kernels
    disturb()    anywhere: pushes, new commands                               the author's kernels, if any
    the engine   where the state was written: what follows from it
    observe()    state -> observations                                        the author's kernels

On a GPU all of it is one CUDA graph. On the CPU, MuJoCo's C engine runs on the host, and what lies between its calls
is recorded. The same kernels serve both engines, because both show the same fields (`shoal.sim.engines.engine`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
import warp as wp

from shoal.config.env import MujocoConfig
from shoal.errors import ShoalError
from shoal.sim.bookkeeping import find_lost
from shoal.sim.engines.engine import LARGEST, rows_of
from shoal.sim.engines.native import NativeEngine
from shoal.sim.graphs import HostCall, Stage, torch_stream
from shoal.sim.kernel_task import KernelTask
from shoal.sim.nan.history import History, dump_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import mujoco
    import numpy as np

    from shoal.sim.engines.engine import Engine
    from shoal.sim.nan.dump import Dump

ConfigT = TypeVar("ConfigT", bound=MujocoConfig)


class MujocoTask(KernelTask[ConfigT], Generic[ConfigT]):
    """A task of `num_envs` simulations of one MuJoCo model.

    A subclass declares what a `KernelTask` declares, returns its model in `build_model`, asks in `allocate` for the
    fields that its kernels take, and launches them in `actuate`, `judge`, `place` and `observe`.
    """

    engine: Engine
    """What simulates."""

    history: History | None = None
    """The last steps of every environment, with `on_nan` stop. Otherwise nothing is kept."""

    model: mujoco.MjModel
    """The model, for its names and numbers. Writing to it changes nothing."""

    @classmethod
    @abstractmethod
    def build_model(cls, config: ConfigT) -> mujoco.MjModel:
        """Return the model of a configuration. In a task, its `engine` is the one that was chosen, never `auto`."""

    @abstractmethod
    def actuate(self) -> None:
        """Launch what turns `self.actions` into controls."""

    @abstractmethod
    def judge(self) -> None:
        """Launch what turns the new state into `self.terms` and `self.terminated`, as `KernelTask.simulate` does."""

    @abstractmethod
    def place(self) -> None:
        """Launch what gives environments whose `self.done` is set a first state, and no others.

        The engine has set them to the model's own state already.
        """

    def disturb(self) -> None:
        """Launch what changes environments in the middle of their episodes; sets `self.moved` where it wrote state."""

    def randomize(self) -> None:
        """Launch what gives the engine's parameters their values in each environment, from `self.rng`.

        It runs when the random numbers begin anew, and so once in a training.
        """

    # What follows from them.

    @property
    def step_dt(self) -> float:
        """Simulated time between two actions [s]."""
        return float(self.model.opt.timestep) * self.config.decimation

    def data(self, name: str) -> wp.array:
        """Return a field of `MjData`, see `Engine.data`."""
        return self.engine.data(name)

    def rows(self, name: str) -> wp.array:
        """Return a field of `MjData` as rows of numbers, whatever it holds. Shape (num_envs, n)."""
        return rows_of(self.data(name))

    def parameter(self, name: str) -> wp.array:
        """Return a field of `MjModel` that differs between environments, see `Engine.parameter`."""
        return self.engine.parameter(name)

    def open(self) -> None:
        """Build the model and choose the engine.

        Raises:
            ShoalError: The configuration is not that of a task with a MuJoCo model.
        """
        if not isinstance(self.config, MujocoConfig):
            message = (
                f"The config of {type(self).__name__} is a {type(self.config).__name__}, but a MujocoTask needs a "
                "MujocoConfig: make its class a subclass of that."
            )
            raise ShoalError(message)
        config = replace(self.config, engine=self.config.engine_on(self.device.alias))
        self.model = self.build_model(config)
        if config.physics_dt is not None:
            self.model.opt.timestep = config.physics_dt
        self.engine = _open_engine(config, self.model, self.num_envs, self.device)
        self.resets_lost = self.config.on_nan == "reset"
        self.qpos, self.qvel, self.ctrl = (self.data(name) for name in ("qpos", "qvel", "ctrl"))
        self.moved = self.array("moved", dtype=wp.bool)
        """Set by kernels of `disturb` where they have written positions or speeds. Cleared by the engine."""

    def settle(self) -> None:
        """Start the engine with all that was asked for, and make its arrays known by name."""
        self.engine.start()
        self._arrays |= {f"data/{name}": array for name, array in self.engine.fields.items()}
        self._arrays |= {f"parameter/{name}": array for name, array in self.engine.parameters.items()}
        if self.config.on_nan == "stop":
            self.history = History(self.engine.step_inputs(), self.losses, self.config.replay_steps, self.device)

    def stages(self, index: int) -> list[Stage]:
        """Return what one step does, in order, with the observations going to set `index`."""
        return [
            *self._advance(),
            self.close,
            self._by_engine(partial(self.engine.reset, self.done)),
            self.place,
            self.disturb,
            *([partial(self.history.mark, self.done, self.moved)] if self.history else []),
            self._by_engine(partial(self.engine.forward, self.done, self.moved)),
            partial(self.observe_into, index),
        ]

    def _advance(self) -> list[Stage]:
        """Return what turns actions into the next state, terms and flags."""
        return [
            self.actuate,
            *([self.history.record] if self.history else []),
            self._by_engine(self.engine.step),
            self.find_lost,
            self.judge,
        ]

    def _by_engine(self, call: Callable[[], None]) -> Stage:
        return HostCall(call) if self.engine.is_on_host else call

    def simulate(self) -> None:
        """Turn actions into the next state, terms and flags."""
        for stage in self._advance():
            stage()

    def find_lost(self) -> None:
        """Launch what marks environments whose state is not finite."""
        self.launch(find_lost, inputs=[self.qpos, self.qvel, LARGEST], outputs=[self.lost])

    def reset(self) -> None:
        """Begin new episodes where done."""
        self.engine.reset(self.done)
        self.place()
        self.engine.forward(self.done, self.moved)

    def restart(self, seed: int | None = None) -> None:
        """Begin a new episode in every environment, as `KernelTask.restart` does."""
        super().restart(seed)
        if self.history:
            with torch_stream(self.device):
                self.history.clear()

    def seed_rng(self, seed: int) -> None:
        """Give every environment a random state of its own, and the parameters that follow from it."""
        super().seed_rng(seed)
        self.randomize()
        self.take_parameters()

    def take_parameters(self) -> None:
        """Let the engine take over the parameters of all environments."""
        self.engine.take_parameters()

    @property
    def host_state(self) -> Mapping[str, np.ndarray]:
        """What the engine keeps on the host."""
        return self.engine.host_state

    def dump(self, name: str, *, rank: int, iteration: int) -> Dump | None:
        """Return what led to the environments that were lost; None where none was, or nothing is kept."""
        return self.history and dump_of(self, self.history, name, rank=rank, iteration=iteration)

    def trouble(self) -> dict[str, str]:
        """Return what the engine complains about."""
        return self.engine.trouble()

    def scene(self) -> mujoco.MjModel:
        """Return the model."""
        return self.model

    def positions(self) -> wp.array:
        """Return the joint positions. Shape (num_envs, nq)."""
        return self.qpos


def _open_engine(config: MujocoConfig, model: mujoco.MjModel, num_envs: int, device: wp.Device) -> Engine:
    """Return the engine that a configuration names.

    Raises:
        UsageError: It cannot simulate this model.
    """
    places = {"num_envs": num_envs, "decimation": config.decimation, "device": device}
    if config.engine == "native":
        return NativeEngine(model, **places, threads=torch.get_num_threads())
    from shoal.sim.engines.warp_engine import WarpEngine  # It takes long to import, and the CPU does without it.

    return WarpEngine(model, **places, nconmax=config.nconmax, njmax=config.njmax, deterministic=config.deterministic)
