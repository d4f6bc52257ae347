"""What a function needs of the model and the task, as metadata of annotations: ``Annotated[Actuators, POSITION]``.

A need holds for each function that passes its own parameter on: one that calls `base_quat(state, env)` needs a free
joint, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Annotated, Any, NamedTuple

import mujoco

from shoal.errors import ShoalError, UsageError
from shoal.mdp.accesses import calls, python_of
from shoal.mdp.actuators import KINDS, kinds_of
from shoal.mdp.annotations import RootBody, Takes, hints_of

_SHOWN = 12


class Given(NamedTuple):
    """What a declaration gives for a parameter, and the task that is to have it."""

    term: str
    """Path of the term."""
    function: str
    parameter: str
    takes: Takes | None
    value: Any
    binder: Any
    """The `shoal.mdp.binding.Binder`."""

    def refuse_unless(self, holds: bool, thing: str) -> None:
        """Refuse the term.

        Raises:
            ShoalError: It does not hold.
        """
        if not holds:
            raise ShoalError(f"{self.term} calls {self.function}(), which needs {thing}: use another function.")


@dataclass(frozen=True, slots=True)
class Need:
    """What a parameter needs; the function raises an error for what does not have it."""

    check: Callable[[Given], None]


def _free_joint(given: Given) -> None:
    given.refuse_unless(given.binder.names.root(0, "") is not None, "a model that begins with a free joint")


def _free_body(given: Given) -> None:
    root = given.binder.names.root(given.value, f"{given.term}.{given.parameter}")
    what = f"a {given.parameter} with a free joint" if given.value else "a model that begins with a free joint"
    given.refuse_unless(root is not None, what)


FreeJointState = Annotated[Any, Need(_free_joint)]
"""The `state` of a model whose first joint is a free joint: that of its base."""


FreeBody = Annotated[RootBody, Need(_free_body)]


def contact_field(name: str) -> Need:
    """Return the need of a contact with a field of MuJoCo's sensor."""

    def check(given: Given) -> None:
        contact = given.binder.structs.get(given.value)  # One that is not there is refused elsewhere.
        given.refuse_unless(contact is None or getattr(contact, name) > 0, f"a contact with '{name}' among its fields")

    return Need(check)


def columns(least: int) -> Need:
    """Return the need of so many columns: of a sensor, of a command, or of the command whose first column it is."""

    def check(given: Given) -> None:
        binder, what = given.binder, given.takes.what if given.takes else "command"
        if what == "sensor":
            indices = binder.names.select("sensor", given.value, f"{given.term}.{given.parameter}")
            has = sum(binder.names.model.sensor_dim[indices])
        else:
            name = given.value if given.takes else given.term.partition(".")[2]
            has = len(binder.command_columns.get(name, range(least)))  # What is not there is refused elsewhere.
        given.refuse_unless(has >= least, f"a {what} of {least} columns")

    return Need(check)


def objects(bad: Callable[[mujoco.MjModel], Any], why: str, engine: str = "") -> Need:
    """Return the need of objects for none of which `bad` is true, on one of the engines or on both."""

    def check(given: Given) -> None:
        names = given.binder.names
        if engine in {"", given.binder.engine} and given.takes:
            path, kind = f"{given.term}.{given.parameter}", given.takes.what
            fails = bad(names.model)
            others = [names.names(kind)[each] for each in names.select(kind, given.value, path) if fails[each]]
            if others:
                raise UsageError(f"{path} selects {', '.join(others[:_SHOWN])}, {why}")

    return Need(check)


def _kind(kind: str) -> Need:
    return objects(
        lambda model: [kind not in kinds_of(model, each) for each in range(model.nactuator)],
        f"but the term needs {KINDS[kind]}: select others, or change the model.",
    )


POSITION, VELOCITY, EFFORT = map(_kind, ("position", "velocity", "effort"))
CTRLRANGE, FORCERANGE = map(_kind, ("ctrlrange", "forcerange"))


MOCAP = objects(lambda model: model.body_mocapid < 0, "which the task does not move: give its object the base mocap.")


def axes_of(field: str) -> Need:
    """Return the need of axes that a field of `MjModel` has."""

    def check(given: Given) -> None:
        last = getattr(given.binder.names.model, field).shape[1] - 1
        if not all(isinstance(axis, int) and 0 <= axis <= last for axis in given.value):
            raise UsageError(
                f"{given.term}.{given.parameter} is {given.value}, but must be numbers from 0 to {last}, the axes of "
                f"{field}."
            )

    return Need(check)


@cache
def needs_of(function: Any) -> dict[str, list[Need]]:
    """Return what the parameters of a function need, by name, with what it needs where it passes them on."""
    hints = hints_of(function)
    found = {
        name: [each for each in getattr(hints.get(name), "__metadata__", ()) if isinstance(each, Need)]
        for name in signature(python_of(function)).parameters
    }
    for callee, given in calls(function):
        for name, needs in needs_of(callee).items():
            if given.get(name) in found:
                found[given[name]] += needs
    return found
