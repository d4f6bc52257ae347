"""From words to a configuration, in two stages.

The task, or a saved configuration, chooses the defaults; flags override them. The flags are derived from the
configuration itself, by tyro.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import tyro
import yaml

from shoal.config import (
    AgentKind,
    BenchConfig,
    CheckpointsConfig,
    ConvertConfig,
    DoctorConfig,
    EnvConfig,
    ExportConfig,
    PlayConfig,
    ReplayConfig,
    TrainConfig,
)
from shoal.config.checks import other_code
from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError
from shoal.plan.checkpoints import run_of
from shoal.plan.ranks import joined_rank
from shoal.plan.resume import find_model, run_to_continue
from shoal.plan.rundir import RunDir
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


T = TypeVar("T")
EnvT = TypeVar("EnvT", bound=EnvConfig)
PolicyT = TypeVar("PolicyT", PlayConfig, ExportConfig)


_ABOUT_TRAIN = """Train a policy.

--config FILE, which may stand several times, reads defaults from a file such as <run>/params/train.yaml, before all
flags below."""
_ABOUT_PLAY = "Run episodes of a policy: a trained one, without exploration noise, or one that needs no training."
_ABOUT_EXPORT = "Write a trained policy as ONNX, and as a program of torch.export."
_ABOUT_REPLAY = "Step an environment that a training has lost once more, with MuJoCo C, and tell what went wrong first."
_ABOUT_CHECKPOINTS = "List the checkpoints of a run, and verify each against its manifest."
_ABOUT_CONVERT = "Make a plain model.pt, which `train` and `play` take, of a checkpoint of rsl_rl, mjlab or Isaac Lab."
_ABOUT_DOCTOR = "Look at everything that a training needs, and say what is wrong and what to do."
_ABOUT_BENCH = "Measure environment and training steps per second, and the time to the first iteration."


_SHORT = {"--save-interval": "--agent.save-interval", "--save_interval": "--agent.save-interval"}
"""What may be said in short: it stands beside `--keep-last` and `--keep-every`, though it is the learner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlayFlags(PlayConfig):
    """The flags of `play`, whose `--agent` is no field's name: the learner is called so, and `--agent.*` is its own."""

    agent_kind: Annotated[AgentKind, tyro.conf.arg(name="agent")] = "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplayFlags(ReplayConfig):
    """The flags of `shoal replay`, whose file is no flag."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckpointsFlags(CheckpointsConfig):
    """The words of `shoal checkpoints`."""

    run: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[RUN]")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConvertFlags(ConvertConfig):
    """The words of `shoal convert`."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]


def parse_flags(default: T, arguments: Sequence[str], *, program: str, about: str) -> T:
    """Read flags that override the fields of `default`.

    tyro prints its own refusals, with the nearest valid names, and exits with 2.

    Args:
        default: The configuration before any flag is read.
        arguments: The flags.
        program: The command, as help and refusals name it.
        about: What the command does, for its help.
    """
    words = list(arguments)
    return tyro.cli(type(default), prog=program, description=about, args=words, default=default)


def split_task(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take the task out of the words: what `--task` says, the first word, or else the first one that names a task.

    Returns:
        The task, None when there is none, and all other words in their order.

    Raises:
        UsageError: Two tasks are named.
    """
    said, words = _take("--task", arguments, example="--task Cartpole-Swingup")
    place = next((index for index, word in enumerate(words) if _is_task(word, first=index == 0)), None)
    if place is not None:
        said.append(words.pop(place))
    if len(said) > 1:
        message = f"One training has one task, but {' and '.join(said)} were named: pass one of them."
        raise UsageError(message)
    return (said[0] if said else None), words


def _is_task(word: str, *, first: bool) -> bool:
    """Whether a word is the task. Behind flags that take several words, it is told by what it is."""
    file = ".py:" in word or word.endswith(".py")
    return (first and not word.startswith("-")) or word in registry.registered() or file


def parse_train(arguments: Sequence[str], *, program: str = "train") -> TrainConfig:
    """Read the words after `train`.

    Raises:
        UsageError: They contradict each other, or name something that does not exist.
    """
    task, words = split_task(arguments)
    files, words = _take("--config", words, example="--config <run>/params/train.yaml")
    words = [_SHORT.get(flag, flag) + equals + value for flag, equals, value in (word.partition("=") for word in words)]
    saved = [Path(file) for file in files]
    default = _defaults(task, saved)
    asked = parse_flags(default, words, program=f"{program} {default.task}", about=_ABOUT_TRAIN)
    if asked.resume is not None and not saved and not _follows(asked):
        # The run that goes on keeps what it was trained with, unless this command says otherwise.
        run, _damaged = run_to_continue(asked, registry.resolve(asked.task))
        train_yaml = run.train_yaml
        if train_yaml.is_file():
            default = _of_run(task, run, asked.log_root, trust=f"--config {train_yaml}")
            asked = parse_flags(default, words, program=f"{program} {default.task}", about=_ABOUT_TRAIN)
    return _only_one_number_of_envs(asked, words)


def _follows(asked: TrainConfig) -> bool:
    """Whether this process, or its workers, may not see the run that goes on, and take it from rank 0."""
    rank = joined_rank()
    return bool(asked.node_rank) if rank is None else rank.rank > 0 and rank.local_world_size < rank.world_size


def parse_play(arguments: Sequence[str], *, program: str) -> PlayConfig:
    """Read the words after `play` or `evaluate`. What a policy was trained with is read from its run.

    Raises:
        UsageError: They name a policy that does not exist.
    """
    return _parse_policy(_PlayFlags, arguments, program=program, about=_ABOUT_PLAY)


def parse_export(arguments: Sequence[str]) -> ExportConfig:
    """Read the words after `shoal export`. What the policy was trained with is read from its run.

    Raises:
        UsageError: They name a policy that does not exist.
    """
    return _parse_policy(ExportConfig, arguments, program="shoal export", about=_ABOUT_EXPORT)


def _parse_policy(kind: type[PolicyT], arguments: Sequence[str], *, program: str, about: str) -> PolicyT:
    """Read flags about a trained policy, whose own training is the default of environment and learner."""
    task, words = split_task(arguments)
    if task is None:
        message = f"No task was named: pass one, such as `{program} Cartpole-Swingup`. `shoal tasks` lists them all."
        raise UsageError(message)
    spec = registry.resolve(task)
    default = kind(task=task, env=spec.env.in_play().undisturbed(), agent=spec.agent)
    asked = parse_flags(default, words, program=f"{program} {task}", about=about)
    trained = spec.defaults(task)
    if not isinstance(asked, PlayConfig) or asked.agent_kind == "trained":
        run = run_of(find_model(asked.log_root, spec, asked.checkpoint))
        if run is not None:
            trained = _of_run(task, run, asked.log_root, trust=None if asked.trust_run else "--trust-run")
    env = trained.env.in_play()
    if not (isinstance(asked, PlayConfig) and asked.disturbances):
        env = env.undisturbed()
    default = replace(default, env=env, agent=trained.agent)
    return parse_flags(default, words, program=f"{program} {task}", about=about)


def parse_bench(arguments: Sequence[str]) -> BenchConfig:
    """Read the words after `shoal bench`.

    Raises:
        UsageError: They name no task, or something that cannot be measured.
    """
    task, words = split_task(arguments)
    if task is None:
        message = "No task was named: pass one, such as `shoal bench Cartpole-Swingup`. `shoal tasks` lists them all."
        raise UsageError(message)
    default = BenchConfig(task=task, num_envs=registry.resolve(task).num_envs)
    return parse_flags(default, words, program=f"shoal bench {task}", about=_ABOUT_BENCH)


def parse_doctor(arguments: Sequence[str]) -> DoctorConfig:
    """Read the words after `shoal doctor`. A task may be named, and need not.

    Raises:
        UsageError: They name something that cannot be looked at.
    """
    task, words = split_task(arguments)
    return parse_flags(DoctorConfig(task=task), words, program="shoal doctor", about=_ABOUT_DOCTOR)


def parse_replay(arguments: Sequence[str]) -> ReplayConfig:
    """Read the words after `shoal replay`. No task is asked for: the file knows it."""
    return tyro.cli(_ReplayFlags, prog="shoal replay", description=_ABOUT_REPLAY, args=list(arguments))


def parse_checkpoints(arguments: Sequence[str]) -> CheckpointsConfig:
    """Read the words after `shoal checkpoints`."""
    return tyro.cli(_CheckpointsFlags, prog="shoal checkpoints", description=_ABOUT_CHECKPOINTS, args=list(arguments))


def parse_convert(arguments: Sequence[str]) -> ConvertConfig:
    """Read the words after `shoal convert`."""
    return tyro.cli(_ConvertFlags, prog="shoal convert", description=_ABOUT_CONVERT, args=list(arguments))


def _defaults(task: str | None, files: Sequence[Path]) -> TrainConfig:
    """Return the training that is meant before any flag is read."""
    layers = {file: _read_yaml(file) for file in files}
    named = task or next((str(layer["task"]) for layer in layers.values() if "task" in layer), None)
    if named is None:
        message = "No task was named: pass one, such as `train Cartpole-Swingup`. `shoal tasks` lists them all."
        raise UsageError(message)
    config = registry.resolve(named).defaults(named)
    for file, layer in layers.items():
        try:
            config = from_plain(config, layer | {"task": named})
        except UsageError as error:
            message = f"In {file}: {error}"
            raise UsageError(message) from error
        config = replace(config, env=_with_models_of(RunDir(file.parent.parent), config.env, layer))
    return config


def _with_models_of(run: RunDir, env: EnvT, layer: Mapping[str, Any]) -> EnvT:
    """Return a configuration that was read from `layer`, a file of a run, with the run's own copies of models."""
    asked = [field for field in env.model_fields if layer.get("env", {}).get(field)]
    found = {field: str(file.absolute()) for field in asked if (file := run.saved_model(field))}
    return replace(env, **found)


def _of_run(task: str | None, run: RunDir, log_root: str, *, trust: str | None) -> TrainConfig:
    """Return what a run was trained with.

    Args:
        task: What was named in this command.
        run: The run.
        log_root: Below it are this user's own runs.
        trust: What to pass for a run of another user; None where it was passed.

    Raises:
        UsageError: It is another's, and names code.
    """
    config = _defaults(task, [run.train_yaml])
    if trust is not None and not run.path.resolve().is_relative_to(Path(log_root).resolve()):
        found = other_code(to_plain(_defaults(task, [])), to_plain(config))
        if found is not None:
            message = (
                f"The run {run.path} would import '{found[1]}' ({found[0]}), and is not below --log-root {log_root}: "
                f"read that code, and pass {trust} if you trust it."
            )
            raise UsageError(message)
    return config


def _take(flag: str, arguments: Sequence[str], *, example: str) -> tuple[list[str], list[str]]:
    """Take a flag, which may stand several times, out of the words: its values, and all other words.

    Raises:
        UsageError: It stands there without a value.
    """
    values: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name != flag:
            rest.append(word)
            continue
        value = value if equals else next(remaining, "")
        if not value:
            message = f"{flag} needs a value: pass {example}."
            raise UsageError(message)
        values.append(value)
    return values, rest


def _read_yaml(file: Path) -> dict[str, Any]:
    """Read one configuration file.

    Raises:
        UsageError: It is not there, is no YAML, or holds something else than named values.
    """
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"--config {file} cannot be read ({error.strerror}): pass a file such as <run>/params/train.yaml."
        raise UsageError(message) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = " ".join(str(error).split())  # PyYAML draws a picture over several lines.
        message = f"--config {file} is no plain YAML ({where}): pass a file such as <run>/params/train.yaml."
        raise UsageError(message) from error
    if not isinstance(data, dict):
        message = f"--config {file} holds no named values: it must look like <run>/params/train.yaml."
        raise UsageError(message)
    return cast("dict[str, Any]", data)


def _only_one_number_of_envs(config: TrainConfig, words: Sequence[str]) -> TrainConfig:
    given = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    if {"--num-envs", "--num-envs-total"} <= given:
        message = (
            "--num-envs and --num-envs-total exclude each other: --num-envs counts the environments on each worker, "
            "--num-envs-total those of all workers together. Pass one of them."
        )
        raise UsageError(message)
    # A saved total must not outlive a --num-envs that was typed now.
    return replace(config, num_envs_total=None) if "--num-envs" in given else config
