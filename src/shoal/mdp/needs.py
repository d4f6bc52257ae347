"""What functions of terms need, with all that they call: what they read from `state`, and what they declare."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import warp as wp

FunctionT = TypeVar("FunctionT")


def needs(**sizes: int) -> Callable[[FunctionT], FunctionT]:
    """Declare what a `wp.func` needs, and each that calls it; a task without is refused when it binds a term.

    `free_joint` is the robot's; `command` and `sensor` are numbers of columns of what these parameters name; `first` is
    that of the columns that a command writes.
    """

    def mark(function: Any) -> Any:
        function.needs = sizes
        return function

    return mark


def python_of(function: Any) -> Any:
    """Return the Python function of a term's function: of a `wp.func`, what it decorates."""
    return getattr(function, "func", function)


@cache
def needs_of(function: Any) -> dict[str, int]:
    """Return what a function needs, with those that it calls."""
    found: dict[str, int] = {}
    for each in _reached(function):
        found |= getattr(each, "needs", {})
    return found


@cache
def uses(function: Any) -> frozenset[str]:
    """Return the names of what a function, with those that it calls, reads from its `state`."""
    read = [
        each for reached in _reached(function) for each in ast.walk(_parsed(reached)) if isinstance(each, ast.Attribute)
    ]
    return frozenset(each.attr for each in read if ast.unparse(each.value) == "state")


@cache
def _parsed(function: Any) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(python_of(function))))


@cache
def _reached(function: Any) -> frozenset[Any]:
    """Return a function, and all that it calls: those of kernels, and Python's that take `state`."""
    scope = inspect.getclosurevars(python_of(function))
    known = {**scope.globals, **scope.nonlocals}
    found = {function}
    called = (each.func for each in ast.walk(_parsed(function)) if isinstance(each, ast.Call))
    for first, *rest in (ast.unparse(each).split(".") for each in called):
        callee = known.get(first)
        for name in rest:
            callee = getattr(callee, name, None)
        is_kernel_function = isinstance(callee, wp.Function) and getattr(callee, "func", None) is not None
        if is_kernel_function or (inspect.isfunction(callee) and "state" in inspect.signature(callee).parameters):
            found |= _reached(callee)
    return frozenset(found)
