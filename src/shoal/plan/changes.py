"""Configurations as changes of a task's defaults: files of a run over them, what differs, and the flags that set it."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, cast

from shoal.config import BaseEnvConfig, TrainConfig
from shoal.config.checks import Source, foreign_code, sources_of
from shoal.config.plain import from_plain, to_plain
from shoal.config.train import NOT_REPEATED
from shoal.errors import UsageError
from shoal.plan.rundir import RunDir
from shoal.reading import read_plain_file, refusing
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec
from shoal.text import join_command
from shoal.user_code import absolute

_FORMER = ("keep_every", "video_size")
"""Fields of a training that no longer exist, and decide nothing of a policy: the files of earlier runs name them."""
_LEFT_OUT = {*NOT_REPEATED, "task", "run_name", "log_root"}
"""Fields that belong to one command, or that the path of the run shows."""
_OF_THE_RETURN = re.compile(r"env\.(rewards\..+|.+_weight|episode_length_s|decimation|physics_dt)")


def config_of_files(
    task: str | None, learner: str | None, files: Sequence[Path], *, of_run: bool = False
) -> TrainConfig:
    """Return the training without any flag, of a learner or of the one that the files name.

    `of_run` is whether the files are a run's own, which supply less than those that the user names.
    """
    layers = {file: _read_layer(file, of_run=of_run) for file in files}
    named = task or next((str(layer["task"]) for layer in layers.values() if "task" in layer), None)
    if named is None:
        raise UsageError("No task was named: pass one, such as `train Cartpole-Swingup`. `shoal tasks` lists them all.")
    learner = learner or next((str(layer["learner"]) for layer in layers.values() if "learner" in layer), None)
    config = registry.resolve(named).defaults(named, learner)
    for file, layer in layers.items():
        of_another = layer.get("learner", config.learner) != config.learner
        kept = {name: value for name, value in layer.items() if not (name == "agent" and of_another)}
        with refusing(file, "mend it"):
            config = from_plain(config, kept | {"task": named, "learner": config.learner})
        # Of the model files that it names, the run has copies of its own.
        run = RunDir(file.parent.parent)
        models = config.env.model_files().keys() & flatten(layer.get("env", {}))
        copies = {field: str(copy.absolute()) for field in models if (copy := run.saved_model(field))}
        config = replace(config, env=from_plain(config.env, nested(copies)))
    return config


def config_of_run(
    task: str | None, learner: str | None, run: RunDir, log_root: str, *, trust: str | None
) -> TrainConfig:
    """Return the configuration of a run, for the task of this command and its learner, or else that of the run.

    `trust` is the flag that trusts a run outside of `log_root`; None if it was passed.
    """
    if trust is not None and not run.path.resolve().is_relative_to(Path(log_root).resolve()):
        # The file is judged before anything that it names is imported: its learner may be another user's code.
        own = config_of_files(task, None, [])
        found = foreign_code([to_plain(own)], [_read_layer(run.train_yaml, of_run=True) | {"task": own.task}])
        if found is not None:
            raise UsageError(
                f"The run {run.path} would import '{found[1]}' ({found[0]}), and is not below --log-root {log_root}: "
                f"read that code, and pass {trust} if you trust it."
            )
    try:
        config = config_of_files(task, None, [run.train_yaml], of_run=True)
    except UsageError as error:  # A term was removed, say.
        refuse_run_of_another_task(run, str(task))
        new = shlex.join(["train", str(task), "--checkpoint", str(run.path)])
        raise UsageError(f"{error} Undo what changed since, or start a new run from its weights: {new}") from error
    if learner not in (None, config.learner):
        raise UsageError(
            f"--learner {learner} was asked for, but the learner of the run {run.path} is {config.learner}: leave the "
            "flag out, or start a new run."
        )
    return config


def refuse_run_of_another_task(run: RunDir, task: str) -> None:
    """Refuse a run whose configuration names another task, and that is not among the runs of this one."""
    saved = _read_layer(run.train_yaml, of_run=True).get("task", task)
    if absolute(str(saved)) != absolute(task) and run.experiment != registry.resolve(task).experiment:
        raise UsageError(f"The run {run.path} is of the task {saved}, and not of {task}: pass {saved}, or another run.")


def _read_layer(file: Path, *, of_run: bool) -> dict[str, Any]:
    """Return the fields that one configuration file may supply, see `Source`; refuse others unless it is `of_run`."""
    data = read_plain_file("--config", file, example="<run>/params/train.yaml")
    if not isinstance(data, dict):
        raise UsageError(f"--config {file} holds no named values: it must look like <run>/params/train.yaml.")
    layer, sources = cast("dict[str, Any]", data), sources_of(TrainConfig)
    typed = next((name for name in layer if sources.get(name) is Source.FLAG), None)
    if typed is not None and not of_run:
        flag = typed.replace("_", "-")
        raise UsageError(f"In {file}: {typed} is given, but no file supplies it: pass --{flag}, and remove it there.")
    if not of_run:
        return layer
    env = layer.get("env")
    if isinstance(env, dict) and "lost_limit" in env:  # Its name in earlier runs.
        env["diverged_limit"] = cast("dict[str, Any]", env).pop("lost_limit")
    kept = [name for name in layer if name not in _FORMER and sources.get(name) in (None, Source.RUN)]
    return {name: layer[name] for name in kept}


def flatten(plain: Mapping[str, Any], path: str = "", left_out: Collection[str] = _LEFT_OUT) -> dict[str, Any]:
    """Return the fields of a configuration of plain values by their dotted names, such as ``env.decimation``."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, dict) and value:
            flat |= flatten(cast("dict[str, Any]", value), f"{path}{name}.")
        elif path or name not in left_out:
            flat[path + name] = value
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted names as nested dicts."""
    made: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        reduce(lambda inner, section: inner.setdefault(section, {}), sections, made)[last] = value
    return made


def defaults_of(spec: TaskSpec, learner: str) -> dict[str, Any]:
    """Return the defaults of a task by dotted names: those of a learner, but the task's own `learner`."""
    return flatten(to_plain(spec.defaults(None, learner)) | {"learner": spec.learner})


def changed_fields(flat: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from the defaults. Those without a default are of another version of the task."""
    return {name: value for name, value in flat.items() if name in defaults and value != defaults[name]}


def changes_of(config: TrainConfig) -> dict[str, Any]:
    """Return the fields of a training that differ from its task's defaults. None of a task that is not found."""
    try:
        spec = registry.resolve(config.task)
        return changed_fields(flatten(to_plain(config)), defaults_of(spec, config.learner))
    except UsageError:  # A configuration made by a program, whose task no command could name.
        return {}


def decides_return(field: str) -> bool:
    """Whether a field decides what a return counts: a reward, its weight, or how long rewards are summed."""
    return _OF_THE_RETURN.fullmatch(field) is not None


def counted_in_return(env: BaseEnvConfig) -> dict[str, Any]:
    """Return the fields that decide what a return counts: returns can be compared where these are equal."""
    return {name: value for name, value in flatten({"env": to_plain(env)}).items() if decides_return(name)}


def flag_words(changed: Mapping[str, Any]) -> str:
    """Return the flags that set these fields, as one would type them; for a text of several lines three dots."""
    words = (word for name, value in changed.items() for word in words_of(name, value))
    return " ".join("..." if "\n" in word else join_command([word]) for word in words)


def words_of(field: str, value: object) -> list[str]:
    """Return the words of the flag that sets a field, whose name may have dots."""
    name = field.replace("_", "-")
    if isinstance(value, bool):
        section, dot, last = name.rpartition(".")
        return [f"--{name}" if value else f"--{section}{dot}no-{last}"]
    if isinstance(value, dict) and value:  # Numbers by pattern.
        value = [each for pair in cast("dict[object, object]", value).items() for each in pair]
    values = cast("list[object]", value if isinstance(value, list | tuple) else [value])
    return [f"--{name}", *map(str, values)]
