"""Command line arguments to configurations.

The task, or a saved configuration, has the defaults; flags override them. tyro derives the flags from the fields of
the configuration. Arguments that contradict each other, or name what does not exist, raise a UsageError.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import tyro

from shoal.cli.flags import (
    PATTERNS,
    CompareFlags,
    ComparePoliciesFlags,
    EvaluateFlags,
    PlayFlags,
)
from shoal.cli.help import HELP_FLAGS, print_help
from shoal.config import (
    BenchConfig,
    CheckEnvConfig,
    DoctorConfig,
    ExportConfig,
    PlayConfig,
    RunsConfig,
    TrainConfig,
)
from shoal.config.evaluate import CompareConfig, ComparePoliciesConfig, EvaluateConfig
from shoal.config.learners import LEARNERS
from shoal.errors import UsageError, counted
from shoal.jobs.entries import Overrides, resolve_policies
from shoal.plan.checkpoints import run_of
from shoal.plan.ranks import joined_rank
from shoal.plan.resume import find_model, refuse_other_networks, run_to_continue
from shoal.plan.rundir import RunDir, names_run
from shoal.plan.saved_config import config_of_files, config_of_run
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec
from shoal.user_code import absolute

T = TypeVar("T")
PolicyT = TypeVar("PolicyT", PlayConfig, EvaluateConfig, ComparePoliciesConfig, ExportConfig)


_ABOUT = {
    "train": "Train a policy. --config FILE reads defaults from a file such as <run>/params/train.yaml.",
    "evaluate": "Run many episodes of policies, on all workers, and write statistics, a table and a report.",
    "compare": "Find out which of two policies has the higher mean return, in as few episodes as it takes.",
    "compare results": "Find out which of two evaluations has the higher mean return.",
    "play": "Run episodes of a policy without exploration noise, and print their returns.",
    "export": "Write a trained policy as ONNX, and as a torch.export program.",
    "sweep": "Train many configurations of one task, one on each GPU at a time, and print a table of their scores.",
    "replay": "Step an environment that diverged once more, in MuJoCo C, and print the first non-finite value.",
    "motion": "Print what is in a motion file, and whether a robot can follow it; convert, cut and film it.",
    "runs": "List runs with state, steps, score, age and changed flags, or the checkpoints of one run, verified.",
    "convert": "Convert a checkpoint of rsl_rl, mjlab or Isaac Lab to a model.pt that `train` and `play` load.",
    "doctor": "Check everything that a training needs, and print problems with their remedies.",
    "check-env": "Step environments with random actions, and check that they are what a learner expects of them.",
    "bench": "Measure environment and training steps per second, and the time to the first iteration.",
}

_ALIASES = {"--save-interval": "--agent.save-interval", "--save_interval": "--agent.save-interval"}
"""Short names of flags: this one belongs beside `--keep-last`, but is a field of the learner."""
_OF_TORCHRUN = re.compile("--(nnodes|node[-_]rank|master[-_]addr|master[-_]port)(=|$)")


def parse_flags(default: T | type[T], arguments: Sequence[str], *, program: str, about: str) -> T:
    """Return `default`, a configuration or its class, with the fields that flags override.

    tyro prints its own errors, with the nearest valid names, and exits with 2. `program` is the command as help and
    errors name it, and `about` the key of its description.
    """
    kind: Any = default if isinstance(default, type) else type(default)
    defaults: dict[str, Any] = {} if isinstance(default, type) else {"default": default}

    def parse(words: Sequence[str]) -> T:
        with PATTERNS:
            return tyro.cli(
                kind,
                prog=program,
                description=_ABOUT[about],
                args=list(words),
                # Descriptions are docstrings, and looking for comments takes time.
                config=(tyro.conf.HelptextFromCommentsOff,),
                **defaults,
            )

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
    return (first and not word.startswith("-")) or word in registry.registered() or registry.is_reference(word)


def parse_train(arguments: Sequence[str]) -> TrainConfig:
    """Parse the arguments of `train`."""
    of_torchrun = next((word.partition("=")[0] for word in arguments if _OF_TORCHRUN.match(word)), None)
    if of_torchrun is not None:
        raise UsageError(
            f"{of_torchrun} is torchrun's: type `python -m torch.distributed.run --nnodes=2 --node_rank=0 "
            "--master_addr=HOST -m shoal train TASK` on each machine, or `--hosts a b` on one."
        )
    task, words = split_task(arguments)
    files, words = _take("--config", words, example="--config <run>/params/train.yaml")
    learner, words = _take_learner(words)
    words = [
        _ALIASES.get(flag, flag) + equals + value for flag, equals, value in (word.partition("=") for word in words)
    ]
    saved = [Path(file) for file in files]
    default = config_of_files(task, learner, saved)
    config = parse_flags(default, words, program=f"train {default.task}", about="train")
    if config.resume is not None and not saved and not _is_follower():
        # A resumed run keeps its configuration, unless flags override it.
        run, _damaged = run_to_continue(config, registry.resolve(config.task))
        train_yaml = run.train_yaml
        if train_yaml.is_file():
            default = config_of_run(task, learner, run, config.log_root, trust=f"--config {train_yaml}")
            config = parse_flags(default, words, program=f"train {default.task}", about="train")
    return _only_one_number_of_envs(config, words)


def _is_follower() -> bool:
    """Whether the run directory may be out of this process's reach, so that rank 0 alone resolves `--resume`."""
    rank = joined_rank()
    return rank is not None and rank.rank > 0 and rank.local_world_size < rank.world_size


def parse_play(arguments: Sequence[str], *, program: str) -> PlayConfig:
    """Parse the arguments of `play` or `evaluate`. Defaults are those of the policy's run."""
    return _parse_policy(PlayFlags, arguments, program=program, about="play")


def parse_evaluate(arguments: Sequence[str]) -> tuple[EvaluateConfig, Overrides]:
    """Parse the arguments of `evaluate`; return what was typed for the environment and the learner apart."""
    task, rest = split_task(arguments)
    if any(word.partition("=")[0] == "--jobs" for word in rest):
        typed = _typed_sections(arguments)
        if task is not None or typed:
            what = f"The task {task}" if task else "A flag of the environment or of the learner"
            raise UsageError(
                f"{what} was passed with --jobs, whose file names tasks and variations: write it there, or leave "
                "--jobs out."
            )
        return parse_flags(EvaluateFlags(), rest, program="evaluate", about="evaluate"), Overrides()
    config = _parse_policy(EvaluateFlags, arguments, program="evaluate", about="evaluate")
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


def parse_compare(arguments: Sequence[str]) -> tuple[CompareConfig | ComparePoliciesConfig, Overrides]:
    """Parse the arguments of `shoal compare`: two directories, or a task and two policies."""
    sides = [*takewhile(lambda word: not word.startswith("-"), arguments)]
    program = "shoal compare"
    if len(sides) == 2:  # noqa: PLR2004
        return parse_flags(CompareFlags, arguments, program=program, about="compare results"), Overrides()
    if len(sides) != 3:  # noqa: PLR2004
        raise UsageError(
            f"`{program}` takes two directories of results, or a task and two policies, before all flags, but "
            f"{counted(len(sides), 'word')} came there: pass `{program} A B` or `{program} TASK A B`."
        )
    config = _parse_policy(ComparePoliciesFlags, arguments, program=program, about="compare")
    return config, _overrides(arguments, config)


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
    model, run = None, None
    if not isinstance(config, PlayConfig | EvaluateConfig) or config.agent_kind == "trained":
        if isinstance(config, EvaluateConfig | ComparePoliciesConfig):
            run = _run_of_first(config, spec)
        else:
            model = find_model(config.log_root, spec, config.checkpoint)
            run = run_of(model)
        if run is not None:
            trained = config_of_run(
                task, learner, run, config.log_root, trust=None if config.trust_run else "--trust-run"
            )
    env = trained.env.in_play()
    if isinstance(config, ExportConfig) or not config.disturbances:
        env = env.undisturbed()
    default = replace(default, env=env, learner=trained.learner, agent=trained.agent)
    config = parse_flags(default, words, program=f"{program} {task}", about=about)
    refuse_other_networks(run, config.agent)
    # By its path from here on: a training may write a better checkpoint, of another configuration, at any time.
    return config if model is None else replace(config, checkpoint=str(model))  # pyright: ignore[reportArgumentType, reportReturnType]


def _run_of_first(config: EvaluateConfig | ComparePoliciesConfig, spec: TaskSpec) -> RunDir | None:
    """Return the run of the first policy, or of the first trained one of two; None where there is none."""
    if isinstance(config, EvaluateConfig) and config.watch is not None:
        return RunDir(Path(config.watch))
    names = config.checkpoint[:1] if isinstance(config, EvaluateConfig) else (config.a, config.b)
    policies = [resolve_policies(config.log_root, spec, name)[0] for name in names]
    return next((run for each in policies if isinstance(each, Path) and (run := run_of(each))), None)


def parse_bench(arguments: Sequence[str]) -> BenchConfig:
    """Parse the arguments of `shoal bench`."""
    task, words = split_task(arguments)
    if task is None:
        raise UsageError(
            "No task was named: pass one, such as `shoal bench Cartpole-Swingup`. `shoal tasks` lists all."
        )
    default = BenchConfig(task=task, num_envs=registry.resolve(task).num_envs)
    return parse_flags(default, words, program=f"shoal bench {task}", about="bench")


def parse_check_env(arguments: Sequence[str]) -> CheckEnvConfig:
    """Parse the arguments of `shoal check-env`."""
    task, words = split_task(arguments)
    if task is None:
        raise UsageError("No task was named: pass one, such as `shoal check-env my_env.py:build`.")
    default = CheckEnvConfig(task=task, env=registry.resolve(task).env)
    return parse_flags(default, words, program=f"shoal check-env {task}", about="check-env")


def parse_doctor(arguments: Sequence[str]) -> DoctorConfig:
    """Parse the arguments of `shoal doctor`; the task is optional."""
    task, words = split_task(arguments)
    return parse_flags(DoctorConfig(task=task), words, program="shoal doctor", about="doctor")


def parse_runs(arguments: Sequence[str]) -> RunsConfig:
    """Parse the arguments of `shoal runs`; the task, or the run, is optional."""
    name, words = split_task(arguments)
    default = RunsConfig(run=name) if name is not None and names_run(name) else RunsConfig(task=name)
    return parse_flags(default, words, program="shoal runs", about="runs")


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


def _only_one_number_of_envs(config: TrainConfig, words: Sequence[str]) -> TrainConfig:
    given = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    if {"--num-envs", "--num-envs-total"} <= given:
        raise UsageError(
            "--num-envs and --num-envs-total exclude each other: --num-envs counts the environments on each worker, "
            "--num-envs-total those of all workers together. Pass one of them."
        )
    # A saved total must not outlive a --num-envs that was typed now.
    return replace(config, num_envs_total=None) if "--num-envs" in given else config
