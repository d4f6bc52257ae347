"""The teacher of a distillation: finding `--teacher`, and comparing what it was trained on with this training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.config import DistillationConfig, TrainConfig
from shoal.config.checks import is_custom
from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError
from shoal.plan.changes import flag_words, flatten
from shoal.plan.checkpoints import Checkpoint, run_of
from shoal.plan.resume import find_model
from shoal.plan.spec import Start
from shoal.reading import read_plain_file, refusing
from shoal.tasks import registry

_COMPARED = ("robot", "actions", "physics_dt", "decimation")
"""Fields of the environment, besides observations, that a teacher's actions depend on."""
_ERRORS = {"noise", "delay"}
"""Fields of an observation that may differ: a teacher may observe better than it did in its own training."""


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
