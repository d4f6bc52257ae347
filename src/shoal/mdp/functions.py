"""The functions of terms, by name, and the values of their parameters."""

import inspect
from importlib import import_module
from typing import Any

import warp as wp

from shoal.errors import ShoalError, UsageError, did_you_mean
from shoal.mdp.terms import Term
from shoal.user_code import load


def values_of(path: str, term: Term, function: Any, skipped: int) -> dict[str, Any]:
    """Return the value of each parameter but the first `skipped`: the declared one, or the default."""
    _, *parameters = inspect.signature(function).parameters.values()
    known = {each.name: each.default for each in parameters[skipped - 1 :]}
    unknown = [name for name in term.parameters if name not in known]
    if unknown:
        raise ShoalError(
            f"{path}.{unknown[0]} is given, but {function.__name__}() has no such parameter."
            f"{did_you_mean(unknown[0], known)}"
        )
    return {name: getattr(term, name, default) for name, default in known.items()}


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
