"""The checkpoint that a training starts from: by `--resume`, with its run, `--checkpoint` or `--teacher`."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from shoal.config import AgentConfig, DistillationConfig, TrainConfig
from shoal.config.checks import is_custom
from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError, counted
from shoal.plan.changes import flag_words, flatten
from shoal.plan.checkpoints import Checkpoint, best_good, check_learner, checkpoint_at, newest_good, run_of
from shoal.plan.rundir import RunDir, experiment_dir, find_run, list_runs
from shoal.reading import read_plain_file, refusing
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec

logger = logging.getLogger(__name__)

_OF_NETWORKS = {
    *("class_name", "activation", "separate", "std_type", "num_atoms", "num_outputs"),
    *("hidden_dims", "actor_hidden_dims", "critic_hidden_dims", "predictor_hidden_dims", "target_hidden_dims"),
    *("rnn_type", "rnn_hidden_dim", "rnn_num_layers"),
    *("output_channels", "kernel_size", "stride", "padding", "max_pool"),
    *("obs_normalization", "state_normalization", "reward_normalization"),
    *("normalize_observations", "normalize_values", "normalize_input", "normalize_value"),
}
"""Fields of learners that networks and normalisers follow from, besides observation groups."""
_COMPARED = ("robot", "actions", "physics_dt", "decimation")
"""Fields of the environment, besides observations, that a teacher's actions depend on."""
_ERRORS = {
    "noise",
    "bias",
    *(f"delay_{each}" for each in ("min_lag", "max_lag", "hold_prob", "update_period", "per_env_phase")),
}
"""Fields of an observation that may differ: a teacher may observe better than it did in its own training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The checkpoint that training starts from."""

    model: str
    """Path of the `model.pt` to load."""
    mode: Literal["continue", "weights", "teacher"]
    """`continue` takes iteration, totals, optimizer and learning rate too; `weights` only the networks; `teacher` is of
    another learner, and only its policy is taken."""


def find_start(config: TrainConfig, spec: TaskSpec) -> tuple[RunDir | None, Start | None, int, list[str]]:
    """Return the run to continue, the checkpoint to start from, its iteration, and notes about damaged ones."""
    if config.resume is not None:
        run, damaged = run_to_continue(config, spec)
        checkpoint, passed_over = newest_good(run)
        if checkpoint is None:
            reasons = " ".join(passed_over) or "It has none yet."
            raise UsageError(
                f"The run {run.path} has no checkpoint to go on from. {reasons} Leave --resume out to start from the "
                "beginning."
            )
        if checkpoint.iteration >= config.max_iterations:
            raise UsageError(
                f"The run {run.path} is finished: {checkpoint.iteration} of {config.max_iterations} iterations done. "
                f"Pass --max-iterations {checkpoint.iteration * 2} to train it further."
            )
        refuse_other_networks(run, config.agent)
        start = Start(model=str(checkpoint.model.absolute()), mode="continue")
        return run, start, checkpoint.iteration, [*damaged, *passed_over]
    if config.checkpoint is not None:
        model = find_model(config.log_root, spec, config.checkpoint)
        manifest = Checkpoint(model.parent).manifest()
        if "learner" in manifest:
            check_learner(manifest, config.learner)
        refuse_other_networks(run_of(model), config.agent)
        return None, Start(model=str(model.absolute()), mode="weights"), 0, []
    return None, None, 0, []


def saved_section(run: RunDir, name: str) -> Mapping[str, Any]:
    """Return a section of a run's configuration as plain values, without making it; empty where there is none."""
    if not run.train_yaml.is_file():
        return {}
    plain = read_plain_file("--resume", run.train_yaml, example="<run>/params/train.yaml")
    section = cast("dict[str, object]", plain).get(name) if isinstance(plain, dict) else None
    return cast("dict[str, Any]", section) if isinstance(section, dict) else {}


def refuse_other_networks(run: RunDir | None, agent: AgentConfig) -> None:
    """Refuse networks that the weights of a run do not fit, as far as its configuration and this one tell."""
    then = _networks(saved_section(run, "agent") if run else {})
    now = {name: value for name, value in _networks(to_plain(agent)).items() if not _fits(value, then.get(name))}
    if run and now:
        raise UsageError(
            f"{flag_words(now)} was asked for, but the networks of the run {run.path} were trained with "
            f"{flag_words({name: then[name] for name in now})}, and their weights fit no others: leave it out, or "
            "train other networks in a new run, without the checkpoint."
        )


def _networks(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a learner that its networks follow from, by dotted names."""
    flat = flatten(agent, "agent.")
    of_rnd = flat.get("agent.algorithm.rnd.enabled")
    return {
        name: value
        for name, value in flat.items()
        if name.startswith("agent.obs_groups.") or name.rpartition(".")[2] in _OF_NETWORKS
        if not name.startswith("agent.algorithm.") or (of_rnd and ".rnd." in name)
    }


def _fits(value: object, then: object) -> bool:
    """Whether two values may mean the same network: None is a default, and a class of one's own may have moved."""
    if isinstance(value, str) and isinstance(then, str):
        return Path(value).name == Path(then).name
    return value is None or then is None or value == then


def new_run_words(config: TrainConfig, model: str) -> str:
    """Return the command that starts a new run from the weights of a run's checkpoint."""
    checkpoint = Path(model).parent
    file = RunDir(checkpoint.parent.parent).train_yaml
    return shlex.join(["train", config.task, "--config", str(file), "--checkpoint", str(checkpoint)])


def changes_since(config: TrainConfig, start: Start | None, world_size: int, num_envs: int) -> str | None:
    """Return a note if the number of ranks or environments differs from that of the checkpoint to continue."""
    if start is None or start.mode != "continue":
        return None
    checkpoint = Checkpoint(Path(start.model).parent)
    manifest = checkpoint.manifest()
    workers, each = manifest.get("world_size"), manifest.get("num_envs")
    if workers is None or each is None or (workers, each) == (world_size, num_envs) or not checkpoint.has_rank_files:
        return None
    then, now = int(workers) * int(each), world_size * num_envs
    steps = config.agent.num_steps_per_env
    effect = "all of them go on"
    if then != now:
        effect = f"{now - then:,} of them are new" if now > then else f"the last {then - now:,} are left out"
    return (
        f"The checkpoint is of {_workers(workers, each)}, and this is {_workers(world_size, num_envs)}: {now:,} "
        f"environments in all, {effect}; {now * steps:,} samples an iteration, {then * steps:,} before; other random "
        "actions. The learning rate is not changed."
    )


def _workers(number: int, num_envs: int) -> str:
    return f"{counted(number, 'worker')} with {counted(num_envs, 'environment')}{'' if number == 1 else ' each'}"


def run_to_continue(config: TrainConfig, spec: TaskSpec) -> tuple[RunDir, list[str]]:
    """Return the run of `--resume`, else the newest with a valid checkpoint; and notes about damaged, newer ones."""
    if config.resume:
        experiment = experiment_dir(config.log_root, spec.experiment)
        return find_run(experiment, list_runs(experiment), config.resume[0]), []
    return _newest_run_with_checkpoint(config.log_root, spec)


def find_model(log_root: str, spec: TaskSpec, checkpoint: str) -> Path:
    """Return the model file of a checkpoint or run by path, or of `latest`, `best`, `best-of-runs` or `shipped`."""
    if checkpoint == "shipped":
        return registry.shipped_policy(spec.name)
    if checkpoint not in ("latest", "best", "best-of-runs"):
        if not RunDir(Path(checkpoint)).checkpoints_dir.is_dir():
            return checkpoint_at(Path(checkpoint))
        found, _passed_over = newest_good(RunDir(Path(checkpoint)))
        if found is None:
            raise UsageError(f"The run {checkpoint} has no whole checkpoint: pass another one, or train it further.")
        return found.model
    run, _passed_over = _newest_run_with_checkpoint(log_root, spec)
    runs = list_runs(run.path.parent) if checkpoint == "best-of-runs" else [run]
    found = newest_good(run)[0] if checkpoint == "latest" else best_good(*runs)
    if found is None:  # Removed by another process meanwhile.
        raise UsageError(f"The newest checkpoint below {log_root} is gone: try again.")
    if checkpoint == "best" and found.score is None:
        _warn_of_no_score(run)
    if checkpoint == "best-of-runs":
        which = "newest, since no scores can be compared"
        if found.score is not None:
            which = f"best, whose {found.metric} is {found.score:.2f}"
        logger.warning("Of %s %s is taken, the %s.", counted(len(runs), "run"), found.path, which)
    return found.model


def find_model_to_show(log_root: str, spec: TaskSpec, checkpoint: str) -> Path:
    """Return the model file as `find_model` does; where there is no run for `latest`, that of the shipped policy."""
    runs = list_runs(experiment_dir(Path(log_root), spec.experiment))
    if runs or checkpoint != "latest" or spec.name not in registry.shipped_policies():
        return find_model(log_root, spec, checkpoint)
    logger.warning("%s has no run below %s: the policy that ships with Shoal is taken.", spec.name, log_root)
    return registry.shipped_policy(spec.name)


@cache
def _warn_of_no_score(run: RunDir) -> None:
    """Warn, once for each run, that `best` is `latest`."""
    logger.warning("No score of %s can be compared: its best checkpoint is the last one.", run.path)


def _newest_run_with_checkpoint(log_root: str, spec: TaskSpec) -> tuple[RunDir, list[str]]:
    experiment = experiment_dir(Path(log_root), spec.experiment)
    passed_over: list[str] = []
    for run in reversed(list_runs(experiment)):
        newest, damaged = newest_good(run)
        if newest is not None:
            return run, passed_over
        passed_over += damaged
    if passed_over:
        raise UsageError(
            f"No run in {experiment.absolute()} has a whole checkpoint. {' '.join(passed_over)} Pass a path, or train "
            "from the beginning without this flag."
        )
    raise UsageError(f"There is no run with a checkpoint in {experiment.absolute()}: train first, or pass a path.")


def with_usual_teacher(config: TrainConfig) -> TrainConfig:
    """Return a new training with `--teacher shipped`, if it names none and one ships. All ranks have that file."""
    agent, named = config.agent, (config.teacher, config.resume, config.checkpoint)
    if not isinstance(agent, DistillationConfig) or any(each is not None for each in named):
        return config
    ships = (agent.teacher_task or config.task) in registry.shipped_policies()
    return replace(config, teacher="shipped") if ships else config


def with_teacher(config: TrainConfig) -> tuple[TrainConfig, Start | None]:
    """Return a new training with the network of `--teacher`, and its checkpoint. None without a teacher.

    Raises:
        UsageError: There is no such teacher, or it is of another task or learner, or observed other things.
    """
    agent = config.agent
    if not isinstance(agent, DistillationConfig):
        if config.teacher is not None:
            raise UsageError(
                f"--teacher {config.teacher} was asked for, but the learner {config.learner} has no teacher: pass "
                "--learner distillation, or leave it out."
            )
        return config, None
    spec = registry.resolve(agent.teacher_task or config.task)
    if config.teacher is None:
        raise UsageError(
            f"The learner {config.learner} needs a teacher: pass --teacher with a run or a checkpoint of "
            f"{spec.name}, or 'latest' or 'best'."
        )
    model = find_model(config.log_root, spec, config.teacher)
    learner = Checkpoint(model.parent).manifest().get("learner", "rsl_rl")
    if learner != "rsl_rl":
        raise UsageError(
            f"The teacher {model} is of the learner {learner}, but must be of rsl_rl: pass another --teacher."
        )
    run = run_of(model)
    if run is not None:
        saved = read_plain_file("--teacher", run.train_yaml, example="<run>/params/train.yaml")
        with refusing(run.train_yaml, "pass another --teacher", "--teacher "):
            config = replace(config, agent=_like_teacher(config, agent, model, saved))
    elif config.teacher == "shipped":  # Made with the defaults of its task.
        logger.warning("The teacher is the policy of %s that ships with Shoal.", spec.name)
        config = replace(config, agent=_like_teacher(config, agent, model, to_plain(spec.defaults())))
    return config, Start(model=str(model.absolute()), mode="teacher")


def _like_teacher(config: TrainConfig, agent: DistillationConfig, model: Path, saved: Any) -> DistillationConfig:  # noqa: ANN401
    """Return the learner with the network of the teacher's run, whose configuration is `saved`."""
    wanted = agent.teacher_task or config.task
    if Path(saved["task"]).name != Path(wanted).name:  # A task in a file may have moved.
        raise UsageError(
            f"The teacher {model} is of the task {saved['task']}, but must be of {wanted}: pass another --teacher, or "
            f"--agent.teacher-task {saved['task']}."
        )
    network = from_plain(agent.teacher, saved["agent"]["actor"], "agent.teacher")
    if is_custom(network.class_name) and network.class_name != agent.teacher.class_name:
        raise UsageError(
            f"The teacher {model} would import '{network.class_name}': read that code, and pass "
            f"--agent.teacher.class-name {network.class_name} if you trust it."
        )
    groups = saved["agent"]["obs_groups"].get("actor", ["policy"])
    _compare(model, saved["env"], groups, to_plain(config.env), agent.obs_groups.get("teacher", ("teacher",)))
    return replace(agent, teacher=network)


def _compare(
    model: Path, then: Mapping[str, Any], groups_then: Sequence[str], now: Mapping[str, Any], groups_now: Sequence[str]
) -> None:
    """Refuse a teacher with other observations or actions, of two environments and the groups it observes in each."""
    before, after = _observed(then, groups_then), _observed(now, groups_now)
    names_before, names_after = ([name for _, name, _ in each] for each in (before, after))
    if names_before != names_after:
        raise UsageError(
            f"The teacher {model} observes {', '.join(names_before)}, but the groups {', '.join(groups_now)} of this "
            f"task have {', '.join(names_after)}: pass other --agent.obs-groups, or another --teacher."
        )
    pairs = [(field, new, old) for (field, _, new), (_, _, old) in zip(after, before, strict=True)]
    pairs += [(name, now[name], then.get(name)) for name in _COMPARED if name in now]
    for field, new, old in pairs:
        was = flatten({field: old}, "env.")
        other = next((name for name, value in flatten({field: new}, "env.").items() if was.get(name) != value), None)
        if other is not None:
            raise UsageError(
                f"The teacher {model} was trained with {flag_words({other: was.get(other)})}, and here that is "
                f"{flag_words({other: flatten({field: new}, 'env.')[other]})}: pass the teacher's value, or another "
                "--teacher."
            )


def _observed(env: Mapping[str, Any], groups: Sequence[str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return field, name and parameters of each observation of some groups; none of a task that has no terms."""
    terms = env.get("observations", {})
    return [
        (f"observations.{group}.{name}", name, {key: each for key, each in term.items() if key not in _ERRORS})
        for group in groups
        for name, term in terms.get(group, {}).items()
    ]
