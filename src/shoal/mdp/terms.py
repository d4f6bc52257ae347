"""Declarations of terms: what a task observes, rewards, ends, draws at random and commands, by name.

A declaration names a function and gives its parameters. Both become fields of the task's configuration, and so flags:
``Reward("feet_slip", weight=-0.1, geoms="{feet}")`` as the reward `feet_slip` is ``--env.rewards.feet-slip.weight`` and
``--env.rewards.feet-slip.geoms``. Nothing here needs Warp: a function of `shoal.mdp` may be named by a string.
"""

# ruff: noqa: N802  A declaration reads as a value; the class of each is made for its parameters.

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from shoal.config.checks import FINITE, NOT_NAN, RANGE, Config, Rule, above, at_least, within
from shoal.errors import ShoalError, UsageError, did_you_mean

Function = str | Callable[..., Any]
"""A function of `shoal.mdp` by name, ``module:function``, a `wp.func`, or a Python function on torch tensors."""
Value = bool | int | float | str | tuple[Any, ...] | Mapping[str, float] | None
"""A parameter: a number, numbers, a pattern of names or several, or numbers by pattern."""
CHOICES: dict[str, Any] = {
    "operation": Literal["abs", "scale", "add"],
    "distribution": Literal["uniform", "log_uniform", "gaussian"],
    "activation": Literal["elu", "relu", "softsign", "tanh"],
    "input_order": Literal["pos_vel", "vel_pos"],
}
"""Parameters that are one of some words; a function gets the word's index."""
_MODES = {"startup": False, "reset": False, "interval": True, "step": True}
"""Modes of events, and whether each has an interval."""
_NOT_NEGATIVE = Rule("be at least 0", lambda numbers: min(getattr(numbers, "values", lambda: numbers)()) >= 0)
MAY_BE_ZERO = {"border_width", "platform_width", "platform_height", "tilt_range_deg", "floor_depth"}
"""Numbers of a sub-terrain that are 0 for none; others are above."""
COUNTS = {"num_waves", "num_obstacles", "num_boxes", "num_beams", "num_rings", "octaves"}
"""Numbers of sub-terrains that ship, which count; others need not be whole."""


@dataclass(frozen=True, kw_only=True)
class Term(Config):
    """Base of all declarations; a subclass with a field for each parameter is made for every one."""

    func: ClassVar[Function]
    parameters: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that are parameters of the function."""
    counts: ClassVar[bool] = False  # Whether whole numbers among its parameters stay so: they count something.
    # Fields with one number for all columns, one for each, in order or by pattern of their names; or a noise.
    by_column: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        """Leave the rules of the fields to `TermsConfig`, which knows the name of the term."""


@dataclass(frozen=True, kw_only=True)
class RewardTerm(Term):
    """A rate: the reward of a step is the sum of weight times value, times the length of a step."""

    weight: float
    """Factor of the value."""


@dataclass(frozen=True, kw_only=True)
class DoneTerm(Term):
    """A condition that ends the episode."""

    time_out: bool = False
    """The episode is cut off, as when its time is up, and has not failed."""


@dataclass(frozen=True, kw_only=True)
class DelayedTerm(Term):
    """What is observed, or acts, some steps late: the lag is drawn uniformly between two numbers of steps."""

    delay_min_lag: Annotated[int, at_least(0)] = 0
    """Least age of the value [steps]."""
    delay_max_lag: Annotated[int, at_least(0)] = 0
    """Largest age of the value [steps]; 0 for no delay."""
    delay_hold_prob: Annotated[float, within(0, 1)] = 0.0
    """Probability that a lag is kept where another would be drawn. With 1 each episode has a lag of its own."""
    delay_update_period: Annotated[int, at_least(0)] = 0
    """Steps between two draws; 0 for one in each step."""
    delay_per_env: bool = True
    """Whether each environment draws a lag of its own; otherwise those that draw in a step get the same."""
    delay_per_env_phase: bool = True
    """Whether environments draw in different steps of the period."""


@dataclass(frozen=True, kw_only=True)
class ObsTerm(DelayedTerm):
    """Columns of an observation group: the value, plus noise, clipped, scaled, delayed, and then with its history."""

    by_column: ClassVar[frozenset[str]] = frozenset({"noise", "bias", "clip", "scale"})
    noise: Annotated[float, at_least(0)] = 0.0
    """Largest error, drawn uniformly for each column and step; or another distribution, `Gaussian` or `Uniform`."""
    bias: Annotated[float, at_least(0)] = 0.0
    """The same for an error that is drawn for each column and episode, and added in all of its steps."""
    clip: Annotated[float, at_least(0)] = 0.0
    """Largest magnitude after the noise, or a least and a largest value; 0 for any."""
    scale: float = 1.0
    """Factor after clipping."""
    history_length: Annotated[int, at_least(0)] = 0
    """Number of last values, oldest first; 0 for the present one alone. At first all are the episode's first."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Names of the columns of a torch function; otherwise they follow from the function."""

    @property
    def num_values(self) -> int:
        """Number of values that are observed of each column."""
        return max(1, self.history_length)


@dataclass(frozen=True, kw_only=True)
class EventTerm(Term):
    """Something that happens to an environment."""

    mode: ClassVar[str]
    """When: `startup`, once in a training; `reset`, when an episode begins; `interval`, during episodes; `step`, in
    every step of one, where the function keeps the time itself."""
    interval: Annotated[tuple[float, float], RANGE] = (0.0, 0.0)
    """Shortest and longest time between two, drawn uniformly [s]; 0 to 0 for never. Of modes `interval` and `step`."""


@dataclass(frozen=True, kw_only=True)
class CommandTerm(Term):
    """Columns that the policy is given to follow, drawn in every episode and in intervals."""

    columns: ClassVar[tuple[str, ...]]
    units: ClassVar[tuple[str, ...]]
    resampling_time: Annotated[tuple[float, float], RANGE]
    """Shortest and longest time between two commands, drawn uniformly [s]."""


@dataclass(frozen=True, kw_only=True)
class ActionTerm(DelayedTerm):
    """Columns of the policy's actions, turned into controls. Before the first that a delay lets act they are 0."""

    clip: Annotated[float, above(0)] = 10.0
    """Largest magnitude of an action: a policy that diverges must not command unbounded targets."""


@dataclass(frozen=True, kw_only=True)
class ContactTerm(Term):
    """Contacts of geoms, bodies or subtrees: whether each touches, since when, and what MuJoCo's sensor says of it."""

    fields: tuple[str, ...] = ("found", "force")
    """What the sensor has of each contact: `found` (the number of contacts), `force` [N], `torque` [N m], `dist` [m],
    `pos` [m], `normal`, `tangent`."""
    reduce: Literal["none", "mindist", "maxforce", "netforce"] = "netforce"
    """Which of several contacts: any, the deepest, that with the largest force, or the sum of all forces. Forces and
    torques are in the contact's frame, whose first axis is the normal; of `netforce` in the world."""
    num_slots: Annotated[int, at_least(1)] = 1
    """Number of contacts of each that the sensor has; of `netforce` one."""
    force_threshold: Annotated[float, at_least(0)] = 0.0
    """Force above which it touches [N]; 0 for any contact."""
    track_air_time: bool = False
    """Whether times in contact and without are counted by physics steps, as mjlab's, and not by actions."""


@dataclass(frozen=True, kw_only=True)
class MetricTerm(Term):
    """A number that is logged, beside the rewards."""


@dataclass(frozen=True, kw_only=True)
class RecorderTerm(Term):
    """Columns that are recorded of each step, by a `wp.func` of observations."""


@dataclass(frozen=True, kw_only=True)
class CurriculumTerm(Term):
    """Numbers of another term that change during a training. In `play` and `evaluate` they are as declared."""

    steps: tuple[int, ...] = ()
    """Steps of each environment since the training began, from which on each of the values holds; none for never."""
    when: str = ""
    """Instead of steps, a metric of the training: after each iteration the next of the values holds if it is `above` or
    `below` the next threshold. Or the name of `score`."""
    score: ClassVar[Callable[[Mapping[str, float]], float] | None] = None
    """Makes one number of all metrics by name."""
    above: tuple[float, ...] = ()
    """Least value of the metric for each of the stages."""
    below: tuple[float, ...] = ()
    """Largest value of the metric for each of the stages."""
    min_iterations: Annotated[int, at_least(1)] = 1
    """Iterations that a stage after the first lasts at least: a mean over episodes comes late."""


@dataclass(frozen=True, kw_only=True)
class SubTerrainTerm(Term):
    """A kind of sub-terrain of rough terrain, see `shoal.mdp.sub_terrains`; its function works on numpy arrays."""


@dataclass(frozen=True, kw_only=True)
class ObjectTerm(Term):
    """A thing in the scene beside the robot; its function returns an `MjSpec`, see `shoal.mdp.objects`."""

    counts: ClassVar[bool] = True
    pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Where the origin of its own model is in the world [m]."""
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    """Orientation of its own model in the world, with the real part first."""
    base: Literal["free", "fixed", "mocap"] = "free"
    """Whether it moves freely, is fixed to the world, or is moved by `mocap_pos` and `mocap_quat` alone."""


@dataclass(frozen=True, kw_only=True)
class SensorTerm(Term):
    """Base of what terms read by name: a sensor of MuJoCo's, or a camera."""


@dataclass(frozen=True, kw_only=True)
class BuiltinSensorTerm(SensorTerm):
    """A sensor of MuJoCo's that is added to the model."""

    cutoff: Annotated[float, at_least(0)] = 0.0
    """Largest magnitude of its numbers; 0 for any."""


TermT = TypeVar("TermT", bound=Term)
_static = cache(staticmethod)


def declare(base: type[TermT], func: Function, values: Mapping[str, Any], **fixed: Any) -> TermT:
    """Return a declaration whose class has a field for each parameter."""
    if callable(when := values.get("when")):
        values, fixed = {**values, "when": when.__name__}, {**fixed, "score": _static(when)}
    own = [name for name in values if name not in base.__dataclass_fields__]
    for name in own:
        if name in vars(Config) or name in {"func", "parameters"}:
            raise ShoalError(f"A parameter of {_name_of(func)} cannot be named '{name}': name it otherwise.")
    func = getattr(func, "__func__", func)  # Of another declaration.
    whole = _whole_numbers(func) | COUNTS | {"axes"}  # Another value of a flag need not be whole.
    if base.counts:
        whole |= {name for name in own if not isinstance(values[name], tuple)}
    values = {**values, **{name: _as_floats(values[name]) for name in own if name not in whole}}
    by_column = [name for name in base.by_column & {*values} if isinstance(values[name], Mapping | tuple | Term)]
    members = [(name, _annotation(base, name, values[name])) for name in (*own, *sorted(by_column))]
    function = func if isinstance(func, str) else _static(func)
    namespace = {"func": function, "parameters": tuple(own), "__module__": base.__module__, **fixed}
    return _class_of(f"{base.__name__}_{_name_of(func)}", base, tuple(members), tuple(namespace.items()))(**values)


@cache
def _class_of(name: str, base: type[Term], members: Any, namespace: Any) -> Any:
    """Return the class of declarations that are alike but for their values; to make one takes a millisecond."""
    return make_dataclass(name, members, bases=(base,), namespace=dict(namespace), frozen=True, kw_only=True)


def changed(term: TermT, values: Mapping[str, Any]) -> TermT:
    """Return a declaration with other values of some fields, or of parameters that it leaves at their defaults."""
    made = type(term)
    own = {each.name: getattr(term, each.name) for each in fields(term)} | {
        name: float(value) if type(value) is int and isinstance(getattr(term, name, None), float) else value
        for name, value in values.items()
    }
    fixed = {name: value for name, value in vars(made).items() if name in {"mode", "columns", "units", "score"}}
    return declare(made.__bases__[0], made.__dict__["func"], own, **fixed)


def _whole_numbers(func: Function) -> set[str]:
    """Return the parameters that a function annotates as integers; of one that a string names, none are known."""
    annotations = getattr(getattr(func, "func", func), "__annotations__", {}).items()
    kinds = {name: str(getattr(kind, "__name__", kind)).rpartition(".")[2] for name, kind in annotations}
    return {name for name, kind in kinds.items() if kind in {"int", "int32"}}


def _name_of(func: Function) -> str:
    """Return the function's name without its module."""
    name = func if isinstance(func, str) else getattr(func, "key", None) or func.__name__
    return name.rpartition(":")[2].rpartition(".")[2]


def _annotation(base: type[Term], name: str, value: object) -> Any:
    """Return the annotation of a parameter with this value: its type, and the rule of what is drawn or divided by."""
    if name in CHOICES and isinstance(value, str):
        return CHOICES[name]
    if name == "bounds":  # They may be infinite.
        return Annotated[_type_of(value), Rule("have its lower end first", lambda ends: ends[0] < ends[1])]
    if name == "std" and isinstance(value, float):
        return Annotated[float, above(0)]
    kind = _type_of(value)
    if base is SubTerrainTerm and not isinstance(value, tuple):
        return Annotated[kind, at_least(0) if name in MAY_BE_ZERO else above(0)]
    if base is ObsTerm and name in {"noise", "bias", "clip"} and not isinstance(value, Term):
        return Annotated[kind, RANGE if name == "clip" and isinstance(value, tuple) else _NOT_NEGATIVE]
    ranged = base in (EventTerm, CommandTerm, SubTerrainTerm) and kind == tuple[float, float]
    return Annotated[kind, RANGE if ranged else FINITE if FINITE.holds(value) else NOT_NAN]


def _type_of(value: object) -> Any:
    """Return the type of a parameter with this value."""
    if isinstance(value, Mapping):
        return dict[str, float]
    if isinstance(value, tuple):
        return tuple[str, ...] if not value or isinstance(value[0], str) else tuple[tuple(map(_type_of, value))]
    return next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), type(value))  # Not NumPy's.


def Reward(func: Function, weight: float, **params: Value) -> RewardTerm:
    """Declare a reward term."""
    return declare(RewardTerm, func, {"weight": _as_floats(weight), **params})


def Obs(func: Function, *, columns: tuple[str, ...] = (), **params: Value | Term) -> ObsTerm:
    """Declare an observation; the fields of `ObsTerm` are among the parameters."""
    return declare(ObsTerm, func, params, columns=tuple(columns))


def ObsGroup(terms: Mapping[str, ObsTerm], **values: Any) -> dict[str, ObsTerm]:
    """Return the observations of a group with the same values of some fields, such as ``history_length=5``."""
    return {name: changed(term, values) for name, term in terms.items()}


def Event(func: Function, mode: str, **params: Value) -> EventTerm:
    """Declare an event of mode `startup`, `reset`, `interval` or `step`; the last two have an `interval`.

    Raises:
        UsageError: There is no such mode, or the event would never happen.
    """
    name = _name_of(func)
    if mode not in _MODES:
        hint = did_you_mean(mode, _MODES)
        raise UsageError(f"The event '{name}' has the mode '{mode}', but must be one of {', '.join(_MODES)}.{hint}")
    if _MODES[mode] and "interval" not in params:
        raise UsageError(
            f"The event '{name}' of mode '{mode}' has no interval, and would never happen: pass "
            "interval=(shortest, longest) [s]."
        )
    if "interval" in params and not _MODES[mode]:
        raise UsageError(f"The event '{name}' of mode '{mode}' has an interval, which nothing reads: leave it out.")
    return declare(EventTerm, func, params, mode=mode)


def Command(
    func: Function, *, columns: Mapping[str, str], resampling_time: tuple[float, float], **params: Value
) -> CommandTerm:
    """Declare a command; `columns` are names and units. The range of a column is the parameter of its name, if any.

    Raises:
        ShoalError: Such a parameter is no range.
    """
    for name in columns:
        if name in params and _type_of(params[name]) not in (tuple[float, float], tuple[int, int]):
            raise ShoalError(
                f"The command {_name_of(func)} has {name}={params[name]!r}, but '{name}' is one of its columns too: "
                "give the column's lowest and highest value, or name the parameter otherwise."
            )
    fixed = {"columns": tuple(columns), "units": tuple(columns.values())}
    return declare(CommandTerm, func, {"resampling_time": resampling_time, **params}, **fixed)


def _declarer(base: type[TermT]) -> Callable[..., TermT]:
    """Return the function that declares terms of a class, of which nothing but parameters is to be given."""

    def make(func: Function, **params: Value) -> TermT:
        return declare(base, func, params)

    make.__name__ = make.__qualname__ = base.__name__.removesuffix("Term")
    make.__doc__ = base.__doc__
    return make


Action = _declarer(ActionTerm)
Done = _declarer(DoneTerm)
Metric = _declarer(MetricTerm)
Recorder = _declarer(RecorderTerm)
SubTerrain = _declarer(SubTerrainTerm)
Object = _declarer(ObjectTerm)


def Contact(func: Function = "touches", **params: Value) -> ContactTerm:
    """Declare contacts, by MuJoCo's contact sensor or by a function of the geometry.

    The sensor is of `bodies`, `geoms` or `subtrees`, with anything or with one `secondary_body`, `secondary_geom` or
    `secondary_subtree`. The function `near_ground` needs none, and is faster. The position of each, as for the height
    of a foot, is that of its body or geom, or that of one of as many `sites`, in their order.
    """
    return declare(ContactTerm, func, params)


def Sensor(type: str, **params: Value) -> SensorTerm:  # noqa: A002  MJCF has no other word.
    """Declare a sensor of MuJoCo's by MJCF's name: ``Sensor("framepos", body="cube/body", reference_site="grip")``.

    A body is MJCF's `xbody`, and `subtree` one with all below it.
    """
    return declare(BuiltinSensorTerm, type, params)


def Curriculum(func: str, *, when: str | Callable[..., float] = "", **params: Value) -> CurriculumTerm:
    """Declare a curriculum: at each of the `steps`, every parameter of another term gets the next of its values.

    ``Curriculum("reward_curriculum", reward_name="action_rate", steps=(0, 12000), weight=(-0.01, -0.1))``, or with a
    metric, or a function of all by name: ``Curriculum(..., when="Metrics/error_lin_vel", below=(0.3, 0.2), ...)``.
    """
    return declare(CurriculumTerm, func, {"when": when, **params})


def _as_floats(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_as_floats, value))
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
