"""Command line arguments to configurations.

The task, or a saved configuration, has the defaults; flags override them. tyro derives the flags from the fields of
the configuration. Arguments that contradict each other, or name what does not exist, raise a UsageError.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import tyro
from tyro import _errors  # pyright: ignore[reportPrivateUsage]  tyro has no other way to one's own error lines.

from shoal.cli.flags import BY_PATTERN, OPERANDS, flags_of
from shoal.cli.habits import unknown_words
from shoal.cli.help import HELP_FLAGS, flags_of_command, print_help
from shoal.cli.registry import COMMANDS, Command, load
from shoal.config import BenchConfig, ExportConfig, PlayConfig, RunsConfig, TrainConfig
from shoal.config.commands import UNTRAINED
from shoal.config.evaluate import CompareConfig, ComparePoliciesConfig, EvaluateConfig
from shoal.config.learners import LEARNERS
from shoal.errors import UsageError, counted, did_you_mean
from shoal.jobs.entries import Overrides, resolve_policies
from shoal.machine.gpus import visible_gpus
from shoal.plan.changes import config_of_files, config_of_run, refuse_run_of_another_task
from shoal.plan.checkpoints import run_of
from shoal.plan.nodes import parse_gpu_ids
from shoal.plan.ranks import joined_rank
from shoal.plan.resume import find_model, find_model_to_show, refuse_other_networks, run_to_continue
from shoal.plan.rundir import RunDir, names_run
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec
from shoal.user_code import absolute

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_LARGEST = 2**31 - 1
"""Of whole numbers: Warp's kernels and the sizes of arrays are signed numbers of 32 bits."""


def parse(name: str, words: Sequence[str]) -> tuple[Any, ...]:
    """Return what a command runs with: its configuration, and perhaps more."""
    command = COMMANDS[name]
    return load(command.parse)(command, words)


def parse_train(words: Sequence[str]) -> TrainConfig:
    """Return the configuration of `train`."""
    return parse("train", words)[0]


def parse_flags(command: Command, default: T, words: Sequence[str]) -> T:
    """Return `default`, a configuration, with the fields that flags override; print the help where it is asked for."""
    known = flags_of(default)
    if any(word in HELP_FLAGS for word in words):
        operands = [getattr(default, name, None) for name in ("task", *OPERANDS)]
        print_help(replace(command, operands=" ".join(filter(None, operands)) or command.operands), words, known)
        raise SystemExit(0)
    aliases = {flag.name: flag.field for flag in known if not flag.section and flag.path}
    if "--policy" in aliases:  # Its name before, which scripts have.
        aliases["--agent"] = aliases["--policy"]
    typed = [word.partition("=") for word in words]
    renamed = [aliases.get(flag.replace("_", "-"), flag) + equals + value for flag, equals, value in typed]

    def refuse(event: _errors.ParseErrorEvent) -> None:
        if isinstance(event, _errors.UnrecognizedArgs):
            raise unknown_words(event.tokens, words, command.program, known)
        argument = getattr(event, "argument", None)
        flag = argument.lowered.name_or_flags[0] if argument else "A flag"
        invocation = next((each.invocation for each in known if each.name == flag), flag)
        if isinstance(event, _errors.InvalidChoice):
            hint = did_you_mean(event.value, event.choices)
            raise UsageError(f"{flag} is '{event.value}', but must be one of {', '.join(event.choices)}.{hint}")
        if isinstance(event, _errors.InstantiationFailure):
            raise UsageError(f"{flag} cannot be read ({event.message}): pass {invocation}.")
        raise UsageError(f"{flag} lacks values: pass {invocation}.")

    try:
        with _PATTERNS, _errors.on_parse_error(refuse):
            config = tyro.cli(
                type(default),
                prog=command.program,
                args=renamed,
                default=default,
                add_help=False,  # It was printed above.
                # Descriptions are docstrings, and looking for comments takes time.
                config=(tyro.conf.HelptextFromCommentsOff,),
            )
    except UsageError as error:
        raise UsageError(_with_defaults_of(default, str(error))) from error
    numbers = {flag.name: flag.default for flag in flags_of(config) if isinstance(flag.default, int)}
    for name, number in numbers.items():
        if abs(number) > _LARGEST:
            raise UsageError(f"{name} is {number}, but must be at most {_LARGEST}.")
    return config


def _with_defaults_of(default: Any, message: str) -> str:  # noqa: ANN401  A configuration.
    """Return the message of a value out of range with the default that the command has, as a task may have its own."""
    for item in fields(default):
        flag, usual = item.name.replace("_", "-"), f" The default is {item.default!r}."
        if message.startswith(f"--{flag} is ") and message.endswith(usual):
            return f"{message.removesuffix(usual)} The default is {getattr(default, item.name)!r}."
    return message


_PATTERNS = tyro.constructors.ConstructorRegistry()
"""Makes tyro read a mapping by pattern from one flag, which replaces all of it: it has one for each key otherwise."""


@_PATTERNS.primitive_rule  # pyright: ignore[reportUnknownMemberType]
def _values_by_pattern(info: Any) -> tyro.constructors.PrimitiveConstructorSpec[dict[str, Any]] | None:  # noqa: ANN401
    if info.type not in BY_PATTERN:
        return None
    _, kind = get_args(info.type)
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar=BY_PATTERN[info.type],
        instance_from_str=partial(_pairs_in, kind),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [str(word) for pair in value.items() for word in pair],
    )


def _pairs_in(kind: Callable[[str], Any], words: list[str]) -> dict[str, Any]:
    if len(words) % 2:
        raise ValueError(f"{len(words)} words, but patterns and values in turn are needed")
    return {pattern: kind(value) for pattern, value in zip(words[::2], words[1::2], strict=True)}


def split_task(arguments: Sequence[str], command: Command) -> tuple[str | None, list[str]]:
    """Separate the task from the other arguments: the value of `--task`, the first word, or the first task's name.

    Returns:
        The task, None when there is none, and all other arguments in their order.
    """
    named, words = _take("--task", arguments, example="--task Cartpole-Swingup")
    index = _index_of_task(words, command, is_named=bool(named))
    if index is not None:
        named.append(words.pop(index))
    if len(named) > 1:
        raise UsageError(f"One training has one task, but {' and '.join(named)} were named: pass one of them.")
    return (named[0] if named else None), words


def _index_of_task(words: Sequence[str], command: Command, *, is_named: bool) -> int | None:
    """Return the index of the first word if it is no flag, else of the first task that is not the value of a flag.

    Directly behind a flag that takes one word stands its value. Whether a flag of a section, such as
    `--agent.actor.class-name`, takes one is known once the task is: a Python file behind it is its value, and the name
    of a task too unless no other task is named.
    """
    if words and not words[0].startswith("-"):
        return 0
    of_one_word = {flag.name for flag in flags_of_command(command) if flag.takes_one_word and not flag.section}
    unsure: int | None = None
    for index, word in enumerate(words):
        flag = words[index - 1].replace("_", "-") if index else ""
        is_registered = word in registry.registered()
        if flag in of_one_word or not (is_registered or registry.is_reference(word)):
            continue
        if not (flag.startswith("--") and "." in flag and "=" not in flag):
            return index
        if is_registered and not is_named:
            unsure = index
    return unsure


def parse_simple(command: Command, words: Sequence[str]) -> tuple[Any]:
    """Parse the arguments of a command whose defaults depend on the task alone, or on nothing."""
    kind: Any = load(command.config or "")
    names = {item.name for item in fields(kind)}
    if command.operands == "FILE":
        is_help = any(word in HELP_FLAGS for word in words)
        words, index = [*words], None if is_help else _index_of_operand(words, command)
        if index is None and not is_help:
            raise UsageError(f"No file was named: pass one, `{command.program} FILE`.")
        default = kind(file="" if index is None else words.pop(index))
        return (parse_flags(command, default, words),)
    task, words = split_task(words, command)
    given: dict[str, Any] = {"task": task}
    if command.operands == "TASK":
        spec = registry.resolve(_needed(task, command))
        given |= {"env": spec.env} if "env" in names else {}
        given |= {"num_envs": spec.num_envs} if kind is BenchConfig else {}
    elif kind is RunsConfig and task is not None and names_run(task):
        given = {"run": task}
    return (parse_flags(command, kind(**given), words),)


def _index_of_operand(words: Sequence[str], command: Command) -> int | None:
    """Return the index of the first word that is neither a flag nor the value of one."""
    flags, values = {flag.name: flag for flag in flags_of_command(command)}, 0
    for index, word in enumerate(words):
        if word.startswith("-"):
            flag = flags.get(word.replace("_", "-"))
            values = 0 if flag is None or flag.kind is bool else 1 if flag.takes_one_word else len(words)
        elif not values:
            return index
        else:
            values -= 1
    return None


def _needed(task: str | None, command: Command) -> str:
    if task is None:
        raise UsageError(
            f"No task was named: pass one, such as `{command.program} Cartpole-Swingup`. `shoal tasks` lists them all."
        )
    return task


def parse_training(command: Command, arguments: Sequence[str]) -> tuple[TrainConfig]:
    """Parse the arguments of `train`."""
    task, words = split_task(arguments, command)
    files, words = _take("--config", words, example="--config <run>/params/train.yaml")
    learner, words = _take_learner(words)
    saved = [Path(file) for file in files]
    default = config_of_files(task, learner, saved)
    config = parse_flags(command, default, words)
    if config.resume == ("latest",):
        config = replace(config, resume=())
    if config.resume is not None and not saved and not _is_follower():
        # A resumed run keeps its configuration, unless flags override it.
        run, _damaged = run_to_continue(config, registry.resolve(config.task))
        train_yaml = run.train_yaml
        if train_yaml.is_file():
            refuse_run_of_another_task(run, config.task)
            default = config_of_run(task, learner, run, config.log_root, trust=f"--config {train_yaml}")
            config = replace(parse_flags(command, default, words), resume=config.resume)
    return (_with_number_of_envs(config, words, is_new=not saved and config.resume is None),)


def _is_follower() -> bool:
    """Whether the run directory may be out of this process's reach, so that rank 0 alone resolves `--resume`."""
    rank = joined_rank()
    return rank is not None and rank.rank > 0 and rank.local_world_size < rank.world_size


def parse_evaluation(command: Command, arguments: Sequence[str]) -> tuple[EvaluateConfig, Overrides]:
    """Parse the arguments of `evaluate`; return what was typed for the environment and the learner apart."""
    if any(word.partition("=")[0] == "--jobs" for word in arguments):
        task, rest = split_task(arguments, command)
        typed = _typed_sections(arguments)
        if task is not None or typed:
            what = f"The task {task}" if task else "A flag of the environment or of the learner"
            raise UsageError(
                f"{what} was passed with --jobs, whose file names tasks and variations: write it there, or leave "
                "--jobs out."
            )
        return parse_flags(command, EvaluateConfig(task=None), rest), Overrides()
    (config,) = parse_policy(command, arguments)
    overrides = _overrides(arguments, config)
    return config, overrides if "env" in _typed_sections(arguments) else replace(overrides, env=None)


def _typed_sections(words: Sequence[str]) -> set[str]:
    """Return which of environment and learner were changed by flags."""
    typed = {part for part in ("env", "agent") if any(word.startswith(f"--{part}.") for word in words)}
    return typed | ({"env"} if "--disturbances" in words else set())


def _overrides(words: Sequence[str], config: EvaluateConfig | ComparePoliciesConfig) -> Overrides:
    """Return the environment of a configuration, and what was typed for the learner."""
    agent = config.agent if "agent" in _typed_sections(words) else None
    return Overrides(learner=_take_learner(words)[0], env=config.env, agent=agent)


def parse_comparison(
    command: Command, arguments: Sequence[str]
) -> tuple[CompareConfig | ComparePoliciesConfig, Overrides]:
    """Parse the arguments of `shoal compare`: two directories, or a task and two policies."""
    sides = [*takewhile(lambda word: not word.startswith("-"), arguments)]
    rest = arguments[len(sides) :]
    if len(sides) == 2:  # noqa: PLR2004
        config = CompareConfig(a=sides[0], b=sides[1])
        return parse_flags(command, config, rest), Overrides()
    if len(sides) != 3:  # noqa: PLR2004
        raise UsageError(
            f"`{command.program}` takes two directories of results, or a task and two policies, before all flags, but "
            f"{counted(len(sides), 'word')} came there: pass `{command.program} A B` or `{command.program} TASK A B`."
        )
    (config,) = parse_policy(command, [sides[0], *rest], a=sides[1], b=sides[2])
    return config, _overrides(arguments, config)


def parse_policy(command: Command, arguments: Sequence[str], **operands: str) -> tuple[Any]:
    """Parse flags of a trained policy, with the environment and the learner of its training as defaults."""
    kind: Any = load(command.config or "")
    task, words = split_task(arguments, command)
    task = _needed(task, command)
    learner, words = _take_learner(words)
    spec = registry.resolve(task)
    trained = spec.defaults(task, learner)
    env = spec.env.in_play().undisturbed()
    default = kind(task=task, env=env, learner=trained.learner, agent=trained.agent, **operands)
    config = parse_flags(command, default, words)
    model, run = None, None
    if isinstance(config, EvaluateConfig | ComparePoliciesConfig):
        run = _run_of_first(config, spec)
    elif isinstance(config, ExportConfig) or config.checkpoint not in UNTRAINED:
        find = find_model_to_show if isinstance(config, PlayConfig) else find_model
        model = find(config.log_root, spec, config.checkpoint)
        run = run_of(model)
    if run is not None:
        trained = config_of_run(task, learner, run, config.log_root, trust=None if config.trust else "--trust")
    # An export says what held in the training: delays, and ranges that a curriculum has come to.
    env = trained.env if isinstance(config, ExportConfig) else trained.env.in_play()
    if not isinstance(config, ExportConfig) and not config.disturbances:
        env = env.undisturbed()
    default = replace(default, env=env, learner=trained.learner, agent=trained.agent)
    config = parse_flags(command, default, words)
    refuse_other_networks(run, config.agent)
    # By its path from here on: a training may write a better checkpoint, of another configuration, at any time.
    return (config if model is None else replace(config, checkpoint=str(model)),)


def _run_of_first(config: EvaluateConfig | ComparePoliciesConfig, spec: TaskSpec) -> RunDir | None:
    """Return the run of the first policy, or of the first trained one of two; None where there is none."""
    if isinstance(config, EvaluateConfig) and config.watch is not None:
        return RunDir(Path(config.watch))
    names = config.checkpoint[:1] if isinstance(config, EvaluateConfig) else (config.a, config.b)
    policies = [resolve_policies(config.log_root, spec, name)[0] for name in names]
    return next((run for each in policies if isinstance(each, Path) and (run := run_of(each))), None)


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


def _with_number_of_envs(config: TrainConfig, words: Sequence[str], *, is_new: bool) -> TrainConfig:
    """Refuse two numbers of environments; where none is given, take the task's for the device."""
    given = {word.partition("=")[0].replace("_", "-") for word in words} & {"--num-envs", "--num-envs-total"}
    if len(given) > 1:
        raise UsageError(
            "--num-envs and --num-envs-total exclude each other: --num-envs counts the environments on each worker, "
            "--num-envs-total those of all workers together. Pass one of them."
        )
    spec = registry.resolve(config.task)
    on_gpu = spec.gpu_num_envs if is_new and not given and config.learner == spec.learner else None
    if on_gpu is not None and parse_gpu_ids(config.gpu_ids) is not None and visible_gpus():
        return replace(config, num_envs=on_gpu)
    # A saved total must not outlive a --num-envs that was typed now.
    return replace(config, num_envs_total=None) if "--num-envs" in given else config
