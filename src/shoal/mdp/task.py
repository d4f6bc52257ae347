"""The base class of tasks made of terms: a MuJoCo model, whose physics an engine computes, with terms around it.

The terms of each stage of a step become one Warp kernel (`shoal.mdp.stages`)::

    act        actions -> controls
    physics    with `on_nan` stop: the physics' inputs are kept       shoal.sim.nan.history
               `decimation` physics steps, actions act before each    shoal.sim.engines
    reward     contacts, terminations, rewards, metrics
    close      as in every task                                       shoal.sim.task
    reset      where done: a new episode's first state
    interval   in running episodes: pushes, new commands
    derive     the engine derives fields where the state was written
    observe    state -> observations

On a GPU all of it is one CUDA graph. On the CPU, MuJoCo's C engine runs on the host, between captured stages. The same
kernels serve both engines, because both have the same fields (`shoal.sim.engines.engine`).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import mujoco
import numpy as np
import warp as wp

from shoal.errors import ShoalError
from shoal.mdp.accesses import model_field, writes
from shoal.mdp.binding import Binder
from shoal.mdp.bound import bind_terms, number_commands
from shoal.mdp.config import TermsConfig
from shoal.mdp.curricula import Curricula
from shoal.mdp.deployment import deployment_of
from shoal.mdp.ground import Ground
from shoal.mdp.kernels import generate, struct_of
from shoal.mdp.names import Names
from shoal.mdp.observing import columns_by_term, image_shapes, image_tiles
from shoal.mdp.scene import checked, compile_scene
from shoal.mdp.sensors import build_tracers
from shoal.mdp.stages import WRITTEN, stages_of
from shoal.mdp.state import state_of
from shoal.mdp.torch_terms import TorchTerms
from shoal.sim.engines.build import build_engine, declared_capacities
from shoal.sim.engines.engine import Engine, dtype_of
from shoal.sim.graphs import Call, HostStage, torch_stream
from shoal.sim.nan.dump import Dump
from shoal.sim.nan.history import History
from shoal.sim.render.marks import Mark
from shoal.sim.render.surroundings import extent
from shoal.sim.task import Stage, Task
from shoal.sim.validation import check_best_metric

logger = logging.getLogger(__name__)

ConfigT = TypeVar("ConfigT", bound=TermsConfig)


class TermsTask(Task[ConfigT], Generic[ConfigT]):
    """A MuJoCo model with terms. A subclass returns robot and ground in `build_spec`, or the whole in `build_model`.

    `shoal.mdp.state` has what functions of terms read.
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
    def build_spec(cls, config: ConfigT) -> mujoco.MjSpec:  # noqa: ARG003  For subclasses.
        """Return the robot and its ground. In a task, `config.engine` is the one that was chosen, never `auto`."""
        raise ShoalError(f"{cls.__name__} has no model: return its robot and ground as an MjSpec in build_spec().")

    @classmethod
    def build_model(cls, config: ConfigT) -> mujoco.MjModel:
        """Return the scene: `build_spec`, with the objects and sensors of the configuration."""
        code = cls.build_spec.__code__
        named = f"The model of {cls.__name__} (see line {code.co_firstlineno} of {code.co_filename})"
        return compile_scene(cls.build_spec(config), config, named)

    def home(self) -> np.ndarray:
        """Return the default pose as ``qpos``, (nq,): the model's first keyframe, or else its own."""
        return self.model.key_qpos[0].copy() if self.model.nkey else self.model.qpos0.copy()

    def keyframe(self) -> int:
        """Return the index of the keyframe in which episodes begin, but for positions; -1 for none."""
        return 0 if self.model.nkey else -1

    def first_state(self) -> dict[str, np.ndarray]:
        """Return the fields of `MjData` in which episodes do not begin as MuJoCo's reset leaves them."""
        usual, first = mujoco.MjData(self.model), mujoco.MjData(self.model)
        if self.keyframe() >= 0:
            mujoco.mj_resetDataKeyframe(self.model, first, self.keyframe())
        first.qpos[:] = self.home()
        names = ("qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat")
        return {name: getattr(first, name) for name in names if (getattr(first, name) != getattr(usual, name)).any()}

    def roles(self) -> Mapping[str, str]:
        """Return patterns of names that the patterns of terms may contain, such as ``{feet}``."""
        return self.config.named_roles()

    def build_ground(self) -> Ground:
        """Return the ground: a plane at height 0."""
        ground = Ground()
        ground.heights = wp.zeros((1, 1), dtype=wp.float32, device=self.device)
        return ground

    def deployment(self) -> dict[str, Any]:
        """Return what a controller needs, see `shoal.mdp.deployment`."""
        return super().deployment() | deployment_of(self)

    def own_state(self) -> Mapping[str, Any]:
        """Return arrays, made with `self.array`, numbers and structs that terms of this task read as `state.<name>`."""
        return {}

    def marks(self, row: Mapping[str, np.ndarray]) -> list[Mark]:
        """Return the marks of the commands, see `shoal.mdp.marks.shows`."""
        shown = {name: getattr(bound.function, "marks", None) for name, bound in self.bound.commands.items()}
        return [mark for name, draw in shown.items() if draw for mark in draw(self, self.binder.commands[name], row)]

    @cached_property
    def height_of_arrows(self) -> float:
        """The height above the base of arrows that nothing of the robot hides [m]."""
        _, highest = extent(self.model, self.home())
        return float(highest[2] - self.home()[2]) + 0.1

    followed: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Functions `(state, env)` that write arrays of `own_state` in each step, after terminations and rewards, by the
    name of an array: each runs where a term reads that array."""

    @property
    def step_dt(self) -> float:
        """Simulated time between two actions [s]."""
        return float(self.model.opt.timestep) * self.config.decimation

    def data(self, name: str) -> wp.array:
        """Return a field of `MjData`, see `Engine.data`."""
        return self.engine.data(name)

    def parameter(self, name: str) -> wp.array:
        """Return a field of `MjModel` that differs between environments, see `Engine.parameter`."""
        return self.engine.parameter(name)

    def weight_of(self, term: str) -> float:
        """Return the weight of a reward term."""
        return getattr(self.config.rewards, term).weight

    def check_declarations(self, config: ConfigT) -> None:
        """Refuse a configuration without terms."""
        if not isinstance(config, TermsConfig):
            raise ShoalError(
                f"The config of {type(self).__name__} is a {type(config).__name__}, but a TermsTask needs a "
                "TermsConfig: make it with task_config(TermsConfig, ...)."
            )

    def build(self) -> None:
        """Build the model and the engine, bind all terms, and count columns.

        Raises:
            ShoalError: A term is at fault.
            UsageError: The engine cannot simulate this model.
        """
        config = replace(self.config, engine=self.config.engine_on(self.device.alias))
        self.model = self.build_model(config)
        if config.physics_dt is not None:
            self.model.opt.timestep = config.physics_dt
        declared = declared_capacities(type(self), config)
        self.engine = build_engine(self.model, config, num_envs=self.num_envs, device=self.device, declared=declared)
        self.resets_diverged = config.on_nan == "reset"
        self.qpos, self.qvel, self.ctrl = (self.data(name) for name in ("qpos", "qvel", "ctrl"))
        self.checked_state = self.qpos, self.qvel
        self.moved = self.array("moved", dtype=wp.bool)
        """Set by kernels of the stage `interval` where they have written the state. Cleared by the engine."""
        self.curricula = Curricula(config)
        names = Names(checked(self.model, config), self.home(), self.roles(), config.terms("objects"))
        self.binder = Binder(names, self.array, self.device, self.engine.name)
        commands = number_commands(config, self.binder)
        self.bound = bind_terms(config, self.binder, self.followed)
        self.observation_terms = columns_by_term(config, self.bound.observations)
        self.declare(
            observations={group: sum(terms.values()) for group, terms in self.observation_terms.items()},
            image_shapes=image_shapes(config, self.bound.observations),
            image_tiles=image_tiles(config, self.bound.observations),
            num_actions=sum(len(bound.columns) for bound in self.bound.actions.values()),
            reward_terms=tuple(self.bound.rewards),
            metrics=tuple(self.bound.metrics),
            terminations=tuple(self.bound.terminations),
            commands=commands,
        )
        check_best_metric(self, type(self).__name__)

    def allocate(self) -> None:
        """Make arrays, generate the kernels, and open the fields that their functions read."""
        modes = {name: term.mode for name, term in self.config.terms("events").items()}
        self.action = self.array("action", self.num_actions)
        self.age = self.array("age", dtype=wp.int32)
        self.done_terms = self.array("done_terms", max(1, len(self.bound.terminations)), dtype=wp.bool)
        self.command_left = self.array("command_left", max(1, len(self.bound.commands)))
        self.event_left = self.array("event_left", max(1, [*modes.values()].count("interval")))
        self.timers = (self.command_left, self.event_left)
        first = self.first_state()
        self.binder.arrays |= {
            f"first_{name}": wp.array(row, dtype=dtype_of(name, row), device=self.device) for name, row in first.items()
        }
        sources = stages_of(self.config, self.bound, self.binder, first)
        self.records = {
            name: wp.zeros((self.num_envs, len(bound.columns)), dtype=wp.float32, device=self.device)
            for name, bound in self.bound.recorders.items()
        }
        arrays: dict[str, wp.array] = {name: getattr(self, name) for name in WRITTEN if hasattr(self, name)}
        arrays |= {f"obs_{group}": array for group, array in self.obs.items()}
        arrays |= {f"recorders_{name}": array for name, array in self.records.items()}
        arrays |= {name: self.array(name, columns) for name, columns in self.bound.rings.columns.items()}
        if self.bound.rings.lags:
            arrays["lags"] = self.array("lags", self.bound.rings.lags, dtype=wp.int32)
        self.numbers = wp.array(self.binder.numbers or [0.0], dtype=wp.float32, device=self.device)
        """The numbers among the parameters of all terms."""
        running = [each for name, each in self.bound.events.items() if modes[name] != "startup"]
        for bound in (*self.bound.actions.values(), *self.bound.commands.values(), *running):
            self.engine.changing |= {*filter(None, map(model_field, writes(bound.function)))}
        values = {
            each.name: self.array(each.path, len(each.columns), wp.bool if each.group == "terminations" else wp.float32)
            for each in self.binder.torch
        }
        self.state_values = state_of(self, sources)
        """What the functions of terms read, by name."""
        state = struct_of(self.state_values)
        arguments = {"state": state, "numbers": self.numbers, **arrays, **values, **self.binder.arrays}
        self._kernels = generate(sources, self.binder.functions, arguments)
        self.torch_terms = TorchTerms(self.binder.torch, values, self.state_values, self.binder.arrays, self.numbers)
        """Terms that run outside of the captured step."""

    def after_allocate(self) -> None:
        """Start the engine with all fields that were asked for, and log what torch functions cost."""
        self.engine.actuate = partial(self._run, "actuate") if "actuate" in self._kernels else None
        self.tracers = build_tracers(self.binder, self.engine, self.age, self.step_dt)
        self.engine.start()
        self._arrays |= {f"data/{name}": array for name, array in self.engine.fields.items()}
        self._arrays |= {f"parameter/{name}": array for name, array in self.engine.parameters.items()}
        if self.config.on_nan == "stop":
            inputs = self.engine.step_inputs()
            self.history = History(inputs, self.divergences, self.config.replay_steps, self.device)
        if self.torch_terms:
            logger.info("%s", self.torch_terms.describe_cost())
        self.curricula.check(self)
        self._apply_curricula()

    def stages(self) -> list[Stage]:
        """Return the stages of one step, in order. Torch functions read what the kernel before them has written."""
        engine, history, fresh = self.engine, self.history, self.config.fresh_observations
        observing = [
            *(("observe", trace) for trace in self.tracers),
            *self._kernel("observe", "place"),
            *self._torch("observe", "observations"),
            *chain(*(self._kernel("observe", name) for name in self._kernels if name.startswith("observe"))),
        ]
        return [
            *self._kernel("act"),
            *([("physics", history.keep)] if history else []),
            ("physics", self._by_engine(engine.step)),
            *self._kernel("reward", "sense"),
            *self._torch("reward", "terminations"),
            *self._kernel("reward", "end"),
            *self._torch("reward", "rewards", "metrics"),
            *self._kernel("reward"),
            ("close", self.close),
            *self.final_stages(observing),
            ("reset", self._by_engine(partial(engine.reset, self.done))),
            *self._kernel("reset"),
            *self._kernel("interval"),
            *([("interval", partial(history.mark, self.done, self.moved))] if history else []),
            ("derive", self._by_engine(partial(engine.forward, self.done, self.moved, everywhere=fresh))),
            *observing,
        ]

    def _by_engine(self, call: Callable[[], None]) -> Call:
        return HostStage(call) if self.engine.is_on_host else call

    def _kernel(self, stage: str, name: str = "") -> list[Stage]:
        """Return the part of a stage that is the kernel of its name, or of another, if there is one."""
        return [(stage, partial(self._run, name or stage))] if (name or stage) in self._kernels else []

    def _torch(self, stage: str, *groups: str) -> list[Stage]:
        return [(stage, HostStage(self.torch_terms.run, *groups))] if self.torch_terms.of(*groups) else []

    def step(self) -> None:
        """Advance all environments by one step. Before it the host writes numbers that the curricula have come to."""
        if self.curricula.is_due():
            self._apply_curricula()
        self.curricula.steps += 1
        super().step()

    def _apply_curricula(self) -> None:
        """Write the numbers of all curricula as they are after the steps done."""
        self.log = self.curricula.log()
        if self.curricula:
            with torch_stream(self.device):
                self.curricula.write(self)

    def follow_metrics(self, means: Mapping[str, float]) -> None:
        """Let curricula go on by the metrics of an iteration, which are means over all ranks."""
        if self.curricula.follow(means):
            self._apply_curricula()

    def curriculum(self) -> dict[str, np.ndarray]:
        """Return the steps and stages of the curricula, see `Curricula.state`."""
        return {name: np.array(counts) for name, counts in self.curricula.state().items()}

    def set_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Go on from the steps and stages done."""
        self.curricula.restore({name: each.tolist() for name, each in counts.items()})
        self._apply_curricula()

    def _run(self, name: str, physics_step: int = 0) -> None:
        """Launch a generated kernel, if there is one of this name.

        Raises:
            ShoalError: Warp does not compile its functions.
        """
        if name not in self._kernels:
            return
        generated = self._kernels[name]
        dim = (self.num_envs, generated.columns) if generated.columns else None
        try:
            given = {
                name: physics_step if name == "physics_step" else each for name, each in generated.arguments.items()
            }
            self.launch(generated.kernel, [*given.values()], dim=dim)
        except Exception as error:
            if "Error while parsing function" not in str(error):  # Warp says it in errors of any class.
                raise
            said = " ".join(str(error).split()).rstrip(".")
            raise ShoalError(f"Warp does not compile the terms of {type(self).__name__}: {said}.") from error

    def record(self) -> Mapping[str, wp.array]:
        """Return the present values of the recorders, by name: no step computes them. Shapes (num_envs, columns)."""
        self._run("record")
        return self.records

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Begin a new episode in every environment, as `Task.restart` does."""
        super().restart(seed, first)
        if self.history:
            with torch_stream(self.device):
                self.history.clear()

    def seed_rng(self, seed: int, first: int = 0) -> None:
        """Give every environment a random state of its own, and randomised parameters."""
        super().seed_rng(seed, first)
        if "shared_rng" in self.arrays:
            self.arrays["shared_rng"].fill_(int(np.random.default_rng(seed).integers(2**32)))
        self._run("startup")
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
