"""Curricula: numbers of other terms that change with the steps of the training. Names are those of mjlab 1.6.0.

`reward_curriculum` changes the weight or parameters of a reward, `termination_curriculum` those of a termination, and
`commands_vel` the ranges of a command. Each parameter of a curriculum is one of that term, with a value for each stage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from shoal.config.checks import check, rules_of
from shoal.errors import ShoalError, UsageError, did_you_mean
from shoal.mdp.terms import CurriculumTerm, Term

_CHANGED = {
    "reward_curriculum": ("rewards", "reward_name"),
    "termination_curriculum": ("terminations", "termination_name"),
    "commands_vel": ("commands", "command_name"),
}
"""The group of what each changes, and the parameter that names it."""
_ENDS = ("_min", "_max")
"""After the name of a range that is logged."""


class Change(NamedTuple):
    """A number, and what it is from a step on."""

    step: int
    """Steps of each environment in this training before it holds; -1 for the declared value."""
    path: str
    """Path of the number, as in `Binder.places`."""
    label: str
    """Name under which it is logged."""
    value: float


def changes_of(config: Any) -> list[Change]:
    """Return the changes of all curricula of a `TermsConfig`, in the order of their steps.

    Raises:
        UsageError: A curriculum changes what is not there, or has not one value for each step.
    """
    found = [each for name, term in config.terms("curricula").items() for each in _changes(config, name, term)]
    return sorted(found, key=lambda change: change.step)


class Schedule:
    """The changes of a task's numbers and weights, which the host writes between two steps."""

    def __init__(self, changes: Sequence[Change], places: Mapping[str, int], rewards: Sequence[str]) -> None:
        """Refuse a change of a parameter that is an array with one number for each name.

        `places` has the place of each number by its path, and `rewards` are the names of the weights.
        """
        self.changes, self._places, self._rewards = changes, places, rewards
        for each in changes:
            if each.path not in places and not each.path.endswith(".weight"):
                raise ShoalError(
                    f"A curriculum changes {each.path}, which is a number for each name: it cannot change."
                )

    def is_due(self, steps: int) -> bool:
        """Whether something changes after so many steps."""
        return any(each.step == steps for each in self.changes)

    def write(self, steps: int, numbers: Any, weights: Any, per_step: float) -> dict[str, float]:
        """Write the numbers as they are after so many steps to Warp's arrays; return what is logged, by name.

        Weights are multiplied by `per_step`.
        """
        changes = [each for each in self.changes if each.step <= steps]
        if changes:
            new, new_weights = numbers.numpy(), weights.numpy()
            for each in changes:
                if each.path in self._places:
                    new[self._places[each.path]] = each.value
                else:
                    new_weights[self._rewards.index(each.path.split(".")[1])] = each.value * per_step
            numbers.assign(new)
            weights.assign(new_weights)
        return {each.label: each.value for each in changes}


def _changes(config: Any, name: str, curriculum: CurriculumTerm) -> Iterator[Change]:
    where = f"env.curricula.{name}"
    if curriculum.func not in _CHANGED:
        hint = did_you_mean(str(curriculum.func), _CHANGED)
        raise UsageError(f"{where} is {curriculum.func!r}, but must be one of {', '.join(_CHANGED)}.{hint}")
    group, key = _CHANGED[str(curriculum.func)]
    if [*curriculum.steps] != sorted({*curriculum.steps}) or min(curriculum.steps, default=0) < 0:
        raise UsageError(f"{where}.steps is {curriculum.steps}, but must go up, from 0 or more.")
    target, terms = getattr(curriculum, key, None), config.terms(group)
    if target not in terms:
        hint = did_you_mean(str(target), terms) or f" There are: {', '.join(terms) or 'none'}."
        raise UsageError(f"{where}.{key} is {target!r}, which is none of the {group}.{hint}")
    for parameter in curriculum.parameters:
        if parameter != key and curriculum.steps:
            declared = _declared(f"{where}.{parameter}", f"{group}.{target}", terms[target], parameter)
            values = getattr(curriculum, parameter)
            values = values if isinstance(values, tuple) else (values,)
            if len(values) != len(curriculum.steps):
                raise UsageError(f"{where}.{parameter} has {len(values)} values for {len(curriculum.steps)} steps.")
            rule = {parameter: rules_of(type(terms[target]))[parameter]}
            for step, value in zip((-1, *curriculum.steps), (declared, *values), strict=True):
                if not _is_numbers(value) or _count(value) != _count(declared):
                    raise UsageError(
                        f"{where}.{parameter} is {value!r} at a step, but {group}.{target}.{parameter} is "
                        f"{declared!r}: give as many numbers."
                    )
                check(replace(terms[target], **{parameter: value}), f"{where}.", rule)
                yield from _numbers(step, f"{group}.{target}.{parameter}", f"Curriculum/{name}/{parameter}", value)


def _declared(where: str, path: str, term: Term, parameter: str) -> Any:
    """Return the declared value of what a curriculum changes: a number or a range."""
    known = [each.name for each in fields(term) if _is_numbers(getattr(term, each.name))]
    if parameter not in known:
        raise UsageError(f"{where} changes {path}.{parameter}, which is no number of it: it has {', '.join(known)}.")
    return getattr(term, parameter)


def _is_numbers(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_numbers, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: object) -> int:
    return len(value) if isinstance(value, tuple) else 0


def _numbers(step: int, path: str, label: str, value: Any) -> Iterator[Change]:
    if not isinstance(value, tuple):
        yield Change(step, path, label, float(value))
        return
    for at, each in enumerate(value):
        end = _ENDS[at] if len(value) == len(_ENDS) else f"_{at}"
        yield Change(step, f"{path}.{at}", f"{label}{end}", float(each))
