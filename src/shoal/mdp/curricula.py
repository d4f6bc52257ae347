"""Curricula: numbers of other terms that change in stages, with the steps of the training or with a metric.

`reward_curriculum` changes the weight or parameters of a reward, `termination_curriculum` those of a termination,
`commands_vel` the ranges of a command: names of mjlab 1.6.0. `event_curriculum` and `observation_curriculum` change
those of an event and of an observation, such as its noise. Each parameter of a curriculum is one of that term, with a
value for each stage.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from shoal.config.checks import check, rules_of
from shoal.errors import ShoalError, UsageError, did_you_mean
from shoal.mdp.terms import CurriculumTerm

_CHANGED = {
    "reward_curriculum": ("rewards", "reward_name"),
    "termination_curriculum": ("terminations", "termination_name"),
    "commands_vel": ("commands", "command_name"),
    "event_curriculum": ("events", "event_name"),
    "observation_curriculum": ("observations", "observation_name"),
}
"""The group of what each changes, and the parameter that names it."""
_ENDS = ("_min", "_max")
"""After the name of a range that is logged."""


class Change(NamedTuple):
    """A number, and what it is from a stage on."""

    curriculum: str
    stage: int
    """0 for the declared value."""
    path: str
    """Path of the number, as in `Binder.positions`."""
    label: str
    """Name under which it is logged."""
    value: float


class Curricula:
    """The curricula of a `TermsConfig`, and how far they have come in a training."""

    def __init__(self, config: Any) -> None:
        """Begin.

        Raises:
            UsageError: A curriculum changes what is not there, or has not one value for each stage.
        """
        self._terms: dict[str, CurriculumTerm] = {
            name: term for name, term in config.terms("curricula").items() if _ends(name, term)
        }
        self.changes = [
            each for name, term in config.terms("curricula").items() for each in _changes(config, name, term)
        ]
        taken: dict[str, str] = {}
        for each in self.changes:
            if taken.setdefault(each.path, each.curriculum) != each.curriculum:
                raise UsageError(
                    f"The curricula {taken[each.path]} and {each.curriculum} both change {each.path}: leave one out."
                )
        self.steps = 0
        """Steps of each environment since the training began, its resumes included."""
        self.stages = dict.fromkeys((name for name, term in self._terms.items() if not term.steps), 0)
        """Stages of the curricula that follow a metric."""
        self.iterations = dict.fromkeys(self.stages, 0)
        """Iterations since these began."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._terms)

    def is_due(self) -> bool:
        """Whether a stage begins with the next step."""
        return any(self.steps in term.steps for term in self._terms.values())

    def reached(self) -> list[Change]:
        """Return the changes that hold, each number's last."""
        reached = {name: bisect_right(term.steps, self.steps) for name, term in self._terms.items()} | self.stages
        return [each for each in self.changes if each.stage <= reached[each.curriculum]]

    def log(self) -> dict[str, float]:
        """Return what is logged: the numbers that hold, and stages."""
        stages = {f"Curriculum/{name}/stage": float(stage) for name, stage in self.stages.items()}
        return {each.label: each.value for each in self.reached()} | stages

    def follow(self, metrics: Mapping[str, float]) -> bool:
        """Go on by a stage where a metric has passed its threshold; return whether one has.

        `metrics` are means over all ranks, so that all come to the same stages.
        """
        before = dict(self.stages)
        for name, stage in before.items():
            term = self._terms[name]
            score = _score(term)
            found = score(metrics) if score else metrics.get(term.when, math.nan)
            ends, sign = (term.above, 1.0) if term.above else (term.below, -1.0)
            self.iterations[name] += 1
            has_lasted = stage == 0 or self.iterations[name] >= term.min_iterations
            if has_lasted and stage < len(ends) and sign * found >= sign * ends[stage]:  # Never of NaN.
                self.stages[name], self.iterations[name] = stage + 1, 0
        return self.stages != before

    def check(self, task: Any) -> None:
        """Refuse what does not fit a task of terms, once its numbers and metrics are known.

        Raises:
            ShoalError: A curriculum changes a number that is not read in each step, or follows no metric.
        """
        for each in self.changes:
            if each.path not in task.binder.positions and not each.path.endswith(".weight"):
                raise ShoalError(
                    f"A curriculum changes {each.path}, which is off, part of the kernels, or a number for each name: "
                    "it cannot change."
                )
        kinds = {"Metrics": task.metrics, "Episode_Reward": task.reward_terms, "Episode_Termination": task.terminations}
        known = ["Train/mean_reward", "Train/mean_episode_length"]
        known += [f"{kind}/{name}" for kind, names in kinds.items() for name in names]
        for name in self.stages:
            when = self._terms[name].when
            if not _score(self._terms[name]) and when not in known:
                hint = did_you_mean(when, known) or f" There are: {', '.join(known)}."
                raise UsageError(f"env.curricula.{name}.when is {when!r}, which is no metric of the training.{hint}")

    def write(self, task: Any) -> None:
        """Write the numbers that hold to the arrays of a task of terms."""
        numbers, weights = task.numbers.numpy(), task.weights.numpy()
        for each in self.reached():
            if each.path in task.binder.positions:
                numbers[task.binder.positions[each.path]] = each.value
            else:
                weights[task.reward_terms.index(each.path.split(".")[1])] = each.value * task.per_step
        task.numbers.assign(numbers)
        task.weights.assign(weights)

    def state(self) -> dict[str, tuple[int, int]]:
        """Return the steps done and the stages, each with 1, so that sums over all ranks have the number of ranks."""
        counts = {"steps": self.steps}
        for kind in ("stages", "iterations"):
            counts |= {f"{kind}/{name}": count for name, count in getattr(self, kind).items()}
        return {name: (count, 1) for name, count in counts.items()} if self else {}

    def restore(self, counts: Mapping[str, Sequence[float]]) -> None:
        """Go on from such sums."""
        done = {name: round(counts[name][0] / counts[name][1]) for name in self.state() if name in counts}
        self.steps = done.get("steps", self.steps)
        for kind in ("stages", "iterations"):
            counted: dict[str, int] = getattr(self, kind)
            counted.update({name: done.get(f"{kind}/{name}", count) for name, count in counted.items()})


def _score(term: CurriculumTerm) -> Callable[[Mapping[str, float]], float] | None:
    """Return the function that makes one number of all metrics; None for a metric of its own."""
    return term.score if term.score and term.score.__name__ == term.when else None


def _ends(name: str, term: CurriculumTerm) -> tuple[float, ...]:
    """Return where the stages of a curriculum begin: steps, or values of its metric; none for never."""
    where = f"env.curricula.{name}"
    given = {each: getattr(term, each) for each in ("steps", "above", "below") if getattr(term, each)}
    kind, ends = next(iter(given.items()), ("", tuple[float, ...]()))
    if len(given) > 1:
        raise UsageError(f"{where} has {' and '.join(given)}: give steps, or what a metric is above, or below.")
    if kind in ("above", "below") and not term.when:
        raise UsageError(f"{where} has {kind}, but no metric: give its name as when.")
    if kind == "steps" and ([*ends] != sorted({*ends}) or ends[0] < 0):
        raise UsageError(f"{where}.steps is {ends}, but must go up, from 0 or more.")
    return ends


def _changes(config: Any, name: str, curriculum: CurriculumTerm) -> Iterator[Change]:
    where = f"env.curricula.{name}"
    if curriculum.func not in _CHANGED:
        hint = did_you_mean(str(curriculum.func), _CHANGED)
        raise UsageError(f"{where} is {curriculum.func!r}, but must be one of {', '.join(_CHANGED)}.{hint}")
    group, key = _CHANGED[str(curriculum.func)]
    ends = _ends(name, curriculum)
    target, terms = getattr(curriculum, key, None), config.flat(group)
    if target not in terms:
        hint = did_you_mean(str(target), terms) or f" There are: {', '.join(terms) or 'none'}."
        raise UsageError(f"{where}.{key} is {target!r}, which is none of the {group}.{hint}")
    for parameter in curriculum.parameters if ends else ():
        if parameter == key:
            continue
        declared, values = getattr(terms[target], parameter, None), getattr(curriculum, parameter)
        values = values if isinstance(values, tuple) else (values,)
        if not _numbers(declared):
            known = [each.name for each in fields(terms[target]) if _numbers(getattr(terms[target], each.name))]
            raise UsageError(
                f"{where}.{parameter} changes {group}.{target}.{parameter}, which is no number of it: it has "
                f"{', '.join(known)}."
            )
        if len(values) != len(ends):
            what = "steps" if curriculum.steps else "stages"
            raise UsageError(f"{where}.{parameter} has {len(values)} values for {len(ends)} {what}.")
        rule, is_range = {parameter: rules_of(type(terms[target]))[parameter]}, isinstance(declared, tuple)
        for stage, value in enumerate((declared, *values)):
            if isinstance(value, tuple) != is_range or len(_numbers(value)) != len(_numbers(declared)):
                raise UsageError(
                    f"{where}.{parameter} is {value!r} at a step, but {group}.{target}.{parameter} is "
                    f"{declared!r}: give as many numbers."
                )
            check(replace(terms[target], **{parameter: value}), f"{where}.", rule)
            for at, number in enumerate(_numbers(value)):
                end = _ENDS[at] if len(_numbers(value)) == len(_ENDS) else f"_{at}"
                path, label = (f".{at}", end) if is_range else ("", "")
                path, label = f"{group}.{target}.{parameter}{path}", f"Curriculum/{name}/{parameter}{label}"
                yield Change(name, stage, path, label, float(number))


def _numbers(value: object) -> tuple[float, ...]:
    """Return a number, or the numbers of several; none of what is something else."""
    numbers: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    return numbers if all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers) else ()
