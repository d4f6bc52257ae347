"""Which fields of `state` a term's function reads and writes, from its source and that of the functions it calls."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

import warp as wp
from mujoco.batch import DATA_FIELDS, MODEL_FIELDS

from shoal.errors import ShoalError
from shoal.sim.engines.engine import CONTROLS, STATE


def python_of(function: Any) -> Any:
    """Return the Python function of a term's function: of a `wp.func`, what it decorates."""
    return getattr(function, "func", function)


@cache
def uses(function: Any) -> frozenset[str]:
    """Return the names of what a function, with those that it calls, reads from its `state`, or writes to it."""
    definition = _definition(function)
    read = (each for each in ast.walk(definition) if isinstance(each, ast.Attribute))
    found = {each.attr for each in read if ast.unparse(each.value) == "state"}
    for callee, _ in calls(function):
        found |= uses(callee)
    return frozenset(found)


def calls(function: Any) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield the functions that a function calls, of kernels, and Python's that take `state`; with each argument."""
    for callee, given in _calls(function, _definition(function)):
        yield callee, {name: ast.unparse(each) for name, each in given.items()}


def writes(function: Any) -> frozenset[str]:
    """Return the names of the arrays of `state` that a function, with those that it calls, writes to."""
    return frozenset(path.removeprefix("state.") for path in _written(function) if path.startswith("state."))


def model_field(name: str) -> str | None:
    """Return the field of `MjModel` that a term reads by this name: its own, or `opt.<name>`."""
    return next((field for field in (name, f"opt.{name}") if field in MODEL_FIELDS), None)


def refuse_writes(path: str, function: Any) -> None:
    """Refuse a term, by its path such as ``rewards.feet_slip``, that writes what an engine does not read from it.

    Raises:
        ShoalError: It writes a field that follows from the state; or the state or a field of the model, at an index
            where only events and commands write these.
    """
    group = path.partition(".")[0]
    for name in sorted(writes(function)):
        if name in DATA_FIELDS and name not in STATE + CONTROLS:
            raise ShoalError(
                f"{path} writes state.{name}, which follows from the state: write positions, velocities or controls."
            )
        is_free = (
            name in CONTROLS or (group == "actions" and name not in STATE) or not (name in STATE or model_field(name))
        )
        if group not in ("events", "commands") and not is_free:
            raise ShoalError(
                f"{path} writes state.{name}, which only events and commands may: write it in an event of mode 'step'."
            )


@cache
def _written(function: Any) -> frozenset[str]:
    """Return the parameters whose elements a function writes, and arrays in them, such as ``state.qpos``."""
    definition = _definition(function)
    subscripts = (each for each in ast.walk(definition) if isinstance(each, ast.Subscript))
    found = {_array(each) for each in subscripts if isinstance(each.ctx, ast.Store)}
    for each in ast.walk(definition):
        if isinstance(each, ast.Call) and ast.unparse(each.func).startswith("wp.atomic_"):
            found.add(_array(each.args[0]))
    for callee, given in _calls(function, definition):
        for path in _written(callee):
            name, dot, rest = path.partition(".")
            if name in given:
                found.add(f"{_array(given[name])}{dot}{rest}")
    return frozenset(found)


def _array(node: ast.expr) -> str:
    """Return what is indexed."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node)


@cache
def _definition(function: Any) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(python_of(function))))


def _calls(function: Any, definition: ast.Module) -> Iterator[tuple[Any, dict[str, ast.expr]]]:
    """Yield the functions that a function calls and whose source is known, with the arguments of each call by name."""
    scope = inspect.getclosurevars(python_of(function))
    known = {**scope.globals, **scope.nonlocals}
    for call in ast.walk(definition):
        if isinstance(call, ast.Call):
            first, *rest = ast.unparse(call.func).split(".")
            callee = known.get(first)
            for name in rest:
                callee = getattr(callee, name, None)
            is_kernel_function = isinstance(callee, wp.Function) and getattr(callee, "func", None) is not None
            if is_kernel_function or (inspect.isfunction(callee) and "state" in inspect.signature(callee).parameters):
                given = dict(zip(inspect.signature(python_of(callee)).parameters, call.args, strict=False))
                yield callee, given | {each.arg: each.value for each in call.keywords if each.arg}
