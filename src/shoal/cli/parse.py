"""Command line arguments to configurations.

The task, or a saved configuration, has the defaults; flags override them. tyro derives the flags from the fields of
the configuration. Arguments that contradict each other, or name what does not exist, raise a UsageError.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import tyro
import yaml

from shoal.cli.help import HELP_FLAGS, print_help
from shoal.cli.report import print_note
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
from shoal.config.checks import foreign_code
from shoal.config.learners import LEARNERS
from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError
from shoal.plan.checkpoints import run_of
from shoal.plan.ranks import joined_rank
from shoal.plan.resume import find_model, run_to_continue
from shoal.plan.rundir import RunDir
from shoal.tasks import registry
from shoal.user_code import absolute

T = TypeVar("T")
EnvT = TypeVar("EnvT", bound=EnvConfig)
PolicyT = TypeVar("PolicyT", PlayConfig, ExportConfig)


_ABOUT = {
    "train": "Train a policy. --config FILE reads defaults from a file such as <run>/params/train.yaml.",
    "play": "Run episodes of a policy without exploration noise, and print their returns.",
    "export": "Write a trained policy as ONNX, and as a torch.export program.",
    "replay": "Step an environment that diverged once more, in MuJoCo C, and print the first non-finite value.",
    "checkpoints": "List the checkpoints of a run, and verify each against its manifest.",
    "convert": "Convert a checkpoint of rsl_rl, mjlab or Isaac Lab to a model.pt that `train` and `play` load.",
    "doctor": "Check everything that a training needs, and print problems with their remedies.",
    "bench": "Measure environment and training steps per second, and the time to the first iteration.",
}

_ALIASES = {"--save-interval": "--agent.save-interval", "--save_interval": "--agent.save-interval"}
"""Short names of flags: this one belongs beside `--keep-last`, but is a field of the learner."""

_WITHOUT_ENCODERS = {"cnn", "cnn_groups", "share_cnn_encoders"}
"""Fields of the learner that no longer exist, and that the train.yaml of an older run still has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlayFlags(PlayConfig):
    """Flags of `play`. `--agent` selects the source of actions, while the field `agent` is the learner."""

    agent_kind: Annotated[AgentKind, tyro.conf.arg(name="agent")] = "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplayFlags(ReplayConfig):
    """Arguments of `shoal replay`: the file is positional."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckpointsFlags(CheckpointsConfig):
    """Arguments of `shoal checkpoints`: the run is positional."""

    run: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[RUN]")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConvertFlags(ConvertConfig):
    """Arguments of `shoal convert`: the file is positional."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]


def parse_flags(default: T | type[T], arguments: Sequence[str], *, program: str, about: str) -> T:
    """Return `default` with the fields that flags override.

    tyro prints its own errors, with the nearest valid names, and exits with 2.

    Args:
        default: The configuration without any flag, or its class.
        arguments: The flags.
        program: The command, as help and errors name it.
        about: Key of the command's description.
    """
    kind: Any = default if isinstance(default, type) else type(default)
    defaults: dict[str, Any] = {} if isinstance(default, type) else {"default": default}

    def parse(words: Sequence[str]) -> T:
        return tyro.cli(kind, prog=program, description=_ABOUT[about], args=list(words), **defaults)

    if any(word in HELP_FLAGS for word in arguments):
        print_help(arguments, program, lambda: parse(["--help"]))
        raise SystemExit(0)
    return parse(arguments)


def split_task(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Separate the task from the other arguments: the value of `--task`, the first word, or the first task's name.

    Returns:
        The task, None when there is none, and all other arguments in their order.
    """
    named, words = _take("--task", arguments, example="--task Cartpole-Swingup")
    place = next((index for index, word in enumerate(words) if _is_task(word, first=index == 0)), None)
    if place is not None:
        named.append(words.pop(place))
    if len(named) > 1:
        raise UsageError(f"One training has one task, but {' and '.join(named)} were named: pass one of them.")
    return (named[0] if named else None), words


def _is_task(word: str, *, first: bool) -> bool:
    """Whether an argument is the task: the first one, a registered name, or a Python file."""
    file = ".py:" in word or word.endswith(".py")
    return (first and not word.startswith("-")) or word in registry.registered() or file


def parse_train(arguments: Sequence[str], *, program: str = "train") -> TrainConfig:
    """Parse the arguments of `train`."""
    task, words = split_task(arguments)
    files, words = _take("--config", words, example="--config <run>/params/train.yaml")
    learner, words = _take_learner(words)
    words = [
        _ALIASES.get(flag, flag) + equals + value for flag, equals, value in (word.partition("=") for word in words)
    ]
    saved = [Path(file) for file in files]
    default = _defaults(task, learner, saved)
    config = parse_flags(default, words, program=f"{program} {default.task}", about="train")
    if config.resume is not None and not saved and not _is_follower(config):
        # A resumed run keeps its configuration, unless flags override it.
        run, _damaged = run_to_continue(config, registry.resolve(config.task))
        train_yaml = run.train_yaml
        if train_yaml.is_file():
            default = _of_run(task, learner, run, config.log_root, trust=f"--config {train_yaml}")
            config = parse_flags(default, words, program=f"{program} {default.task}", about="train")
    return _only_one_number_of_envs(config, words)


def _is_follower(config: TrainConfig) -> bool:
    """Whether the run directory may be out of this process's reach, so that rank 0 alone resolves `--resume`."""
    rank = joined_rank()
    return bool(config.node_rank) if rank is None else rank.rank > 0 and rank.local_world_size < rank.world_size


def parse_play(arguments: Sequence[str], *, program: str) -> PlayConfig:
    """Parse the arguments of `play` or `evaluate`. Defaults are those of the policy's run."""
    return _parse_policy(_PlayFlags, _with_video_path(arguments), program=program, about="play")


def parse_export(arguments: Sequence[str]) -> ExportConfig:
    """Parse the arguments of `shoal export`. Defaults are those of the policy's run."""
    return _parse_policy(ExportConfig, arguments, program="shoal export", about="export")


def _parse_policy(kind: type[PolicyT], arguments: Sequence[str], *, program: str, about: str) -> PolicyT:
    """Parse flags of a trained policy, with the environment and the learner of its training as defaults."""
    task, words = split_task(arguments)
    if task is None:
        message = f"No task was named: pass one, such as `{program} Cartpole-Swingup`. `shoal tasks` lists them all."
        raise UsageError(message)
    learner, words = _take_learner(words)
    spec = registry.resolve(task)
    trained = spec.defaults(task, learner)
    env = spec.env.in_play().undisturbed()
    default = kind(task=task, env=env, learner=trained.learner, agent=trained.agent)
    config = parse_flags(default, words, program=f"{program} {task}", about=about)
    if not isinstance(config, PlayConfig) or config.agent_kind == "trained":
        run = run_of(find_model(config.log_root, spec, config.checkpoint))
        if run is not None:
            trained = _of_run(task, learner, run, config.log_root, trust=None if config.trust_run else "--trust-run")
    env = trained.env.in_play()
    if not (isinstance(config, PlayConfig) and config.disturbances):
        env = env.undisturbed()
    default = replace(default, env=env, learner=trained.learner, agent=trained.agent)
    return parse_flags(default, words, program=f"{program} {task}", about=about)


def parse_bench(arguments: Sequence[str]) -> BenchConfig:
    """Parse the arguments of `shoal bench`."""
    task, words = split_task(arguments)
    if task is None:
        message = "No task was named: pass one, such as `shoal bench Cartpole-Swingup`. `shoal tasks` lists them all."
        raise UsageError(message)
    default = BenchConfig(task=task, num_envs=registry.resolve(task).num_envs)
    return parse_flags(default, words, program=f"shoal bench {task}", about="bench")


def parse_doctor(arguments: Sequence[str]) -> DoctorConfig:
    """Parse the arguments of `shoal doctor`; the task is optional."""
    task, words = split_task(arguments)
    return parse_flags(DoctorConfig(task=task), words, program="shoal doctor", about="doctor")


def parse_replay(arguments: Sequence[str]) -> ReplayConfig:
    """Parse the arguments of `shoal replay`. The file names its task."""
    return parse_flags(_ReplayFlags, _with_video_path(arguments), program="shoal replay", about="replay")


def parse_checkpoints(arguments: Sequence[str]) -> CheckpointsConfig:
    """Parse the arguments of `shoal checkpoints`."""
    return parse_flags(_CheckpointsFlags, arguments, program="shoal checkpoints", about="checkpoints")


def parse_convert(arguments: Sequence[str]) -> ConvertConfig:
    """Parse the arguments of `shoal convert`."""
    return parse_flags(_ConvertFlags, arguments, program="shoal convert", about="convert")


def _with_video_path(arguments: Sequence[str]) -> list[str]:
    """Accept `--video FILE`, the former spelling of `--video-path FILE`, with a line on standard error."""
    words = [re.sub(r"^--video(?==|$)", "--video-path", word) for word in arguments]
    if words != list(arguments):
        print_note("--video FILE is now called --video-path FILE: --video is the switch of `train`.")
    return words


def _defaults(task: str | None, learner: str | None, files: Sequence[Path]) -> TrainConfig:
    """Return the training without any flag, of a learner or of the one that the files name."""
    layers = {file: _read_yaml(file) for file in files}
    named = task or next((str(layer["task"]) for layer in layers.values() if "task" in layer), None)
    if named is None:
        raise UsageError("No task was named: pass one, such as `train Cartpole-Swingup`. `shoal tasks` lists them all.")
    learner = learner or next((str(layer["learner"]) for layer in layers.values() if "learner" in layer), None)
    config = registry.resolve(named).defaults(named, learner)
    for file, layer in layers.items():
        of_another = layer.get("learner", config.learner) != config.learner
        kept = {name: value for name, value in layer.items() if not (name == "agent" and of_another)}
        try:
            config = from_plain(config, _without_encoders(kept) | {"task": named, "learner": config.learner})
        except UsageError as error:
            raise UsageError(f"In {file}: {error}") from error
        config = replace(config, env=_with_models_of(RunDir(file.parent.parent), config.env, layer))
    return config


def _without_encoders(layer: dict[str, Any]) -> dict[str, Any]:
    """Return what a file holds without the learner's image encoders, which runs saved until they were removed."""

    def pruned(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, dict):
            return value
        items = cast("dict[str, Any]", value).items()
        return {name: pruned(item) for name, item in items if name not in _WITHOUT_ENCODERS}

    return {name: pruned(value) if name == "agent" else value for name, value in layer.items()}


def _with_models_of(run: RunDir, env: EnvT, layer: Mapping[str, Any]) -> EnvT:
    """Return the environment's configuration with the run's own copies of the model files that `layer` names."""
    named = [field for field in env.model_fields if layer.get("env", {}).get(field)]
    found = {field: str(file.absolute()) for field in named if (file := run.saved_model(field))}
    return replace(env, **found)


def _of_run(task: str | None, learner: str | None, run: RunDir, log_root: str, *, trust: str | None) -> TrainConfig:
    """Return the configuration of a run.

    Args:
        task: The task of this command.
        learner: The learner of this command; None for that of the run.
        run: The run.
        log_root: Directory of this user's own runs.
        trust: Flag that trusts a run outside of it; None if it was passed.
    """
    config = _defaults(task, None, [run.train_yaml])
    if learner not in (None, config.learner):
        raise UsageError(
            f"--learner {learner} was asked for, but the learner of the run {run.path} is {config.learner}: leave the "
            "flag out, or start a new run."
        )
    if trust is not None and not run.path.resolve().is_relative_to(Path(log_root).resolve()):
        found = foreign_code(to_plain(_defaults(task, None, [])), to_plain(config))
        if found is not None:
            raise UsageError(
                f"The run {run.path} would import '{found[1]}' ({found[0]}), and is not below --log-root {log_root}: "
                f"read that code, and pass {trust} if you trust it."
            )
    return config


def _take_learner(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of `--learner`, by which the flags of the learner are chosen, and all other arguments."""
    named, words = _take("--learner", arguments, example=f"--learner {next(iter(LEARNERS))}")
    if len(named) > 1:
        raise UsageError(f"One training has one learner, but {' and '.join(named)} were named: pass one of them.")
    return (absolute(named[0]) if named else None), words


def _take(flag: str, arguments: Sequence[str], *, example: str) -> tuple[list[str], list[str]]:
    """Return the values of a flag, which may be repeated, and all other arguments."""
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
            raise UsageError(f"{flag} needs a value: pass {example}.")
        values.append(value)
    return values, rest


def _read_yaml(file: Path) -> dict[str, Any]:
    """Read one configuration file."""
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"--config {file} cannot be read ({error.strerror}): pass a file such as <run>/params/train.yaml."
        raise UsageError(message) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = " ".join(str(error).split())  # PyYAML's message has several lines.
        message = f"--config {file} is no plain YAML ({where}): pass a file such as <run>/params/train.yaml."
        raise UsageError(message) from error
    if not isinstance(data, dict):
        raise UsageError(f"--config {file} holds no named values: it must look like <run>/params/train.yaml.")
    return cast("dict[str, Any]", data)


def _only_one_number_of_envs(config: TrainConfig, words: Sequence[str]) -> TrainConfig:
    given = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    if {"--num-envs", "--num-envs-total"} <= given:
        raise UsageError(
            "--num-envs and --num-envs-total exclude each other: --num-envs counts the environments on each worker, "
            "--num-envs-total those of all workers together. Pass one of them."
        )
    # A saved total must not outlive a --num-envs that was typed now.
    return replace(config, num_envs_total=None) if "--num-envs" in given else config
