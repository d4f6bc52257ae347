"""Parameters of terms to arguments of kernels: numbers to places of one array, patterns to arrays of indices.

Numbers are read from an array, so that another weight or range compiles nothing, and a curriculum may change it.
"""

# pyright: reportInvalidTypeForm=false

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any, get_args, get_type_hints

import numpy as np
import warp as wp

from shoal.errors import ShoalError, UsageError, did_you_mean
from shoal.mdp.accesses import python_of, refuse_writes
from shoal.mdp.names import Actuator, Geom, Joint, Names, kind_of
from shoal.mdp.needs import needs_of
from shoal.mdp.terms import CHOICES, CONTACT_FIELDS, Term
from shoal.mdp.values import grid_points, numbers_by_name, numbers_of
from shoal.sim import bounds
from shoal.user_code import load

_VECTORS: dict[Any, tuple[str, ...]] = {
    wp.vec2: ("x", "y"),
    wp.vec3: ("x", "y", "z"),
    wp.vec4: ("w", "x", "y", "z"),
    wp.spatial_vector: ("xx", "xy", "yx", "yy", "zx", "zy"),
}
"""Names of the columns of each vector; six are the first two columns of a rotation matrix, row by row."""
_ENTRIES: dict[Any, Any] = {("joint", True): Joint, ("actuator", True): Actuator, ("geom", True): Geom}
"""Entries of what torch functions select; the parameters of a `wp.func` say them."""
_MEMORY, _ACTION_COLUMNS = "memory", "action_columns"
"""Names of parameters that are made for a term, from what it selects."""
_ROOT = "root_body"
"""Name of a parameter that is a body with a free joint: the base, where no other is named."""
_ARRAY = type(wp.array[wp.float32])
_SCALARS: dict[Any, str] = {
    wp.float32: "{}",
    float: "{}",
    wp.int32: "wp.int32({})",
    int: "wp.int32({})",
    wp.bool: "({} != 0.0)",
    bool: "({} != 0.0)",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """A term's function with the arguments of its call, as expressions of a kernel."""

    name: str
    """The term's name in the generated code: group and name."""
    function: Any
    called: str
    """The name of the function in the generated code."""
    arguments: tuple[str, ...]
    columns: tuple[str, ...]
    """Names of the columns of its value."""
    is_by_column: bool
    """Whether it is called for each selected name, with its index."""
    width: int = 1
    """Number of columns of each name, if it is called by name."""
    env: str = "env"
    """The expression of the environment."""
    of: str = ""
    """Of contacts, the array of the geoms or bodies."""
    is_updated: bool = False
    """Whether it is a command that is called in each step, with whether a new one is to be drawn."""

    @property
    def value(self) -> str:
        """The expression of column `i`, if it is called by name; else of all columns."""
        if not self.is_by_column:
            return self.call()
        return self.call("i") if self.width == 1 else f"{self.call(f'i // {self.width}')}[i % {self.width}]"

    def call(self, *more: str) -> str:
        """Return the call, with further arguments after the environment."""
        return f"{self.called}({', '.join(('state', self.env, *more, *self.arguments))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBound(Bound):
    """A Python function on torch tensors, see `shoal.mdp.torch_terms`. In a kernel it is the array of its values."""

    path: str
    """Its group and name, such as ``rewards.feet_slip``."""
    places: Mapping[str, int | slice | str]
    """Its parameters: an index, places in the array of numbers, or the name of an array."""

    @property
    def group(self) -> str:
        """Its group, such as ``rewards``."""
        return self.path.partition(".")[0]

    def call(self, *more: str) -> str:
        """Return one column of its value."""
        return f"{self.name}[env, {more[0] if more else 0}]"


class Binder:
    """Binds the terms of one task."""

    def __init__(
        self, names: Names, allocate: Callable[[str, int, Any], wp.array], device: wp.Device, engine: str
    ) -> None:
        """Prepare.

        Args:
            names: The model's names.
            allocate: Returns an array of the task's state by name, columns and type: the memory of a term.
            device: Where arrays live.
            engine: The name of the physics engine, for checks of what is bound.
        """
        self._engine = engine
        self.names = names
        self.device = device
        self.numbers: list[float] = []
        self.places: dict[str, int] = {}
        """Where in `numbers` each parameter begins, by its path such as ``rewards.feet_slip.weight``."""
        self.arrays: dict[str, Any] = {}
        """Arguments of the kernels, by name."""
        self.memories: list[str] = []
        """Arguments that are the memory of a term, cleared when an episode begins."""
        self.commands: dict[str, int] = {}
        """First column of each command."""
        self.command_columns: dict[str, tuple[str, ...]] = {}
        """Names of the columns of each command."""
        self.action_columns: tuple[str, ...] = ()
        """Names of the columns of all actions."""
        self.structs: dict[str, Any] = {}
        """Values that a parameter may name, by name: contacts."""
        self.columns: dict[str, tuple[str, ...]] = {}
        """What each contact is of, by its name."""
        self.functions: dict[str, Any] = {}
        """Functions that the text of the kernels calls, by name."""
        self.torch: list[TorchBound] = []
        """Terms that are functions on torch tensors."""
        self._allocate = allocate
        self._shared: dict[tuple[str, object], str] = {}

    def all_functions(self) -> list[Any]:
        """Return the functions of all terms, and those that the text of the kernels calls."""
        return [*self.functions.values(), *(each.function for each in self.torch)]

    def number(self, path: str, value: Any) -> str:
        """Return the expression of one number, which has one place however often it is asked for."""
        if path not in self.places:
            self.places[path] = len(self.numbers)
            self.numbers += numbers_of(path, value, 1)
        return f"numbers[{self.places[path]}]"

    def bind(self, path: str, term: Term, library: str, own: tuple[str, ...] = ("i",)) -> Bound:
        """Bind a term by its group and name, such as ``rewards.feet_slip``.

        A string names a function of `shoal.mdp.<library>`. `own` are parameters after `state` and `env` that the caller
        passes itself.
        """
        function = find_function(term.func, library, path)
        refuse_writes(path, function)
        if not isinstance(function, wp.Function):
            return self._bind_torch(path, term, function)
        python = python_of(function)
        hints = get_type_hints(python)
        values = _values_of(path, term, python, skipped=2)
        self._check_needs(path, function, values)
        for check in getattr(python, "checks", ()):
            check(path, values, self.names, self._engine)
        passed = [name for name in values if name in own]
        arguments, columns = list[str](), tuple[str, ...]()
        for name, value in [*values.items()][len(passed) :]:
            where = f"{path}.{name}"
            _refuse_missing(where, python, value)
            expression, selected = self._argument(where, name, hints[name], value, columns)
            columns = columns or selected
            arguments.append(expression)
            if name == "actuators" and (kinds := getattr(function, "kinds", ())):
                self.names.refuse_others(self.names.select("actuator", value, where), kinds, where)
        parts = _VECTORS.get(hints.get("return"), ("",))
        by_column = "i" in passed
        if by_column and not columns:  # Nothing is selected: it is of all columns of a command, or of the actions.
            columns = self.command_columns[values["command"]] if "command" in values else self.action_columns
        if "action" in passed and not by_column:
            if hints["action"] not in (wp.vec3, wp.spatial_vector):
                raise ShoalError(f"{path}: its function must take i, or as action a wp.vec3 or wp.spatial_vector.")
            parts = ("x", "y", "z", "rx", "ry", "rz")[: len(_VECTORS[hints["action"]])]
        columns = tuple(f"{name} {part}".rstrip() for name in columns for part in parts) if by_column else parts
        called, env = self.name_function(function), self._env(path)
        own_name, is_updated = path.replace(".", "_"), "is_new" in passed
        of = next((each for each in arguments if each.startswith(("geom", "body"))), "")
        return Bound(own_name, function, called, tuple(arguments), columns, by_column, len(parts), env, of, is_updated)

    def _env(self, path: str) -> str:
        """Return the expression of the environment. Where indices are checked, it notes which term runs."""
        announced = bounds.announce(path)
        if announced is None:
            return "env"
        self.arrays["running"], number = announced
        return f"{self.name_function(bounds.note)}(running, env, {number})"

    def name_function(self, function: Any) -> str:
        """Return a function's name in the text, which no other has: not another closure of the same definition."""
        python = python_of(function)
        name = re.sub(r"\W", "_", f"{python.__module__}_{python.__qualname__}")
        names = (name + "_" * number for number in count())
        return next(each for each in names if self.functions.setdefault(each, function) is function)

    def _check_needs(self, path: str, function: wp.Function, values: Mapping[str, Any]) -> None:
        """Refuse a function that needs what the model or the task does not have, see `shoal.mdp.needs`."""
        for what, least in needs_of(function).items():
            if what == "free_joint":
                root = values.get(_ROOT)
                has = int(self.names.root(root, f"{path}.{_ROOT}") is not None)
                thing = f"a {_ROOT} with a free joint" if root else "a model that begins with a free joint"
            elif what == "sensor" and what in values:  # Others pass a sensor of their own.
                sensors = self.names.select("sensor", values[what], f"{path}.{what}")
                has, thing = sum(self.names.model.sensor_dim[sensors]), f"a sensor of {least} numbers"
            elif what in CONTACT_FIELDS:
                has = getattr(self.structs.get(values.get("contact")), what, least)
                thing = f"a contact with '{what}' among its fields"
            else:
                command = path.partition(".")[2] if what == "first" else values.get(what)
                has, thing = len(self.command_columns.get(str(command), "x" * least)), f"a command of {least} columns"
            if has < least:
                raise ShoalError(f"{path} calls {function.key}(), which needs {thing}: use another function.")

    def _bind_torch(self, path: str, term: Term, function: Callable[..., Any]) -> TorchBound:
        """Bind a term that is a function on torch tensors: its columns are declared, or else those that it selects."""
        places: dict[str, int | slice | str] = {}
        columns: tuple[str, ...] = ()
        for name, value in _values_of(path, term, function, skipped=1).items():
            where = f"{path}.{name}"
            _refuse_missing(where, function, value)
            numbers: tuple[Any, ...] = value if isinstance(value, tuple) and name != "grid" else (value,)
            if all(isinstance(each, int | float) for each in numbers):
                first = len(self.numbers)
                for at, each in enumerate(numbers):
                    self.number(f"{where}.{at}" if isinstance(value, tuple) else where, each)
                places[name] = slice(first, first + len(numbers))
                continue
            kind = wp.array2d[wp.float32] if name == _MEMORY else wp.array[_ENTRIES.get(kind_of(name), wp.float32)]
            expression, selected = self._argument(where, name, kind, value, columns)
            columns = columns or selected
            places[name] = int(expression) if expression.isdecimal() else expression
        is_observed = path.startswith("observations")
        columns = (getattr(term, "columns", ()) or columns or ("",)) if is_observed else ("",)
        name = path.replace(".", "_")
        arrays = tuple(each for each in places.values() if isinstance(each, str))
        bound = TorchBound(name, function, name, arrays, columns, is_observed, path=path, places=places)
        self.torch.append(bound)
        return bound

    def _argument(
        self, path: str, name: str, kind: Any, value: Any, selected: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...]]:
        """Return the expression of an argument, and the names of what it selects."""
        if name == _ROOT:
            return str(self.names.root(value, path)), ()
        what = kind_of(name)
        if what is not None:
            return self.selection(path, what[0], value, getattr(kind, "dtype", None), several=what[1])
        if name == "contact":
            return self.contact(value, path), self.columns[value]
        if name == "grid":
            points = grid_points(*numbers_of(path, value, 3))
            columns = tuple(f"{x:+.2f} {y:+.2f}" for x, y in points)
            return self.share(
                "grid", tuple(value), lambda: wp.array(points, dtype=wp.vec2, device=self.device)
            ), columns
        return self._without_columns(path, name, kind, value, selected), ()

    def _without_columns(self, path: str, name: str, kind: Any, value: Any, selected: tuple[str, ...]) -> str:
        """Return the expression of an argument that selects nothing."""
        if name == "command":
            return str(_found(path, value, self.commands, "a command of that name"))
        if name in {_ACTION_COLUMNS, "axes"}:
            rows = value
            if name == _ACTION_COLUMNS:
                columns = {each: column for column, each in enumerate(self.action_columns)}
                rows = [_found(path, each, columns, "an action of it") for each in selected]
            return self.share(name, tuple(rows), lambda: wp.array(rows, dtype=wp.int32, device=self.device))
        argument = path.replace(".", "_")
        if name == _MEMORY:
            self.arrays[argument] = self._allocate(path, max(1, len(selected)), kind.dtype)
            self.memories.append(argument)
            return argument
        if value is None:
            return "0"
        if isinstance(kind, _ARRAY) or kind is Any:
            row = np.array(numbers_by_name(path, value, selected), dtype=np.float32)
            self.arrays[argument] = wp.array(row, dtype=wp.float32, device=self.device)
            return argument
        return self._number_or_vector(path, kind, value)

    def _number_or_vector(self, path: str, kind: Any, value: Any) -> str:
        if kind in _VECTORS:
            numbers = numbers_of(path, value, len(_VECTORS[kind]))
            parts = [self.number(f"{path}.{at}", each) for at, each in enumerate(numbers)]
            return f"wp.vec{len(parts)}({', '.join(parts)})"
        if kind not in _SCALARS:
            raise ShoalError(f"{path} has the type {kind}, which no parameter can have.")
        name = path.rpartition(".")[2]
        if isinstance(value, str) and name in CHOICES:
            value = get_args(CHOICES[name]).index(value)
        if kind in (int, wp.int32) and isinstance(value, float) and not value.is_integer():
            raise UsageError(f"{path} is {value!r}, but must be a whole number.")
        return _SCALARS[kind].format(self.number(path, value))

    def selection(
        self, path: str, kind: str, patterns: Any, dtype: Any, *, several: bool = True
    ) -> tuple[str, tuple[str, ...]]:
        """Return the argument of what patterns select of a kind, and the names; `dtype` is the type of its entries."""
        indices = self.names.select(kind, patterns, path)
        if not several:
            if len(indices) > 1:
                names = ", ".join(self.names.names(kind)[index] for index in indices)
                raise UsageError(f"{path} is '{patterns}', which matches more than one {kind} ({names}): name one.")
            _, rows = self.names.rows(kind, indices, path)
            return str(int(rows[0])), ()

        def make() -> wp.array:
            made, rows = self.names.rows(kind, indices, path, dtype)
            return wp.array(rows, dtype=made, device=self.device)

        names = tuple(self.names.names(kind)[index] for index in indices)
        if kind == "sensor":
            names = self.names.numbers_of(indices)
        return self.share(kind, (dtype, *indices), make), names

    def share(self, kind: str, key: object, make: Callable[[], Any]) -> str:
        """Return the argument with this key: terms that select the same share it."""
        if (kind, key) not in self._shared:
            self._shared[kind, key] = f"{kind}_{len(self._shared)}"
            self.arrays[self._shared[kind, key]] = make()
        return self._shared[kind, key]

    def contact(self, name: str, path: str = "") -> str:
        """Return the argument of a contact, which a parameter at `path` names."""
        _found(path, name, self.structs, "a contact of that name")
        return self.share("contact", name, lambda: self.structs[name])


def _found(path: str, name: Any, known: Mapping[str, Any], what: str) -> Any:
    if name not in known:
        hint = did_you_mean(str(name), known) or f" It has: {', '.join(known) or 'none'}."
        raise ShoalError(f"{path} is '{name}', but the task does not declare {what}.{hint}")
    return known[name]


def _values_of(path: str, term: Term, function: Any, skipped: int) -> dict[str, Any]:
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


def _refuse_missing(path: str, function: Any, value: Any) -> None:
    """Refuse a parameter without a value, but for those that are made for it."""
    name = path.rpartition(".")[2]
    if value is inspect.Parameter.empty and name not in {_MEMORY, _ACTION_COLUMNS}:
        remedy = ", or decorate it with @wp.func" if name == "env" else ""
        raise ShoalError(f"{path} is missing: {function.__name__}() needs it{remedy}.")


def named_function(func: str, library: str, path: str, kind: type) -> Any:
    """Return a function of some kind by its name in `shoal.mdp.<library>`, or by ``module:function``.

    Raises:
        UsageError: There is none of that name.
    """
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
    if isinstance(func, str):
        func = named_function(func, library, path, wp.Function)
    if not isinstance(func, wp.Function) and not (library in _TORCH and inspect.isfunction(func)):
        must = "a wp.func or a function on torch tensors" if library in _TORCH else "a wp.func"
        raise ShoalError(f"{path} is {func!r}, but must be {must}.")
    return func
