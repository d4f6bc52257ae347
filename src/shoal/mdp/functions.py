"""The functions of terms, by name, and the values of their parameters."""

import inspect
from importlib import import_module
from types import FunctionType
from typing import Any

import torch
import warp as wp

from shoal.errors import ShoalError, UsageError, did_you_mean
from shoal.mdp.accesses import python_of
from shoal.mdp.annotations import ALIASES, hints_of, takes
from shoal.mdp.terms import Term
from shoal.user_code import load

VECTORS: dict[Any, tuple[str, ...]] = {
    wp.vec2: ("x", "y"),
    wp.vec3: ("x", "y", "z"),
    wp.vec4: ("w", "x", "y", "z"),
    wp.spatial_vector: ("xx", "xy", "yx", "yy", "zx", "zy"),
}
"""Names of the columns of each vector; six are the first two columns of a rotation matrix, row by row."""
SCALARS: dict[Any, str] = {
    wp.float32: "{}",
    float: "{}",
    wp.int32: "wp.int32({})",
    int: "wp.int32({})",
    wp.bool: "({} != 0.0)",
    bool: "({} != 0.0)",
}
"""Expressions of scalars, from that of a number."""
_NUMBERS = (torch.Tensor, *SCALARS, *VECTORS)


def values_of(path: str, term: Term, function: Any, passed: tuple[str, ...]) -> dict[str, Any]:
    """Return the value of each parameter that is not `passed` by the task: the declared one, the default, or None.

    Raises:
        ShoalError: A parameter does not exist, is made for the term, is missing, or is annotated as something else;
            or those that are passed do not come first.
    """
    hints, name = hints_of(function), python_of(function).__name__
    known = {each.name: each.default for each in inspect.signature(python_of(function)).parameters.values()}
    first = [each for each in passed if each in known]
    if [*known][: len(first)] != first:
        raise ShoalError(f"{path}: the first parameters of {name}() must be {', '.join(first)}, in this order.")
    given = {each: getattr(term, each, None) for each in [*known][len(first) :]}  # None is what leaves one out.
    values = {each: known[each] if value is None else value for each, value in given.items()}
    for each in (*term.parameters, *values):
        rule, is_given = takes(hints.get(each)), values.get(each) is not inspect.Parameter.empty
        if each not in values:
            raise ShoalError(f"{path}.{each} is given, but {name}() has no such parameter.{did_you_mean(each, values)}")
        if rule and not rule.said:
            if is_given:
                raise ShoalError(f"{path}.{each} is given, but made for the term: leave it out.")
            values[each] = None
        elif not is_given:
            remedy = ", or decorate it with @wp.func" if each == "env" else ""
            raise ShoalError(f"{path}.{each} is missing: {name}() needs it{remedy}.")
        elif rule is None and (isinstance(values[each], str) or hints.get(each) not in _NUMBERS):
            kind = hints.get(each, "nothing")
            raise UsageError(
                f"{path}.{each} is {values[each]!r}, but is annotated as {getattr(kind, '__name__', kind)}, which "
                f"{'takes numbers' if kind in _NUMBERS else 'no parameter can be'}: annotate numbers as float, int, "
                "bool, wp.vec2, wp.vec3, wp.vec4 or wp.spatial_vector, or of a torch function as torch.Tensor, and "
                f"what selects by name as one of shoal.mdp: {', '.join(ALIASES)}."
            )
    return values


def named_function(func: Any, library: str, path: str, kind: type) -> Any:
    """Return a function of some kind by its name in `shoal.mdp.<library>`, or by ``module:function``; or itself.

    Raises:
        UsageError: There is none of that name.
    """
    if not isinstance(func, str):
        return func
    if ":" in func:
        try:
            return load(func)
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"{path} is '{func}', which cannot be imported ({error}): name 'module:function'."
            ) from error
    module = vars(import_module(f"shoal.mdp.{library}"))
    known = {name: value for name, value in module.items() if isinstance(value, kind) and not name.startswith("_")}
    if func not in known:
        hint = f"{did_you_mean(func, known)} It has: {', '.join(sorted(known))}."
        raise UsageError(f"{path} is '{func}', which is no function of shoal.mdp.{library}.{hint}")
    return known[func]


def made_by(path: str, term: Term, library: str) -> Any:
    """Return what the function of a declaration makes of its parameters, on the host.

    Raises:
        UsageError: There is no such function, or it refuses them.
    """
    function = named_function(term.func, library, path, FunctionType)
    try:
        return function(**{each: getattr(term, each) for each in term.parameters})
    except (UsageError, TypeError, ValueError) as error:
        said = " ".join(str(error).split()).replace("--env.robot", "the file").rstrip(".")
        raise UsageError(f"{path} cannot be made: {said}.") from error


_TORCH = ("rewards", "observations", "terminations", "metrics")
"""Groups whose terms may be functions on torch tensors."""


def find_function(func: Any, library: str, path: str) -> Any:
    """Return the function of a term: a `wp.func`, or where that may be, a Python function on torch tensors.

    Raises:
        ShoalError: There is none of that name.
    """
    func = named_function(func, library, path, wp.Function)
    if not isinstance(func, wp.Function) and not (library in _TORCH and inspect.isfunction(func)):
        must = "a wp.func or a function on torch tensors" if library in _TORCH else "a wp.func"
        raise ShoalError(f"{path} is {func!r}, but must be {must}.")
    return func
