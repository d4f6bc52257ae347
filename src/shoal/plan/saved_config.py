"""Saved configurations: that of a run, and files such as `<run>/params/train.yaml`, over the defaults of a task."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from shoal.config import TrainConfig
from shoal.config.checks import Source, foreign_code, sources_of
from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError
from shoal.plan.rundir import RunDir
from shoal.reading import read_plain_file, refusing
from shoal.tasks import registry


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
        models = [field for field in config.env.model_fields if layer.get("env", {}).get(field)]
        copies = {field: str(copy.absolute()) for field in models if (copy := run.saved_model(field))}
        config = replace(config, env=replace(config.env, **copies))
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
        new = shlex.join(["train", str(task), "--checkpoint", str(run.path)])
        raise UsageError(f"{error} Undo what changed since, or start a new run from its weights: {new}") from error
    if learner not in (None, config.learner):
        raise UsageError(
            f"--learner {learner} was asked for, but the learner of the run {run.path} is {config.learner}: leave the "
            "flag out, or start a new run."
        )
    return config


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
    return {name: value for name, value in layer.items() if not of_run or sources.get(name) in (None, Source.RUN)}
