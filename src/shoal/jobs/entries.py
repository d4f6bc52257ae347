"""A jobs file to its entries, and entries to jobs: lists become a grid, and what they name is found or refused.

Nothing here imports a simulator, a learner or a policy.
"""

import ast
import importlib.util
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from importlib.machinery import PathFinder
from operator import getitem
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from shoal.config import AgentConfig, BaseEnvConfig, TrainConfig
from shoal.config.evaluate import JobEntry, JobSettings
from shoal.config.learners import LEARNERS
from shoal.config.plain import from_plain, shared_fields, to_plain
from shoal.errors import UsageError, did_you_mean
from shoal.plan.changes import config_of_run, nested
from shoal.plan.checkpoints import MODEL, Checkpoint, list_checkpoints, run_of
from shoal.plan.job import Job
from shoal.plan.resume import find_model
from shoal.plan.rundir import RunDir, refuse_bad_name
from shoal.reading import read_bytes, read_plain_file
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec
from shoal.user_code import absolute

DEFAULT_EPISODES = 100

_WITHOUT_POLICY = ("zero", "random")
_OF_RUNS = ("latest", "best", "best-of-runs", "shipped")
_SUFFIXES = (".pt", ".onnx", ".pt2")
_LONGEST_LABEL = 32
"""Most characters of a value in a job's name; a longer one is numbered."""
_MOST_PARTS = 100_000
"""Of all jobs. A job, or one of its rebuilds, counts as ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Configurations that replace those of the policies' runs, such as flags have changed them."""

    learner: str | None = None
    agent: AgentConfig | None = None
    env: BaseEnvConfig | None = None
    """Environment of all jobs, as it is: disturbances stay. Variations change it."""


def read_entries(file: Path) -> list[JobEntry]:
    """Read a jobs file: YAML or JSON, a list of entries, or a mapping that has the list under `jobs`.

    Raises:
        UsageError: It cannot be read, or an entry has an unknown key or a value out of range.
    """
    data: Any = read_plain_file("--jobs", file, example="jobs.yaml")
    if isinstance(data, dict):
        other = next((str(key) for key in data if key not in ("jobs", "$schema")), None)
        if other is not None:
            hint = did_you_mean(other, ["jobs"])
            raise UsageError(f"In {file}: the key '{other}' is given, but entries are listed under 'jobs'.{hint}")
        data = data.get("jobs")
    if not isinstance(data, list) or not data:
        raise UsageError(f"--jobs {file} holds no list of entries: write one, or one under the key 'jobs'.")
    entries: list[JobEntry] = []
    for number, item in enumerate(data, start=1):
        named = item.get("name") if isinstance(item, dict) else None
        with _locate(f"In {file}, entry {number if named is None else repr(named)}"):
            entries.append(from_plain(JobEntry, item))
    with _locate(f"In {file}"):
        _refuse_equal_names("entries", [entry.name for entry in entries])
    return entries


def expand(
    entries: Iterable[JobEntry],
    *,
    log_root: str,
    trust: bool = False,
    overrides: Overrides | None = None,
    source: Path | None = None,
) -> list[Job]:
    """Return the jobs of entries, each followed by its control if it has one.

    The environment of a job is that of the policy's run, or else the task's default, without disturbances of training,
    and with the job's variation.

    Args:
        entries: Entries of a jobs file, or made of flags.
        log_root: Directory of this user's runs.
        trust: Import the classes that a policy's run names even if the run is not below `log_root`.
        overrides: Configurations that replace those of the policies' runs.
        source: The jobs file, for errors.

    Raises:
        UsageError: An entry names what does not exist, or two jobs have the same name.
    """
    training_of = partial(_training_of, log_root=log_root, trust=trust, overrides=overrides or Overrides())
    jobs: list[Job] = []
    parts = 0
    for entry in entries:
        of_entry = _jobs_of(entry, log_root, training_of, f"In {source}, entry {entry.name!r}" if source else "")
        for job in of_entry:
            jobs += [job, _control_of(job)] if entry.control else [job]
            parts += 10 * job.rebuilds + (job.num_episodes or 0) // job.num_envs
            _refuse_many(parts)
    with _locate(f"In {source}" if source else ""):
        for job in jobs:
            refuse_bad_name("The job's name", job.name)
        _refuse_equal_names("jobs", [job.name for job in jobs])
    return jobs


def _control_of(job: Job) -> Job:
    """Return the control of a job: the same environments, seed and length with zero actions."""
    none = {"policy": "zero", "config": {}, "learner": None, "agent": None, "policy_device": None}
    return replace(job, name=f"{job.name}-control", **none)


def _jobs_of(
    entry: JobEntry, log_root: str, training_of: Callable[[str, Path | str], TrainConfig], where: str
) -> Iterator[Job]:
    """Yield the jobs of an entry: all combinations of its lists."""
    shared = shared_fields(JobSettings, entry)
    shared["num_episodes"] = entry.num_episodes or (DEFAULT_EPISODES if entry.num_steps is None else None)
    seeds = _listed(entry.seed)
    with _locate(where, "task"):
        specs = [(absolute(task), registry.resolve(task)) for task in _listed(entry.task)]
    for (task, spec), of_task in zip(specs, _labels("", [spec.experiment for _, spec in specs]), strict=True):
        with _locate(where, "policy"):
            policies = [each for text in _listed(entry.policy) for each in resolve_policies(log_root, spec, text)]
            trainings = [training_of(task, policy) for policy in policies]
        if entry.config and not any(map(_is_class, policies)):
            with _locate(where):
                raise UsageError(
                    f"config is given, but policy is {entry.policy!r}, and only a class takes it: leave it out, or "
                    "name a class."
                )
        numbers = _labels("policy", range(1, len(policies) + 1))
        for policy, training, of_policy in zip(policies, trainings, numbers, strict=True):
            with _locate(where, "variations"):
                varied = list(_varied(training.env, entry.variations))
            of_seeds = zip(seeds, _labels("seed", seeds), strict=True)
            for (seed, of_seed), (of_variation, env, variation) in itertools.product(of_seeds, varied):
                yield Job(
                    name=f"{entry.name}{of_task}{of_policy}{of_seed}{of_variation}",
                    task=task,
                    policy=str(policy),
                    config=entry.config if _is_class(policy) else {},
                    learner=training.learner if _is_trained(policy) else None,
                    agent=to_plain(training.agent) if _is_trained(policy) else None,
                    env=env,
                    variation=variation,
                    seed=seed,
                    **shared,
                )


def _training_of(task: str, policy: Path | str, *, log_root: str, trust: bool, overrides: Overrides) -> TrainConfig:
    """Return the training of a policy, or else the task's defaults, with the environment of an evaluation."""
    is_own = trust or Path(policy).resolve().is_relative_to(Path(log_root).resolve())
    if isinstance(policy, Path) and policy.suffix == ".pt2" and not is_own:
        raise UsageError(
            f"The policy {policy} is a program of torch.export, which may run code when it is loaded, and is not below "
            f"--log-root {log_root}: pass the .onnx or .pt file, or --trust if you trust the people it is from."
        )
    learner = overrides.learner if _is_trained(policy) else None
    run = _run_of(policy) if isinstance(policy, Path) else None
    if run is not None:
        found = config_of_run(task, learner, run, log_root, trust=None if trust else "--trust")
    else:
        saved = Checkpoint(policy.parent).manifest().get("learner") if isinstance(policy, Path) else None
        found = registry.resolve(task).defaults(task, learner or (saved if saved in LEARNERS else None))
    env = overrides.env or found.env.in_play().undisturbed()
    return replace(found, env=env, agent=overrides.agent or found.agent)


def _run_of(policy: Path) -> RunDir | None:
    """Return the run of a checkpoint's model file, or of an exported file."""
    exported = RunDir(policy.parent.parent)
    return run_of(policy) or (exported if exported.train_yaml.is_file() else None)


# Variations


def _varied(env: BaseEnvConfig, variations: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each variation of an environment: its part of the job's name, the plain configuration, what was changed."""
    grids = {name: _values(_annotation(env, name), value) for name, value in variations.items()}
    _refuse_many(10 * math.prod(map(len, grids.values())))
    labels = [_labels(name, values) for name, values in grids.items()]
    for values, words in zip(itertools.product(*grids.values()), itertools.product(*labels), strict=True):
        changes = nested(dict(zip(grids, values, strict=True)))
        # At once, because limits may depend on one another.
        plain = to_plain(_with_absolute_models(from_plain(env, changes, "env")))
        yield "".join(words), plain, {name: reduce(getitem, name.split("."), plain) for name in grids}


def _annotation(env: BaseEnvConfig, name: str) -> Any:  # noqa: ANN401  An annotation.
    """Return the annotation of a field by its dotted name; None if there is none."""
    kind, config = None, env
    for part in name.split("."):
        kind, config = get_type_hints(type(config)).get(part), getattr(config, part, None)
    return kind


def _values(kind: Any, value: object) -> list[Any]:  # noqa: ANN401  An annotation.
    """Return the values of a grid: the entries of a list that is nested more deeply than its field."""
    return value if isinstance(value, list) and value and _depth(value) > _depth_of_kind(kind) else [value]


def _depth(value: object) -> int:
    """Return how deeply lists are nested."""
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _depth_of_kind(kind: Any) -> int:  # noqa: ANN401  An annotation.
    """Return how deeply the lists of a field are nested."""
    is_sequence = (get_origin(kind) or kind) in (tuple, list)
    return is_sequence + max(map(_depth_of_kind, get_args(kind)), default=0)


def _with_absolute_models(env: BaseEnvConfig) -> BaseEnvConfig:
    """Return the configuration with absolute paths of its model files; other names stay."""
    named = {name: Path(file).expanduser() for name, file in env.model_files().items()}
    return from_plain(env, nested({name: str(path.absolute()) for name, path in named.items() if path.is_file()}))


# Policies


def resolve_policies(log_root: str, spec: TaskSpec, text: str) -> list[Path | str]:
    """Return the policies that `text` names, see `JobEntry.policy`.

    Returns:
        The absolute path of each file; `zero`, `random` or a class as a string.

    Raises:
        UsageError: There is no such file, checkpoint or class, or the checkpoint is damaged.
    """
    if text in _WITHOUT_POLICY:
        return [text]
    if text in _OF_RUNS:
        return [find_model(log_root, spec, text).absolute()]
    if text == "all":
        return _models_in(RunDir(find_model(log_root, spec, "latest").absolute().parents[2]))
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        is_of_all = path.name == "checkpoints" and not (path / MODEL).is_file()
        return _models_in(RunDir(path.parent)) if is_of_all else [find_model(log_root, spec, str(path))]
    if path.is_file() and path.suffix in _SUFFIXES:
        return [path]
    if ":" in text:
        _refuse_missing_class(text)
        return [absolute(text)]
    what = "is no .pt, .onnx or .pt2 file" if path.is_file() else "does not exist"
    words = (*_WITHOUT_POLICY, *_OF_RUNS, "all")
    hint = did_you_mean(text, words) or did_you_mean(path.name, (each.name for each in path.parent.glob("*")))
    raise UsageError(
        f"The policy '{text}' {what}.{hint} Pass a checkpoint, a run, an .onnx or .pt2 file, {', '.join(words)}, or "
        "package.module:Class."
    )


def _models_in(run: RunDir) -> list[Path | str]:
    """Return the models of all valid checkpoints of a run."""
    models: list[Path | str] = [each.model for each in list_checkpoints(run) if each.damage() is None]
    if not models:
        raise UsageError(f"The run {run.path} has no whole checkpoint: pass another one, or train it further.")
    return models


def _is_class(policy: Path | str) -> bool:
    return isinstance(policy, str) and ":" in policy


def _is_trained(policy: Path | str) -> bool:
    return isinstance(policy, Path) and policy.suffix == ".pt"


def _refuse_missing_class(reference: str) -> None:
    """Refuse a class whose file does not name it. The file is read, not imported: a policy may occupy a GPU."""
    where, _, name = reference.rpartition(":")
    file = Path(where).expanduser().absolute() if where.endswith(".py") else _file_of_module(where)
    if file is None or (where.endswith(".py") and not file.is_file()):
        raise UsageError(
            f"The policy '{reference}' is a class of {where}, which does not exist: pass package.module:Class or "
            "path/to/file.py:Class."
        )
    if file.suffix == ".py":  # Nothing can be read of compiled modules.
        try:
            nodes = list(ast.walk(ast.parse(read_bytes(file))))
        except (SyntaxError, ValueError) as error:
            raise UsageError(f"{file} of the policy '{reference}' is no Python ({error}): mend it.") from error
        # Names of imports and variables too, each of which may be the class.
        names = {getattr(node, key, None) or "" for node in nodes for key in ("name", "asname", "id")}
        if not names & {name, "*", "__getattr__"}:
            raise UsageError(f"{file} has no class '{name}'.{did_you_mean(name, names)} Pass one that it defines.")


def _file_of_module(module: str) -> Path | None:
    """Return the file of a module, without importing its packages; None if there is no such module."""
    top, *inner = itertools.accumulate(module.split("."), "{}.{}".format)
    spec = importlib.util.find_spec(top) if top else None
    for name in inner:
        spec = spec and PathFinder.find_spec(name, spec.submodule_search_locations or [])
    return spec and Path(spec.origin or "")


# Names and errors


def _listed(value: Any) -> tuple[Any, ...]:  # noqa: ANN401  One value, or several.
    return value if isinstance(value, tuple) else (value,)


def _labels(prefix: str, values: Sequence[object]) -> list[str]:
    """Return the part of a job's name for each value of a list; empty where there is one value alone."""
    words = [re.sub(r"[^A-Za-z0-9.+-]+", "_", json.dumps(value, default=str)).strip("_") for value in values]
    if max(map(len, words)) > _LONGEST_LABEL:
        words = [str(number) for number in range(1, len(values) + 1)]
    return [f"-{prefix}{word}" for word in words] if len(words) > 1 else [""]


def _refuse_many(parts: int) -> None:
    """Refuse more than can be planned."""
    if parts > _MOST_PARTS:
        raise UsageError(
            f"The jobs are more than {_MOST_PARTS // 10:,}, or their parts of num_envs episodes more than "
            f"{_MOST_PARTS:,}: give fewer values and episodes, or more environments."
        )


def _refuse_equal_names(what: str, names: Sequence[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"Two {what} have the name '{twice}': each has its own directory, so choose another name.")


@contextmanager
def _locate(where: str, key: str = "") -> Iterator[None]:
    """Name the file, the entry and the key in errors, if `where` is given."""
    try:
        yield
    except UsageError as error:
        if not where:
            raise
        raise UsageError(f"{where}{key and f', {key}'}: {error}") from error
