"""What a configuration refuses, each sentence in full: what was asked, what is true, what to do."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import pytest

from shoal.config import (
    DistributionConfig,
    DoctorConfig,
    EnvConfig,
    ModelConfig,
    PlayConfig,
    PpoConfig,
    RndConfig,
    RndWeightScheduleConfig,
    RslRlConfig,
    SymmetryConfig,
    TrainConfig,
)
from shoal.config.checks import FINITE, NOT_NAN, above, check, rules_of
from shoal.config.evaluate import EvaluateConfig
from shoal.config.fast_sac import FastSacConfig
from shoal.errors import UsageError
from shoal.mdp.terms import Reward
from shoal.tasks.registry import registered

if TYPE_CHECKING:
    from collections.abc import Callable


def unchecked(cls: type, **values: object) -> Callable[[], Any]:
    """A construction that the type checker does not look into."""
    return lambda: cls(**values)


REFUSALS: list[tuple[Callable[[], Any], str]] = [
    # Ranges.
    (
        unchecked(EnvConfig, episode_length_s=0.0),
        "env.episode_length_s is 0.0, but must be above 0. The default is 20.0.",
    ),
    (
        unchecked(RslRlConfig, num_steps_per_env=0),
        "agent.num_steps_per_env is 0, but must be at least 1. The default is 24.",
    ),
    (
        unchecked(RslRlConfig, torch_compile_mode="max-autotune"),
        "agent.torch_compile_mode is 'max-autotune', but must be one of 'default' or 'max-autotune-no-cudagraphs'.",
    ),
    (
        unchecked(RslRlConfig, obs_groups={"actor": ()}),
        "agent.obs_groups is {'actor': ()}, but must name one or more observation groups for each set.",
    ),
    (
        unchecked(PpoConfig, gamma=1.5),
        "agent.algorithm.gamma is 1.5, but must lie in [0, 1]. The default is 0.99.",
    ),
    (
        unchecked(PpoConfig, learning_rate=math.inf),
        "agent.algorithm.learning_rate is inf, but must be finite. The default is 0.001.",
    ),
    (
        unchecked(PpoConfig, optimizer="adma"),
        (
            "agent.algorithm.optimizer is 'adma', but must be one of 'adam', 'adamw', 'sgd' or 'rmsprop'."
            " The default is 'adam'."
        ),
    ),
    (
        unchecked(ModelConfig, hidden_dims=()),
        (
            "a model's hidden_dims is (), but must have one or more entries, of which each must lie in [1, 65536], or"
            " be -1 for as many as the input has. The default is (256, 256, 256)."
        ),
    ),
    (
        unchecked(FastSacConfig, critic_hidden_dims=(64, 2**31)),
        (
            "agent.critic_hidden_dims is (64, 2147483648), but must have one or more entries, of which each must lie in"
            " [1, 65536]. The default is (256, 256, 128)."
        ),
    ),
    (
        unchecked(DistributionConfig, class_name="BetaDistribution", action_range=(1.0, -1.0)),
        "a distribution's action_range is (1.0, -1.0), but must be finite, the lower first.",
    ),
    (
        unchecked(DistributionConfig, class_name="GaussianDistribution", std_range=(-1.0, 1.0)),
        "a distribution's std_range is (-1.0, 1.0), but must be finite, from 0 on, the lower first.",
    ),
    (
        unchecked(TrainConfig, task="gym:CartPole-v1", seed=2**32),
        "--seed is 4294967296, but must lie in [0, 2147483647]. The default is 42.",
    ),
    # A command with a default of its own keeps the rule of the flag.
    (
        unchecked(PlayConfig, task="gym:CartPole-v1", num_envs=0),
        "--num-envs is 0, but must be at least 1. The default is 4.",
    ),
    (unchecked(EvaluateConfig, num_envs=0), "--num-envs is 0, but must be at least 1. The default is 64."),
    (
        unchecked(DoctorConfig, hosts=("a", "a")),
        "--hosts names a more than once: name each node once; --nproc-per-node adds workers.",
    ),
    (
        unchecked(PlayConfig, task="gym:CartPole-v1", video_path="walk.gif"),
        "--video-path is 'walk.gif', but must end with .mp4, such as video.mp4.",
    ),
    (
        unchecked(EvaluateConfig, seeds=(1, 2**31)),
        (
            "--seeds is (1, 2147483648), but must have one or more entries, of which each must lie in [0, 2147483647]."
            " The default is (1,)."
        ),
    ),
    # Classes, and what they take.
    (
        unchecked(ModelConfig, class_name="RNModel"),
        (
            "a model's class_name is 'RNModel', but rsl_rl has 'MLPModel', 'RNNModel' or 'CNNModel'."
            " Did you mean 'RNNModel'? A class of your own is written 'module:Class'."
        ),
    ),
    (
        unchecked(PpoConfig, class_name="PP0"),
        (
            "agent.algorithm.class_name is 'PP0', but rsl_rl has 'PPO'. Did you mean 'PPO'?"
            " A class of your own is written 'module:Class'."
        ),
    ),
    (
        unchecked(ModelConfig, rnn_type="gru"),
        (
            "a model's rnn_type is 'gru', but class_name is 'MLPModel', which does not take it:"
            " set class_name to 'RNNModel' or 'CNNModel', or rnn_type to None."
        ),
    ),
    (
        unchecked(DistributionConfig, init_std=0.5),
        (
            "a distribution's init_std is 0.5, but class_name is None, which does not take it: set class_name to"
            " 'GaussianDistribution' or 'HeteroscedasticGaussianDistribution', or init_std to None."
        ),
    ),
    (
        unchecked(DistributionConfig, class_name="HeteroscedasticGaussianDistribution", learn_std=False),
        (
            "a distribution's learn_std is False, but class_name is 'HeteroscedasticGaussianDistribution', which does"
            " not take it: set class_name to 'GaussianDistribution', or learn_std to None."
        ),
    ),
    # Extensions.
    (
        unchecked(SymmetryConfig, enabled=True),
        (
            "agent.algorithm.symmetry.enabled is True, but data_augmentation_func is not given: set it to the"
            " function that mirrors observations and actions, as 'module:function'."
        ),
    ),
    (
        unchecked(SymmetryConfig, use_mirror_loss=True, data_augmentation_func="a:b"),
        (
            "agent.algorithm.symmetry.use_mirror_loss is True, but agent.algorithm.symmetry.enabled is False: set both"
            " to True, or both to False."
        ),
    ),
    (
        unchecked(RndConfig, weight=0.5),
        (
            "agent.algorithm.rnd.weight is 0.5, but agent.algorithm.rnd.enabled is False: set it to True, or the"
            " weight to 0."
        ),
    ),
    (
        unchecked(RndWeightScheduleConfig, mode="step", final_value=0.0),
        "agent.algorithm.rnd.weight_schedule.final_step is None, but mode 'step' needs it: set it, or change the mode.",
    ),
    (
        unchecked(RndWeightScheduleConfig, mode="constant", final_value=0.0),
        (
            "agent.algorithm.rnd.weight_schedule.final_value is 0.0, but mode 'constant' does not take it: set it to"
            " None, or change the mode."
        ),
    ),
    (
        unchecked(RndWeightScheduleConfig, mode="linear", initial_step=5, final_step=5, final_value=0.0),
        "agent.algorithm.rnd.weight_schedule.final_step is 5, but must come after initial_step, 5.",
    ),
    # Parts that do not fit together.
    (
        unchecked(RslRlConfig, actor=ModelConfig()),
        (
            "agent.actor.distribution.class_name is None, but rsl_rl needs a distribution of the actions: set it to"
            " 'GaussianDistribution', 'HeteroscedasticGaussianDistribution' or 'BetaDistribution', the first of which"
            " is the usual one."
        ),
    ),
    (
        unchecked(
            RslRlConfig,
            critic=ModelConfig(class_name="RNNModel"),
            algorithm=PpoConfig(symmetry=SymmetryConfig(enabled=True, data_augmentation_func="a:b")),
        ),
        (
            "agent.critic is recurrent, but agent.algorithm.symmetry.enabled is True, and rsl_rl mirrors no"
            " recurrence: change one of them."
        ),
    ),
]


@pytest.mark.parametrize(("construct", "sentence"), REFUSALS, ids=[sentence[:60] for _, sentence in REFUSALS])
def test_refusal_is_a_sentence_that_says_what_to_do(construct: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        construct()
    assert str(refusal.value) == sentence


SECTIONS: list[Any] = [
    RslRlConfig(),
    PpoConfig(),
    RndConfig(),
    RndWeightScheduleConfig(mode="linear", initial_step=1, final_step=2, final_value=0.0),
    SymmetryConfig(),
    ModelConfig(class_name="RNNModel"),
    DistributionConfig(class_name="GaussianDistribution"),
    DistributionConfig(class_name="BetaDistribution"),
    EnvConfig(),
]


def numbers(section: Any) -> list[tuple[str, Any]]:
    """The fields that hold numbers, each with a value that makes no sense there."""
    hints = get_type_hints(type(section))
    found = []
    for item in fields(section):
        hint = hints[item.name]
        members = {hint} if get_origin(hint) is tuple else {hint, *get_args(hint)}
        for kind in (int, float):
            if kind in members:
                found.append((item.name, -2 if kind is int else math.nan))
            elif tuple[kind, ...] in members:
                found.append((item.name, (-2,)))
            elif tuple[kind, kind] in members:
                found.append((item.name, (math.nan, math.nan)))
    return found


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: type(section).__name__)
def test_every_number_has_a_range(section: Any) -> None:
    for name, nonsense in numbers(section):
        with pytest.raises(UsageError, match=rf"{name} is"):
            type(section)(**{item.name: getattr(section, item.name) for item in fields(section)} | {name: nonsense})


def test_numbers_are_found_in_all_but_one_section() -> None:
    # Else the test above could pass without a look at any.
    assert sum(len(numbers(section)) for section in SECTIONS) > 30


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: type(section).__name__)
def test_configuration_is_frozen_slotted_and_named_by_keywords(section: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(section, fields(section)[0].name, None)
    assert not hasattr(section, "__dict__")
    assert all(item.kw_only for item in fields(section))


@dataclass(frozen=True, slots=True, kw_only=True)
class HillConfig(EnvConfig):
    """A task's own configuration, as the docstring of `EnvConfig` says to write it."""

    slope: float = 0.1
    """Rise of the hill."""

    def __post_init__(self) -> None:
        EnvConfig.__post_init__(self)
        check(self, "env.", {"slope": above(0)})


def test_a_task_adds_ranges_of_its_own_and_keeps_those_of_the_base() -> None:
    with pytest.raises(UsageError, match=r"^env\.slope is -1\.0, but must be above 0\. The default is 0\.1\.$"):
        HillConfig(slope=-1.0)
    with pytest.raises(UsageError, match=r"^env\.episode_length_s is -1\.0"):
        HillConfig(episode_length_s=-1.0)
    assert HillConfig(episode_length_s=3.0).slope == 0.1


def test_a_class_of_ones_own_is_asked_nothing() -> None:
    model = ModelConfig(class_name="my_package:Model", rnn_type="gru")
    assert RslRlConfig(actor=model, algorithm=PpoConfig(class_name="my.module.Ppo")).actor is model


def test_no_number_of_a_task_may_be_nan_and_only_those_infinite_that_are_declared_so() -> None:
    tried: set[str] = set()
    for name, spec in registered().items():
        for item in fields(spec.env):
            value = getattr(spec.env, item.name)
            if isinstance(value, float):
                tried.add(item.name)
                with pytest.raises(UsageError, match=f"env.{item.name} is nan, but must"):
                    replace(spec.env, **{item.name: math.nan})
                if item.default == math.inf:
                    assert getattr(replace(spec.env, **{item.name: math.inf}), item.name) == math.inf
                else:
                    with pytest.raises(UsageError, match=f"env.{item.name} is inf, but must be finite"):
                        replace(spec.env, **{item.name: math.inf})
        env: Any = spec.env
        for group in getattr(env, "kinds", ()):
            for term_name, term in env.terms(group).items():
                for item in fields(term):
                    if isinstance(getattr(term, item.name), float):
                        tried.add(f"{name} {group}.{term_name}.{item.name}")
                        changed = replace(
                            getattr(spec.env, group), **{term_name: replace(term, **{item.name: math.nan})}
                        )
                        with pytest.raises(UsageError, match=f"env.{group}.{term_name}.{item.name} is nan, but must"):
                            replace(spec.env, **{group: changed})
    assert {"upright_weight", "reset_angle_range"} <= tried
    assert "Quadruped-Velocity-Flat rewards.feet_slip.weight" in tried


def test_numbers_within_mappings_and_tuples_are_finite_too() -> None:
    env = registered()["Quadruped-Velocity-Flat"].env
    with pytest.raises(UsageError, match=r"env.pose is \{'hip': nan\}, but must be finite"):
        replace(env, pose={"hip": math.nan})


def test_a_parameter_that_is_declared_infinite_may_be_infinite() -> None:
    term = Reward("feet_slip", weight=1.0, limit=math.inf, speed=2.0)
    rules = rules_of(type(term))
    assert (rules["limit"], rules["speed"]) == (NOT_NAN, FINITE)
    assert [NOT_NAN.holds(value) for value in (math.inf, (0.0, -math.inf), math.nan, {"a": math.nan})] == [
        *(True, True),
        *(False, False),
    ]
