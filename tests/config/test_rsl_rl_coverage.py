"""Our configurations against rsl_rl's own source: a new, renamed or re-defaulted setting there fails here, by name.

The tables below are the one place that says what is left out on purpose, and where our defaults are other ones.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import pytest
import rsl_rl
import torch
from rsl_rl import algorithms, extensions, models, modules, runners
from rsl_rl.modules import distribution
from rsl_rl.utils import compile_model, resolve_nn_activation, resolve_optimizer

from shoal.config import (
    CnnConfig,
    DistributionConfig,
    ModelConfig,
    PpoConfig,
    RndConfig,
    RndWeightScheduleConfig,
    RslRlConfig,
    SymmetryConfig,
)
from shoal.config.algorithm import (
    DISTRIBUTION_FIELDS,
    MODEL_FIELDS,
    SCHEDULE_FIELDS,
    Activation,
    Optimizer,
    ScheduleMode,
)
from shoal.config.checks import is_given
from shoal.config.rsl_rl import RSL_RL_NAMES, CompileMode

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(rsl_rl.__file__).parent
BY_CONSTRUCTION = "an object that `construct_algorithm` makes and passes"
BY_PLAN = "decided by the plan and the worker, not by a configuration"
BY_OBSERVATION = "follows from the observations, and is filled in by rsl_rl"
BY_RUN = "belongs to TrainConfig and the metrics of our own runner"
BY_CALLER = "says what to load from a checkpoint, and is an argument of `load`"

NOT_CONFIGURED: dict[str, dict[str, str]] = {
    "runner": {
        "logger": BY_RUN,
        "run_name": BY_RUN,
        "wandb_project": BY_RUN,
        "neptune_project": BY_RUN,
        "multi_gpu": BY_PLAN,
    },
    "PPO": {
        "actor": BY_CONSTRUCTION,
        "critic": BY_CONSTRUCTION,
        "storage": BY_CONSTRUCTION,
        "device": BY_PLAN,
        "multi_gpu_cfg": BY_PLAN,
    },
    "MLPModel": dict.fromkeys(("obs", "obs_groups", "obs_set", "output_dim"), BY_CONSTRUCTION),
    "RNNModel": dict.fromkeys(("obs", "obs_groups", "obs_set", "output_dim"), BY_CONSTRUCTION),
    "CNNModel": dict.fromkeys(("obs", "obs_groups", "obs_set", "output_dim", "cnns"), BY_CONSTRUCTION),
    "CNN": {
        **dict.fromkeys(("input_dim", "input_channels"), BY_OBSERVATION),
        "flatten": "the perceptron behind it needs it",
        "dilation": "a larger kernel or stride does as well on small images",
        "global_pool": "where something is in an image would be lost",
        "norm": "statistics of batches differ between acting and learning",
    },
    "GaussianDistribution": {"output_dim": BY_CONSTRUCTION},
    "HeteroscedasticGaussianDistribution": {"output_dim": BY_CONSTRUCTION},
    "BetaDistribution": {"output_dim": BY_CONSTRUCTION},
    "RandomNetworkDistillation": {
        "num_states": BY_OBSERVATION,
        "obs_groups": "the agent's own, filled in by rsl_rl",
        "device": BY_PLAN,
    },
    "constant": {"step": "the count of environment steps, passed by rsl_rl", "kwargs": "takes what others need"},
    "step": {"step": "the count of environment steps, passed by rsl_rl", "kwargs": "takes what others need"},
    "linear": {"step": "the count of environment steps, passed by rsl_rl", "kwargs": "takes what others need"},
    "Symmetry": {"env": "filled in by rsl_rl"},
}
"""What rsl_rl takes and no configuration of ours offers, with the reason, by the class or function that takes it."""

NOT_PASSED: dict[str, dict[str, str]] = {
    "PPO": {"share_cnn_encoders": "rsl_rl reads it when it builds the networks"},
    "CNNModel": dict.fromkeys(("rnn_type", "rnn_hidden_dim", "rnn_num_layers"), "of Shoal's RecurrentCNNModel"),
    "CNN": {"spatial_softmax_temperature": "of Shoal's CNNModel"},
    "RandomNetworkDistillation": {"enabled": "decides whether there is a `rnd_cfg`"},
    "Symmetry": {"enabled": "decides whether there is a `symmetry_cfg`"},
}
"""Fields of ours that the constructor itself does not take."""

OTHER_DEFAULTS: dict[str, dict[str, str]] = {
    "CNN": dict.fromkeys(("output_channels", "kernel_size"), "rsl_rl has none; needed by a CNNModel"),
    "RandomNetworkDistillation": {
        "num_outputs": "rsl_rl has none; Isaac Lab's",
        "predictor_hidden_dims": "rsl_rl has none; Isaac Lab's",
        "target_hidden_dims": "rsl_rl has none; Isaac Lab's",
    },
    "step": dict.fromkeys(("final_step", "final_value"), "rsl_rl has none; refused when the mode needs them"),
    "linear": dict.fromkeys(
        ("initial_step", "final_step", "final_value"), "rsl_rl has none; refused when the mode needs them"
    ),
    "Symmetry": {"data_augmentation_func": "rsl_rl has none; refused when symmetry is enabled"},
}
"""Defaults of ours that are not rsl_rl's, with the reason."""

RND = extensions.RandomNetworkDistillation
COUNTERPARTS: dict[str, tuple[Any, Any, set[str] | None]] = {
    "PPO": (algorithms.PPO, PpoConfig, None),
    **{name: (getattr(models, name), ModelConfig, set(own)) for name, own in MODEL_FIELDS.items()},
    **{name: (getattr(modules, name), DistributionConfig, set(own)) for name, own in DISTRIBUTION_FIELDS.items()},
    "CNN": (modules.CNN, CnnConfig, None),
    "RandomNetworkDistillation": (RND, RndConfig, None),
    "constant": (RND._constant_weight_schedule, RndWeightScheduleConfig, set(SCHEDULE_FIELDS["constant"])),
    "step": (RND._step_weight_schedule, RndWeightScheduleConfig, set(SCHEDULE_FIELDS["step"])),
    "linear": (RND._linear_weight_schedule, RndWeightScheduleConfig, set(SCHEDULE_FIELDS["linear"])),
    "Symmetry": (extensions.Symmetry, SymmetryConfig, None),
}
"""What takes settings in rsl_rl, the configuration of ours that holds them, and which fields only some classes take."""

each_counterpart = pytest.mark.parametrize("name", COUNTERPARTS)


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """What the class or function takes, except `self`."""
    taker = COUNTERPARTS[name][0]
    found = dict(inspect.signature(taker).parameters)
    found.pop("self", None)
    return found


def fields_of(name: str) -> dict[str, Any]:
    """Our fields for a class, with their defaults, under rsl_rl's names."""
    _, config, own = COUNTERPARTS[name]
    special = set().union(*MODEL_FIELDS.values(), *DISTRIBUTION_FIELDS.values(), SCHEDULE_FIELDS["linear"])
    ours, default = {}, config()
    for item in fields(config):
        if item.name in {"class_name", "mode"} or (own is not None and item.name in special - own):
            continue
        value = getattr(default, item.name)
        # A section that is off stands for rsl_rl's None.
        ours[RSL_RL_NAMES.get(item.name, item.name)] = value if is_given(value) else None
    return ours


@each_counterpart
def test_every_setting_of_rsl_rl_is_configured_or_left_out_with_a_reason(name: str) -> None:
    missing = set(parameters_of(name)) - set(fields_of(name)) - set(NOT_CONFIGURED.get(name, {}))
    assert not missing, f"rsl_rl's {name} takes {missing}: add them to {COUNTERPARTS[name][1].__name__}."


@each_counterpart
def test_every_field_of_ours_is_taken_by_rsl_rl(name: str) -> None:
    unknown = set(fields_of(name)) - set(parameters_of(name)) - set(NOT_PASSED.get(name, {}))
    assert not unknown, f"rsl_rl's {name} takes no {unknown}: rename or drop them."


@each_counterpart
def test_defaults_are_those_of_rsl_rl_or_other_ones_with_a_reason(name: str) -> None:
    theirs, on_purpose = parameters_of(name), OTHER_DEFAULTS.get(name, {})
    ours = {key: value for key, value in fields_of(name).items() if key in theirs}
    # None of ours leaves the setting out, which takes rsl_rl's default, unless there is none.
    same = {
        key
        for key, value in ours.items()
        if value == theirs[key].default or (value is None and theirs[key].default is not inspect.Parameter.empty)
    }
    assert set(ours) - same == set(on_purpose)


def test_no_reason_is_given_for_what_rsl_rl_no_longer_takes() -> None:
    for name, reasons in NOT_CONFIGURED.items():
        if name in COUNTERPARTS:
            assert set(reasons) <= set(parameters_of(name)), name
            assert not set(reasons) & set(fields_of(name)), name
    for table in (NOT_PASSED, OTHER_DEFAULTS):
        for name, reasons in table.items():
            assert set(reasons) <= set(fields_of(name)), name


@pytest.mark.parametrize("name", ["RNNModel", *DISTRIBUTION_FIELDS])
def test_a_docstring_that_promises_the_default_of_rsl_rl_names_it(name: str) -> None:
    described, ours = docstrings(COUNTERPARTS[name][1]), fields_of(name)
    promised = {key: text for key, text in described.items() if "None takes rsl_rl's" in text and key in ours}
    assert promised
    for key, text in promised.items():
        default = parameters_of(name)[key].default
        words = [in_words(entry) for entry in (default if isinstance(default, tuple) else (default,))]
        said = text.partition("None takes rsl_rl's")[2]
        assert all(word in said for word in words), f"{key} says{said} But rsl_rl's is {default!r}."


def in_words(value: object) -> str:
    """A default as a docstring writes it: floats as short as they can be."""
    return f"{value:g}".replace("e-0", "e-").replace("e+0", "e") if isinstance(value, float) else str(value)


def docstrings(config: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, its own fields only."""
    [body] = [node for node in ast.walk(ast.parse(inspect.getsource(config))) if isinstance(node, ast.ClassDef)]
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            found[field.target.id] = str(text.value.value) if is_text else ""  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("config", [*dict.fromkeys(entry[1] for entry in COUNTERPARTS.values()), RslRlConfig])
def test_every_field_has_a_docstring_of_its_own(config: type) -> None:
    described = docstrings(config)
    assert described
    # Every line ends a sentence, because tyro keeps the breaks of an indented docstring in its help.
    assert [name for name, text in described.items() if not all(line.endswith(".") for line in text.split("\n"))] == []


def test_every_class_that_can_be_named_has_a_configuration() -> None:
    named = {*models.__all__, *algorithms.__all__} | {
        name for name in extensions.__all__ if inspect.isclass(getattr(extensions, name))
    }
    named |= {
        name
        for name, member in inspect.getmembers(distribution, inspect.isclass)
        if issubclass(member, distribution.Distribution) and member is not distribution.Distribution
    }
    assert named - set(COUNTERPARTS) == {"Distillation"}  # It has a configuration of its own.
    assert set(runners.__all__) == {"OnPolicyRunner", "DistillationRunner"}


def test_every_weight_schedule_has_a_mode() -> None:
    endings = [name for name in vars(RND) if name.endswith("_weight_schedule")]
    assert {name.removesuffix("_weight_schedule").strip("_") for name in endings} == set(get_args(ScheduleMode))


# What rsl_rl reads from dicts rather than takes as parameters.

READ_BY = ("runners", "algorithms", "extensions", "utils/logger.py")
"""Where rsl_rl reads configuration dicts."""

DICTS = {
    "cfg": "runner",
    "train_cfg": "runner",
    "alg_cfg": "algorithm",
    "algorithm": "algorithm",
    "actor_cfg": "model",
    "critic_cfg": "model",
    "rnd_cfg": "RandomNetworkDistillation",
    "symmetry_cfg": "Symmetry",
    "multi_gpu_cfg": "multi_gpu",
    "logger_cfg": "logger",
    "load_cfg": "load",
    "weight_schedule": "weight_schedule",
}
"""Names of dicts in rsl_rl's source, with what they configure."""


def keys_read() -> Iterator[tuple[str, str, str]]:
    """Each key that rsl_rl's source asks a configuration dict for: the dict, the key, and where."""
    paths = [path for part in READ_BY for path in sorted((SOURCE / part).rglob("*.py")) or [SOURCE / part]]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            asked = asked_for(node)
            if asked is not None:
                yield *asked, f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"


def asked_for(node: ast.AST) -> tuple[str, str] | None:
    """The dict and the key of `d["key"]`, `d.get("key")`, `d.pop("key")` and `"key" in d`."""
    match node:
        case ast.Subscript(value=holder, slice=ast.Constant(value=str(key))):
            pass
        case ast.Call(func=ast.Attribute(value=holder, attr="get" | "pop"), args=[ast.Constant(value=str(key)), *_]):
            pass
        case ast.Compare(left=ast.Constant(value=str(key)), ops=[ast.In()], comparators=[holder]):
            pass
        case _:
            return None
    match holder:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return (name, key) if name.endswith("cfg") or name in DICTS else None
        case _:
            return None


def keys_covered() -> dict[str, set[str]]:
    """The keys that `to_rsl_rl` can make or that are left out with a reason, by what they configure."""
    rsl_names = {RSL_RL_NAMES.get(item.name, item.name) for item in fields(PpoConfig)}
    owned = {item.name for item in fields(RslRlConfig)} | {"student", "teacher"}  # No teacher can be configured.
    return {
        "runner": owned | set(NOT_CONFIGURED["runner"]),
        "algorithm": rsl_names,
        "model": {"cnns"},
        "RandomNetworkDistillation": set(fields_of("RandomNetworkDistillation"))
        | set(NOT_CONFIGURED["RandomNetworkDistillation"]),
        "Symmetry": set(fields_of("Symmetry")) | set(NOT_CONFIGURED["Symmetry"]),
        "weight_schedule": {item.name for item in fields(RndWeightScheduleConfig)},
        "multi_gpu": {"global_rank", "local_rank", "world_size"},  # BY_PLAN
        "logger": {"class_name"},  # BY_RUN
        "load": {"actor", "critic", "student", "teacher", "optimizer", "iteration", "rnd"},  # BY_CALLER
    }


def test_every_key_that_rsl_rl_reads_is_configured_or_left_out_with_a_reason() -> None:
    covered = keys_covered()
    strange = [
        f"{where} reads {holder}[{key!r}]"
        for holder, key, where in keys_read()
        if key not in covered.get(DICTS.get(holder, ""), set())
    ]
    assert not strange, "; ".join(strange)


def test_the_scan_finds_the_keys_that_are_known_to_be_read() -> None:
    # Else a scan that finds nothing would pass the test above.
    found = {(DICTS.get(holder, holder), key) for holder, key, _ in keys_read()}
    known = {"num_steps_per_env", "save_interval", "obs_groups", "check_for_nan", "torch_compile_mode"}
    known |= {"algorithm", "actor", "critic", "student", "teacher", *NOT_CONFIGURED["runner"]}
    assert {key for holder, key in found if holder == "runner"} == known
    assert {("algorithm", "share_cnn_encoders"), ("algorithm", "rnd_cfg"), ("weight_schedule", "mode")} <= found


# Names that rsl_rl answers with the valid ones, or takes without complaint.


def test_names_of_activations_are_those_of_rsl_rl() -> None:
    with pytest.raises(ValueError, match="Valid activations are") as refusal:
        resolve_nn_activation("no such name")
    assert ast.literal_eval(str(refusal.value).partition(" are: ")[2]) == list(get_args(Activation))


def test_names_of_optimizers_are_those_of_rsl_rl() -> None:
    with pytest.raises(ValueError, match="Valid optimizers are") as refusal:
        resolve_optimizer("no such name")
    assert ast.literal_eval(str(refusal.value).partition(" are: ")[2]) == list(get_args(Optimizer))


def test_compile_modes_are_those_that_rsl_rl_lets_through() -> None:
    for mode in get_args(CompileMode):
        assert compile_model(torch.nn.Identity(), mode) is not None
    for mode in ("reduce-overhead", "max-autotune"):
        with pytest.raises(ValueError, match="CUDA graphs"):
            compile_model(torch.nn.Identity(), mode)


@each_counterpart
def test_types_hold_what_rsl_rl_asks_for(name: str) -> None:
    # A setting that becomes a number, or may become None, must not keep the old type here.
    hints = get_type_hints(COUNTERPARTS[name][1])
    names = {RSL_RL_NAMES.get(field, field): field for field in hints}
    for key, parameter in parameters_of(name).items():
        if key in fields_of(name) and parameter.annotation in {"int", "float", "bool"}:
            said = hints[names[key]]
            kinds = {said, *get_args(said)} - {type(None)}
            assert {kind.__name__ for kind in kinds if isinstance(kind, type)} & {parameter.annotation}, key
