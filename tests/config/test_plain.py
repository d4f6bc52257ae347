"""Configurations to plain values and back, and what a file may not say."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.config import (
    DistributionConfig,
    EnvConfig,
    ModelConfig,
    MujocoConfig,
    PpoConfig,
    RndConfig,
    RslRlConfig,
    TrainConfig,
    from_plain,
    to_plain,
)
from shoal.config.rsl_rl import to_rsl_rl
from shoal.errors import UsageError
from shoal.tasks.quadruped.config import ROUGH

if TYPE_CHECKING:
    from collections.abc import Callable


class Surface(Enum):
    """What a robot walks on."""

    ICE = 0.05
    SAND = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A section of a user's own."""

    length_m: float = 0.4
    joints: tuple[str, ...] = ("hip", "knee")


@dataclass(frozen=True, slots=True, kw_only=True)
class LongLeg(Leg):
    """A section that stands where its base is annotated."""

    toes: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkerConfig(EnvConfig):
    """A task's configuration with one field of every kind that files can hold."""

    count: int = 1
    ratio: float = 0.5
    name: str = "walker"
    lively: bool = True
    gait: Literal["walk", "trot", 3] = "walk"
    surface: Surface = Surface.SAND
    model: Path = Path("walker.xml")
    span: tuple[float, float] = (-1.0, 1.0)
    dims: tuple[int, ...] = (1, 2)
    weights: list[float] = field(default_factory=lambda: [0.5])
    gains: dict[str, float] = field(default_factory=lambda: {"hip": 1.0})
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    either: int | float = 1
    word_or_number: float | str = "auto"
    maybe: float | None = None
    some: tuple[Literal["a", "b"], ...] | None = None
    leg: Leg = field(default_factory=Leg)
    spare: Leg | None = None
    legs: dict[str, Leg] = field(default_factory=dict[str, Leg])
    free: Any = None
    derived: int = field(init=False, default=7)


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=1e-6, max_value=1e6)
WORDS = st.text(max_size=8)
LEGS = st.builds(Leg, length_m=FLOATS, joints=st.lists(WORDS, max_size=3).map(tuple))
WALKERS = st.builds(
    WalkerConfig,
    episode_length_s=POSITIVE,
    count=st.integers(),
    ratio=FLOATS,
    name=WORDS,
    lively=st.booleans(),
    gait=st.sampled_from(["walk", "trot", 3]),
    surface=st.sampled_from(Surface),
    model=st.sampled_from([Path("a.xml"), Path("/b/c.xml")]),
    span=st.tuples(FLOATS, FLOATS),
    dims=st.lists(st.integers(), max_size=3).map(tuple),
    weights=st.lists(FLOATS, max_size=3),
    gains=st.dictionaries(WORDS, FLOATS, max_size=3),
    groups=st.dictionaries(WORDS, st.lists(WORDS, max_size=2).map(tuple), max_size=3),
    either=st.integers() | FLOATS,
    word_or_number=WORDS | FLOATS,
    maybe=st.none() | FLOATS,
    some=st.none() | st.lists(st.sampled_from(["a", "b"]), max_size=3).map(tuple),
    leg=LEGS,
    spare=st.none() | LEGS,
    legs=st.dictionaries(WORDS, LEGS, max_size=2),
    free=st.none() | st.integers() | WORDS,
)
DISTRIBUTIONS = st.one_of(
    st.builds(
        DistributionConfig,
        class_name=st.just("GaussianDistribution"),
        init_std=st.none() | POSITIVE,
        std_range=st.none() | st.tuples(st.floats(0, 1), st.floats(2, 3)),
        std_type=st.sampled_from([None, "scalar", "log"]),
        learn_std=st.none() | st.booleans(),
    ),
    st.builds(DistributionConfig, class_name=st.just("BetaDistribution"), action_range=st.just((-2.0, 2.0))),
)
MODELS = st.builds(
    ModelConfig, distribution=DISTRIBUTIONS, hidden_dims=st.lists(st.integers(1, 64), min_size=1).map(tuple)
)
AGENTS = st.builds(
    RslRlConfig,
    num_steps_per_env=st.integers(1, 100),
    torch_compile_mode=st.sampled_from([None, "default"]),
    obs_groups=st.dictionaries(WORDS, st.lists(WORDS, min_size=1, max_size=2).map(tuple), max_size=3),
    algorithm=st.builds(
        PpoConfig,
        gamma=st.floats(0, 1),
        rnd=st.builds(RndConfig, enabled=st.just(value=True), weight=POSITIVE) | st.builds(RndConfig),
    ),
    actor=MODELS,
)

through_a_file = pytest.mark.parametrize(
    "there_and_back",
    [lambda data: json.loads(json.dumps(data)), lambda data: yaml.safe_load(yaml.safe_dump(data, sort_keys=False))],
    ids=["json", "yaml"],
)


@through_a_file
@given(walker=WALKERS, template=WALKERS)
def test_a_configuration_comes_back_from_a_file(
    there_and_back: Callable[[Any], Any], walker: WalkerConfig, template: WalkerConfig
) -> None:
    back = from_plain(template, there_and_back(to_plain(walker)))
    assert back == walker
    assert repr(back) == repr(walker)  # 1 == 1.0 == True, but they are not the same.


@through_a_file
@given(agent=AGENTS, template=AGENTS)
def test_a_learner_comes_back_from_a_file(
    there_and_back: Callable[[Any], Any], agent: RslRlConfig, template: RslRlConfig
) -> None:
    assert from_plain(template, there_and_back(to_plain(agent))) == agent
    assert to_rsl_rl(from_plain(RslRlConfig, there_and_back(to_plain(agent)))) == to_rsl_rl(agent)


def test_a_training_comes_back_with_the_sections_that_its_task_put_in() -> None:
    task = TrainConfig(task="Walker", env=WalkerConfig(leg=LongLeg()))
    asked = TrainConfig(task="Walker", num_envs=7, resume=(), env=WalkerConfig(leg=LongLeg(toes=5), count=2))
    assert from_plain(task, to_plain(asked)) == asked


def test_plain_values_are_plain() -> None:
    plain = to_plain(WalkerConfig(ratio=np.float64(0.25), spare=Leg()))
    assert type(plain["ratio"]) is float
    assert plain["surface"] == "SAND"
    assert plain["model"] == "walker.xml"
    assert plain["span"] == [-1.0, 1.0]
    assert plain["spare"] == {"length_m": 0.4, "joints": ["hip", "knee"]}
    assert "derived" not in plain


def test_what_a_file_does_not_name_stays() -> None:
    template = RslRlConfig(num_steps_per_env=7, algorithm=PpoConfig(gamma=0.5, lam=0.6))
    read = from_plain(template, {"algorithm": {"gamma": 0.7}})
    assert (read.num_steps_per_env, read.algorithm.gamma, read.algorithm.lam) == (7, 0.7, 0.6)
    assert from_plain(template, {}) == template


def test_dicts_and_tuples_are_replaced_whole() -> None:
    read = from_plain(RslRlConfig(), {"obs_groups": {"actor": ["camera"]}, "critic": {"hidden_dims": [8]}})
    assert read.obs_groups == {"actor": ("camera",)}
    assert read.critic.hidden_dims == (8,)


@pytest.mark.parametrize(("text", "number"), [("1e-3", 1e-3), ("3", 3.0), ("0.5", 0.5), ("1.5e+2", 150.0)])
def test_yaml_may_write_a_number_in_any_way(text: str, number: float) -> None:
    # PyYAML reads 1e-3, without a dot, as a string, and 3 as a whole number.
    read = from_plain(WalkerConfig(), yaml.safe_load(f"ratio: {text}")).ratio
    assert (read, type(read)) == (number, float)


@pytest.mark.parametrize(("older", "today"), [("native", "mujoco"), ("warp", "mjwarp"), ("auto", "auto")])
def test_engines_of_runs_of_older_versions_have_their_names_of_today(older: str, today: str) -> None:
    assert from_plain(MujocoConfig, {"engine": older}).engine == today


def test_fields_of_runs_of_older_versions_have_their_names_of_today() -> None:
    older = {"tile_size": 6.0, "tiles": {"wave_terrain": {"num_waves": 3}}}
    config = from_plain(ROUGH, older)
    assert config.sub_terrain_size == 6.0
    assert config.terms("sub_terrains")["wave_terrain"].num_waves == 3
    with pytest.raises(UsageError, match=r"env\.tilings is given, but"):
        from_plain(ROUGH, {"tilings": 3}, "env")


def test_a_class_may_stand_for_its_defaults() -> None:
    assert from_plain(TrainConfig, {"task": "Walker"}) == TrainConfig(task="Walker")
    with pytest.raises(UsageError, match=r"the key 'task' is missing"):
        from_plain(TrainConfig, {})


REFUSALS = [
    ({"rato": 1.0}, "env.rato is given, but WalkerConfig has no such field. Did you mean 'ratio'?"),
    ({"leg": {"zzz": 1}}, "env.leg.zzz is given, but Leg has no such field. It has: length_m, joints."),
    ({"derived": 1}, "env.derived is given, but WalkerConfig has no such field."),
    ({True: 1}, "env.True is given, but WalkerConfig has no such field."),
    ({"ratio": "fast"}, "env.ratio is 'fast', but must be a number."),
    ({"ratio": True}, "env.ratio is True, but must be a number."),
    ({"ratio": 10**400}, f"env.ratio is {10**400}, but must be a number."),
    ({"ratio": None}, "env.ratio is None, but must be a number."),
    ({"count": 1.0}, "env.count is 1.0, but must be a whole number."),
    ({"count": True}, "env.count is True, but must be a whole number."),
    ({"count": "1"}, "env.count is '1', but must be a whole number."),
    ({"lively": 1}, "env.lively is 1, but must be true or false."),
    ({"lively": "yes"}, "env.lively is 'yes', but must be true or false."),
    ({"name": 1}, "env.name is 1, but must be a string."),
    ({"gait": "wlak"}, "env.gait is 'wlak', but must be one of 'walk', 'trot', 3. Did you mean 'walk'?"),
    ({"gait": 3.0}, "env.gait is 3.0, but must be one of 'walk', 'trot', 3."),
    ({"surface": "MUD"}, "env.surface is 'MUD', but must be one of 'ICE', 'SAND'."),
    ({"surface": 0.05}, "env.surface is 0.05, but must be one of 'ICE', 'SAND'."),
    ({"span": [1.0]}, "env.span is [1.0], but must be a list of 2 values (a number, a number)."),
    ({"span": 1.0}, "env.span is 1.0, but must be a list of 2 values (a number, a number)."),
    ({"dims": [1, 2.5]}, "env.dims[1] is 2.5, but must be a whole number."),
    ({"dims": "12"}, "env.dims is '12', but must be a list (a whole number)."),
    ({"gains": {"hip": "x"}}, "env.gains.hip is 'x', but must be a number."),
    ({"gains": [1.0]}, "env.gains is [1.0], but must be a mapping."),
    ({"gains": {1: 1.0}}, "env.gains is 1, but must be a string."),
    ({"maybe": "x"}, "env.maybe is 'x', but must be a number."),
    ({"either": "x"}, "env.either is 'x', but must be a whole number or a number."),
    ({"leg": 3}, "env.leg is 3, but must be a mapping with the fields of Leg."),
    ({"spare": {"length_m": []}}, "env.spare.length_m is [], but must be a number."),
    ({"legs": {"left": {"length": 1}}}, "env.legs.left.length is given, but Leg has no such field."),
    ({"episode_length_s": -1}, "env.episode_length_s is -1.0, but must be above 0. The default is 20.0."),
    ([], "env is [], but must be a mapping with the fields of WalkerConfig."),
]


@pytest.mark.parametrize(("mapping", "sentence"), REFUSALS, ids=[sentence[:50] for _, sentence in REFUSALS])
def test_refusal_names_the_path_the_value_and_what_is_expected(mapping: object, sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        from_plain(WalkerConfig(), mapping, "env")
    assert str(refusal.value).startswith(sentence)


def test_a_refusal_of_a_section_is_told_with_its_place() -> None:
    with pytest.raises(UsageError) as refusal:
        from_plain(RslRlConfig(), {"critic": {"rnn_type": "gru"}}, "agent")
    assert str(refusal.value).startswith("agent.critic: a model's rnn_type is 'gru', but class_name is 'MLPModel'")
    with pytest.raises(UsageError, match=r"^agent\.algorithm\.gamma is 2\.0, but"):
        from_plain(RslRlConfig(), {"algorithm": {"gamma": 2}}, "agent")


@dataclass(frozen=True)
class Picky:
    """A configuration that refuses in its own way."""

    word: str = "yes"

    def __post_init__(self) -> None:
        if self.word != "yes":
            message = "only yes will do"
            raise ValueError(message)


def test_what_a_users_own_configuration_raises_becomes_a_refusal_with_its_cause() -> None:
    with pytest.raises(UsageError, match=r"^env: only yes will do$") as refusal:
        from_plain(Picky(), {"word": "no"}, "env")
    assert isinstance(refusal.value.__cause__, ValueError)


def test_what_no_file_can_hold_is_refused_by_its_path() -> None:
    with pytest.raises(UsageError, match=r"^leg\.joints is <object .*, which files of plain values cannot hold"):
        to_plain(WalkerConfig(leg=Leg(joints=object())))  # type: ignore[arg-type]


def test_plain_values_share_nothing_with_the_configuration() -> None:
    walker = WalkerConfig()
    plain = to_plain(walker)
    plain["weights"].append(1.0)
    plain["gains"].clear()
    assert walker == WalkerConfig()
