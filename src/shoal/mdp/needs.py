"""What functions of terms need, with all that they call."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from shoal.mdp.accesses import callees

FunctionT = TypeVar("FunctionT")


def needs(*kinds: str, **sizes: int) -> Callable[[FunctionT], FunctionT]:
    """Declare what a `wp.func` needs: a task without is refused when it binds a term.

    Its parameter `actuators` may select only those of all `kinds`, see `shoal.mdp.actuators.KINDS`. The rest holds for
    each function that calls it, too: `free_joint` is the robot's; `command` and `sensor` are numbers of columns of what
    these parameters name; `first` is that of the columns that a command writes.
    """

    def mark(function: Any) -> Any:
        function.kinds, function.needs = kinds, sizes
        return function

    return mark


def remembers(before: Any) -> Callable[[FunctionT], FunctionT]:
    """Declare what the function of a reward finds in ``memory[env, 0]``: `before(state, env)` before the step."""

    def mark(function: Any) -> Any:
        function.before = before
        return function

    return mark


@cache
def needs_of(function: Any) -> dict[str, int]:
    """Return what a function needs, with those that it calls."""
    found: dict[str, int] = dict(getattr(function, "needs", {}))
    for callee in callees(function):
        found |= needs_of(callee)
    return found
