"""The base class of tasks that are made of terms: the terms of each stage of a step become one Warp kernel."""

import logging
import re
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import mujoco
import numpy as np
import warp as wp
from mujoco.batch import DATA_FIELDS, MODEL_FIELDS

from shoal.errors import ShoalError, did_you_mean
from shoal.mdp.accesses import model_field, uses, writes
from shoal.mdp.binding import Binder, Bound
from shoal.mdp.config import TermsConfig, members
from shoal.mdp.curricula import Curricula
from shoal.mdp.deployment import deployment_of
from shoal.mdp.ground import Ground
from shoal.mdp.kernels import Source, generate, struct_of
from shoal.mdp.marks import height_of_arrows, metrics_of
from shoal.mdp.names import Names
from shoal.mdp.scene import checked, compile_scene
from shoal.mdp.sensors import bind_contacts
from shoal.mdp.stages import BoundTerms, stages_of
from shoal.mdp.terms import Term
from shoal.mdp.torch_terms import TorchTerms
from shoal.sim.engines.engine import dtype_of
from shoal.sim.graphs import HostStage, Stage, run_all, torch_stream
from shoal.sim.kernel_task import CommandRange
from shoal.sim.mujoco_task import MujocoTask
from shoal.sim.render.marks import Mark
from shoal.sim.validation import check_best_metric

logger = logging.getLogger(__name__)

ConfigT = TypeVar("ConfigT", bound=TermsConfig)

_STATE_FIELD = re.compile(r"\bstate\.(\w+)")
_DEFAULT = "default_"
"""Before the name of a field of `MjModel`: its values in the model, the same for all environments."""


class TermsTask(MujocoTask[ConfigT], Generic[ConfigT]):
    """A MuJoCo model with terms. A subclass returns robot and ground in `build_spec`, or the whole in `build_model`.

    The functions of terms read from their first parameter, `state`: fields of `MjData` and `MjModel` by MuJoCo's names,
    with one row for each environment; a field of `MjModel` with ``default_`` before it, without rows; and

    | name | shape | meaning |
    | --- | --- | --- |
    | `action`, `last_action` | (num_envs, num_actions) | the clipped actions of this step and of the one before |
    | `commands` | (num_envs, columns) | all commands |
    | `home` | (nq,) | the default pose |
    | `ground` | | the ground, see `shoal.mdp.ground` |
    | `episode_length` | (num_envs,) | steps since the episode began; 0 after its last |
    | `age` | (num_envs,) | steps of the episode, with the present one |
    | `time_out` | (num_envs,) | in events of mode `reset`: the episode before was cut off, and has not failed |
    | `first_env` | (1,) | index of the first environment, see `KernelTask.restart` |
    | `rng` | (num_envs,) | random state, see `shoal.mdp.random` |
    | `step_dt` | | time between two actions [s] |
    | `terminated` | (num_envs,) | in rewards and metrics: a termination holds that is no time-out |
    | `encoder_bias` | (num_envs, nv) | constant errors of joint encoders [rad or m] |
    | `gravity` | (num_envs, 3) | gravity [m/s²] |
    | `sensor_history` | (num_envs, decimation * n) | after a step: `sensordata` of each of its physics steps |
    | `hulls` | (n,) of `wp.vec3` | points of meshes, see `shoal.mdp.shapes` |

    Events, commands and actions may write fields of `MjModel` and controls, events and commands the state too; no term
    writes another field of `MjData`. A field of `MjData` that neither observations nor actions read may describe the
    last episode until the first physics step.
    """

    @classmethod
    def build_spec(cls, config: ConfigT) -> mujoco.MjSpec:  # noqa: ARG003  For subclasses.
        """Return the robot and its ground."""
        raise ShoalError(f"{cls.__name__} has no model: return its robot and ground as an MjSpec in build_spec().")

    @classmethod
    def build_model(cls, config: ConfigT) -> mujoco.MjModel:
        """Return the scene: `build_spec`, with the objects and sensors of the configuration."""
        return compile_scene(cls.build_spec(config), config)

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
        return height_of_arrows(self.model, self.home())

    followed: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Functions `(state, env)` that write arrays of `own_state` in each step, after terminations and rewards, by the
    name of an array: each runs where a term reads that array."""

    def check_declarations(self, config: ConfigT) -> None:
        """Check nothing: what a task of kernels declares follows here from the terms."""

    def weight_of(self, term: str) -> float:
        """Return the weight of a reward term."""
        return getattr(self.config.rewards, term).weight

    def build(self) -> None:
        """Build the model, bind all terms, and count columns."""
        super().build()
        names = Names(checked(self.model, self.config), self.home(), self.roles(), self.config.terms("objects"))
        self.curricula = Curricula(self.config)
        self.binder = Binder(names, self.array, self.device, self.engine.name)
        commands = self._number_commands()
        actions = self._bind("actions", "i", "action")
        self.binder.action_columns = tuple(chain.from_iterable(bound.columns for bound in actions.values()))
        drawn = self._bind("commands", "first", "is_new")
        observed = self.config.flat("observations")
        self.bound = BoundTerms(
            actions=actions,
            commands=drawn,
            contacts=bind_contacts(self.binder, self.config.terms("contacts"), self.array),
            rewards=self._bind("rewards"),
            terminations=self._bind("terminations"),
            metrics=self._bind("metrics", **metrics_of(drawn)),
            events=self._bind("events"),
            observations={
                group: {
                    name: self.binder.bind(f"observations.{group}.{name}", term, "observations")
                    for name, term in members(terms).items()
                }
                for group, terms in self.config.terms("observations").items()
            },
            recorders=self._bind("recorders"),
            followed=self.followed,
        )
        self.observation_terms = {
            group: {name: len(bound.columns) * observed[f"{group}.{name}"].num_values for name, bound in terms.items()}
            for group, terms in self.bound.observations.items()
        }
        self.declare(
            observations={group: sum(terms.values()) for group, terms in self.observation_terms.items()},
            num_actions=sum(len(bound.columns) for bound in self.bound.actions.values()),
            reward_terms=tuple(self.bound.rewards),
            metrics=tuple(self.bound.metrics),
            terminations=tuple(self.bound.terminations),
            commands=commands,
        )
        check_best_metric(self, type(self).__name__)

    def _bind(self, group: str, *own: str, **more: Term) -> dict[str, Bound]:
        """Bind the terms of a group and more, whose functions take `own` parameters from the generated text."""
        terms, library = self.config.terms(group) | more, "observations" if group == "recorders" else group
        return {name: self.binder.bind(f"{group}.{name}", term, library, own or ("i",)) for name, term in terms.items()}

    def _number_commands(self) -> dict[str, CommandRange]:
        """Give each command its columns; return the name, range and unit of each."""
        columns: dict[str, CommandRange] = {}
        for name, term in self.config.terms("commands").items():
            self.binder.commands[name], self.binder.command_columns[name] = len(columns), term.columns
            for column, unit in zip(term.columns, term.units, strict=True):
                low, high = getattr(term, column, (-1.0, 1.0))  # What a slider shows where no range is declared.
                columns[f"{name}_{column}" if column in columns else column] = CommandRange(
                    low=low, high=high, unit=unit
                )
        return columns

    def allocate(self) -> None:
        """Make arrays, generate the kernels, and open the fields that their functions read."""
        modes = {name: term.mode for name, term in self.config.terms("events").items()}
        self.action = self.array("action", self.num_actions)
        """The clipped actions of this step."""
        self.age = self.array("age", dtype=wp.int32)
        """Steps of the episode, with the present one."""
        self.done_terms = self.array("done_terms", max(1, len(self.bound.terminations)), dtype=wp.bool)
        names = ("actions", "terms", "done_terms", "terminated", "truncated", "done", "moved", "age")
        left = {"command_left": len(self.bound.commands), "event_left": [*modes.values()].count("interval")}
        timers = {name: self.array(name, max(1, count)) for name, count in left.items()}
        self.timers = (*timers.values(),)
        arrays: dict[str, wp.array] = {
            **{name: getattr(self, name) for name in names},
            **timers,
            **{f"obs_{group}": array for group, array in self.obs.items()},
        }
        made = {"metrics": "metric_values", "commands_held": "commands_held"}
        arrays |= {name: getattr(self, each) for name, each in made.items() if hasattr(self, each)}
        first = {f"first_{name}": (name, row) for name, row in self.first_state().items()}
        self.binder.arrays |= {
            array: wp.array(row, dtype=dtype_of(name, row), device=self.device) for array, (name, row) in first.items()
        }
        sources = stages_of(self.config, self.bound, self.binder, {name: array for array, (name, _) in first.items()})
        self.records = {
            name: wp.zeros((self.num_envs, len(bound.columns)), dtype=wp.float32, device=self.device)
            for name, bound in self.bound.recorders.items()
        }
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
        arguments = {"state": self._state(sources), "numbers": self.numbers, **arrays, **values, **self.binder.arrays}
        self._kernels = generate(sources, self.binder.functions, arguments)
        self.torch_terms = TorchTerms(self.binder.torch, values, self.state_values, self.binder.arrays, self.numbers)
        """Terms that run outside of the captured step."""

    def after_allocate(self) -> None:
        """Finish, and log what torch functions cost."""
        super().after_allocate()
        if self.torch_terms:
            logger.info("%s", self.torch_terms.describe_cost())
        self.curricula.check(self)
        self._apply_curricula()

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
            numbers, weights = self.numbers.numpy(), self.weights.numpy()
            for each in self.curricula.reached():
                if each.path in self.binder.places:
                    numbers[self.binder.places[each.path]] = each.value
                else:
                    weights[self.reward_terms.index(each.path.split(".")[1])] = each.value * self.per_step
            with torch_stream(self.device):
                self.numbers.assign(numbers)
                self.weights.assign(weights)

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

    def _state(self, sources: Iterable[Source]) -> Any:
        """Return what the text of the kernels and the functions of terms read."""
        names = ("action", "rng", "age", "episode_length", "time_out", "first_env", "step_dt", "terminated")
        own: dict[str, Any] = {**{name: getattr(self, name) for name in names}, **self.own_state()}
        own["last_action"] = self.array("last_action", self.num_actions)
        if self.commands:
            own["commands"] = self.command_array
        made = {
            "ground": self.build_ground,
            "home": lambda: wp.array(self.home(), dtype=wp.float32, device=self.device),
            "encoder_bias": lambda: self.array("encoder_bias", self.model.nv),
            "sensor_history": lambda: self.engine.keep_sensors(self.array),
            "hulls": lambda: wp.array(self.binder.names.hulls[0], dtype=wp.vec3, device=self.device),
        }
        values: dict[str, Any] = {}
        text = "\n".join(line for source in sources for line in source.lines)
        functions = self.binder.all_functions()
        after_reset = [
            *self.bound.actions.values(),
            *chain(*(group.values() for group in self.bound.observations.values()), self.bound.recorders.values()),
        ]
        observing = "\n".join(each.body for each in sources if each.name.startswith(("place", "observe", "record")))
        fresh = {*_STATE_FIELD.findall(observing)}.union(*(uses(each.function) for each in after_reset))
        for name in sorted({*_STATE_FIELD.findall(text)}.union(*map(uses, functions))):
            if name in own:
                values[name] = own[name]
            elif name in made:
                values[name] = made[name]()
            elif name in DATA_FIELDS:
                values[name] = self.engine.data(name, after_physics_only=name not in fresh)
            elif field := model_field(name):
                values[name] = self.parameter(field)
            elif name.startswith(_DEFAULT) and (field := model_field(name.removeprefix(_DEFAULT))):
                values[name] = self.engine.constant(field)
            else:
                hint = did_you_mean(name, [*own, *made, *DATA_FIELDS, *MODEL_FIELDS])
                raise ShoalError(f"A term reads state.{name}, which neither MuJoCo nor the task has.{hint}")
        self.state_values = values
        """What the functions of terms read, by name."""
        return struct_of(values)

    def _run(self, stage: str) -> None:
        """Launch the kernel of a stage, if it has one.

        Raises:
            ShoalError: Warp does not compile its functions.
        """
        if stage not in self._kernels:
            return
        generated = self._kernels[stage]
        dim = (self.num_envs, generated.columns) if generated.columns else None
        try:
            self.launch(generated.kernel, generated.arguments, dim=dim)
        except Exception as error:
            if "Error while parsing function" not in str(error):  # Warp says it in errors of any class.
                raise
            said = " ".join(str(error).split()).rstrip(".")
            raise ShoalError(f"Warp does not compile the terms of {type(self).__name__}: {said}.") from error

    def apply_actions(self) -> None:
        """Turn actions into controls."""
        self._run("act")

    def compute_rewards(self) -> None:
        """Compute contacts, rewards, terminations and metrics."""
        run_all(self.reward_stages())

    def reward_stages(self) -> list[Stage]:
        """Return the stages of `compute_rewards`: torch functions read what the kernel before them has written."""
        return [
            partial(self._run, "sense"),
            *self._torch_stage("terminations"),
            partial(self._run, "end"),
            *self._torch_stage("rewards", "metrics"),
            partial(self._run, "reward"),
        ]

    def _torch_stage(self, *groups: str) -> list[Stage]:
        return [HostStage(self.torch_terms.run, *groups)] if self.torch_terms.of(*groups) else []

    def reset_state(self) -> None:
        """Begin new episodes where done."""
        self._run("reset")

    def interval_events(self) -> None:
        """Draw commands anew, and let events happen, where their time has come."""
        self._run("interval")

    def randomize(self) -> None:
        """Run the events of mode `startup`."""
        self._run("startup")

    def observe(self) -> None:
        """Write the observations."""
        run_all(self.observe_stages())

    def observe_stages(self) -> list[Stage]:
        """Return the stages of `observe`."""
        place = [partial(self._run, "place")] if "place" in self._kernels else []
        return [*place, *self._torch_stage("observations"), self._observe]

    def record(self) -> Mapping[str, wp.array]:
        """Return the present values of the recorders, by name: no step computes them. Shapes (num_envs, columns)."""
        self._run("record")
        return self.records

    def _observe(self) -> None:
        for stage in self._kernels:
            if stage.startswith("observe"):
                self._run(stage)
