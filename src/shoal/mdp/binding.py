"""Parameters of terms to arguments of kernels: numbers to positions of one array, patterns to arrays of indices.

Numbers are read from an array, so that another weight or range compiles nothing, and a curriculum may change it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count, product
from typing import Any, cast, get_args

import numpy as np
import warp as wp

from shoal.errors import ShoalError, UsageError, did_you_mean
from shoal.mdp.accesses import python_of, refuse_writes
from shoal.mdp.annotations import COMMAND, IMAGE, IMAGE_KINDS, RayData, Takes, hints_of, takes
from shoal.mdp.cameras import CameraTerm, RayCastTerm
from shoal.mdp.functions import SCALARS, VECTORS, find_function, values_of
from shoal.mdp.metadata import type_of
from shoal.mdp.names import OBJECTS, Names
from shoal.mdp.needs import Given, needs_of
from shoal.mdp.networks import read_network
from shoal.mdp.rays import Frames, frames_of
from shoal.mdp.terms import CHOICES, Term
from shoal.mdp.values import grid_points, numbers_by_name, numbers_of
from shoal.sim import bounds


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
    """Of contacts, the array of the geoms, bodies or sites that say where each is."""
    is_updated: bool = False
    """Whether it is a command that is called in each step, with whether a new one is to be drawn; or an action that is
    called before each physics step, with its number."""
    shape: tuple[int, ...] = ()
    """Height and width of an image: its columns are its pixels, row by row, of each part of the value in turn."""

    @property
    def value(self) -> str:
        """The expression of column `i`, if it is called by name; else of all columns."""
        if not self.is_by_column:
            return self.call()
        if self.width == 1:
            return self.call("i")
        names = len(self.columns) // self.width
        name, part = (f"i % {names}", f"i // {names}") if self.shape else (f"i // {self.width}", f"i % {self.width}")
        return f"{self.call(name)}[{part}]"

    def call(self, *more: str) -> str:
        """Return the call, with further arguments after the environment."""
        return f"{self.called}({', '.join(('state', self.env, *more, *self.arguments))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBound(Bound):
    """A Python function on torch tensors, see `shoal.mdp.torch_terms`. In a kernel it is the array of its values."""

    path: str
    """Its group and name, such as ``rewards.feet_slip``."""
    positions: Mapping[str, int | slice | str]
    """Its parameters: an index, positions in the array of numbers, or the name of an array."""

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
        self.engine = engine
        self.names = names
        self.device = device
        self.numbers: list[float] = []
        self.positions: dict[str, int] = {}
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
        self.cameras: dict[str, CameraTerm] = {}
        """The declared cameras by name."""
        self.ray_casts: dict[str, RayCastTerm] = {}
        """The declared rays by name."""
        self.images: dict[str, dict[str, wp.array]] = {}
        """The images that terms observe by camera and kind, such as ``depth``. Each (num_envs, pixels)."""
        self.rays: dict[str, tuple[Frames, Any]] = {}
        """The rays that terms observe: where they begin, and their `RayData`."""
        self.columns: dict[str, tuple[str, ...]] = {}
        """What each contact is of, by its name."""
        self.functions: dict[str, Any] = {}
        """Functions that the text of the kernels calls, by name."""
        self.torch: list[TorchBound] = []
        """Terms that are functions on torch tensors."""
        self.allocate = allocate
        self._shared: dict[tuple[str, object], str] = {}

    def all_functions(self) -> list[Any]:
        """Return the functions of all terms, and those that the text of the kernels calls."""
        return [*self.functions.values(), *(each.function for each in self.torch)]

    def number(self, path: str, value: Any) -> str:
        """Return the expression of one number, which has one position however often it is asked for."""
        if path not in self.positions:
            self.positions[path] = len(self.numbers)
            self.numbers += numbers_of(path, value, 1)
        return f"numbers[{self.positions[path]}]"

    def bind(self, path: str, term: Term, library: str, own: tuple[str, ...] = ("i",)) -> Bound:
        """Bind a term by its group and name, such as ``rewards.feet_slip``.

        A string names a function of `shoal.mdp.<library>`. `own` are parameters after `state` and `env` that the caller
        passes itself.
        """
        function = find_function(term.func, library, path)
        refuse_writes(path, function)
        if not isinstance(function, wp.Function):
            return self._bind_torch(path, term, function)
        hints = hints_of(function)
        values = values_of(path, term, function, ("state", "env", *own))
        self._check_needs(path, function, values)
        passed = [name for name in own if name in hints]
        arguments, columns = list[str](), tuple[str, ...]()
        for name, value in values.items():
            expression, selected = self._argument(f"{path}.{name}", hints[name], value, columns)
            columns = columns or selected
            arguments.append(expression)
        size = getattr(kind := hints.get("return"), "_length_", 1)
        parts = VECTORS.get(kind) or (tuple(map(str, range(size))) if size > 1 else ("",))
        by_column = "i" in passed
        if by_column and not columns:  # Nothing is selected: it is of all columns of a command, or of the actions.
            commands = [value for name, value in values.items() if takes(hints[name]) == COMMAND]
            columns = self.command_columns[commands[0]] if commands else self.action_columns
        if "action" in passed and not by_column:
            if hints["action"] not in (wp.vec3, wp.spatial_vector):
                raise ShoalError(f"{path}: its function must take i, or as action a wp.vec3 or wp.spatial_vector.")
            parts = ("x", "y", "z", "rx", "ry", "rz")[: len(VECTORS[hints["action"]])]
        if "physics_step" in passed and not by_column:
            raise ShoalError(f"{path}: its function takes physics_step, and so must take i.")
        cameras = [self.cameras[value] for name, value in values.items() if takes(hints[name]) == IMAGE]
        shape = (cameras[0].height, cameras[0].width) if cameras and by_column else ()
        if not by_column:
            columns = parts
        else:
            pairs = ((name, part) for part in parts for name in columns) if shape else product(columns, parts)
            columns = tuple(f"{name} {part}".rstrip() for name, part in pairs)
        called, env = self.name_function(function), self._env(path)
        own_name, is_updated = path.replace(".", "_"), not {"is_new", "physics_step"}.isdisjoint(passed)
        of = next((each for each in arguments if each.startswith(("geom", "body"))), "")
        return Bound(
            own_name, function, called, tuple(arguments), columns, by_column, len(parts), env, of, is_updated, shape
        )

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

    def _check_needs(self, path: str, function: Any, values: Mapping[str, Any]) -> None:
        """Refuse a function that needs what the model or the task does not have, see `shoal.mdp.needs`."""
        hints, name = hints_of(function), python_of(function).__name__
        for parameter, needs in needs_of(function).items():
            given = Given(path, name, parameter, takes(hints.get(parameter)), values.get(parameter), self)
            for need in needs:
                need.check(given)

    def _bind_torch(self, path: str, term: Term, function: Callable[..., Any]) -> TorchBound:
        """Bind a term that is a function on torch tensors: its columns are declared, or else those that it selects."""
        positions: dict[str, int | slice | str] = {}
        columns: tuple[str, ...] = ()
        hints, values = hints_of(function), values_of(path, term, function, ("state",))
        self._check_needs(path, function, values)
        for name, value in values.items():
            where = f"{path}.{name}"
            if takes(hints.get(name)) is None:
                positions[name] = self._tensor(where, value)
                continue
            expression, selected = self._argument(where, hints[name], value, columns)
            columns = columns or selected
            positions[name] = int(expression) if expression.isdecimal() else expression
        is_observed = path.startswith("observations")
        columns = (getattr(term, "columns", ()) or columns or ("",)) if is_observed else ("",)
        name = path.replace(".", "_")
        arrays = tuple(each for each in positions.values() if isinstance(each, str))
        bound = TorchBound(name, function, name, arrays, columns, is_observed, path=path, positions=positions)
        self.torch.append(bound)
        return bound

    def _tensor(self, path: str, value: Any) -> slice:
        """Return the positions of the numbers of a tensor."""
        first = len(self.numbers)
        for at, each in enumerate(numbers_of(path, value, len(value) if isinstance(value, tuple) else 1)):
            self.number(f"{path}.{at}" if isinstance(value, tuple) else path, each)
        return slice(first, len(self.numbers))

    def _argument(
        self, path: str, annotation: Any, value: Any, selected: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...]]:
        """Return the expression of an argument, and the names of what it selects."""
        rule = takes(annotation)
        if rule and rule.what in OBJECTS:
            return self.selection(path, rule, value)
        if rule and rule.what == "contact":
            return self.contact(value, path), self.columns[value]
        if rule and rule.what in {IMAGE.what, "rays"}:
            return self._image(path, type_of(annotation).dtype, value) if rule == IMAGE else self._rays(path, value)
        if rule and rule.what == "grid":
            points = grid_points(*numbers_of(path, value, 3))
            columns = tuple(f"{x:+.2f} {y:+.2f}" for x, y in points)
            return self._array("grid", tuple(value), points, wp.vec2), columns
        if rule and rule.what == "network":
            return self._network(path, value, len(selected)), ()
        return self._without_columns(path, rule.what if rule else "", type_of(annotation), value, selected), ()

    def _without_columns(self, path: str, what: str, kind: Any, value: Any, selected: tuple[str, ...]) -> str:
        """Return the expression of an argument that selects nothing."""
        if not selected and (what == "action_columns" or (what == "numbers" and value is not None)):
            raise ShoalError(f"{path} is of what is selected, but no parameter before it selects anything: add one.")
        if what == "root":
            return str(self.names.root(value, path))
        if what == "command":
            return str(_found(path, value, self.commands, "a command of that name"))
        if what in {"axes", "action_columns"}:
            rows: Any = value
            if what == "action_columns":
                columns = {each: column for column, each in enumerate(self.action_columns)}
                rows = [_found(path, each, columns, "an action of it") for each in selected]
            return self._array(what, tuple(rows), rows, wp.int32)
        argument = path.replace(".", "_")
        if what == "memory":
            self.arrays[argument] = self.allocate(path, max(1, len(selected)), getattr(kind, "dtype", wp.float32))
            self.memories.append(argument)
            return argument
        if what == "numbers" and value is not None:
            row = np.array(numbers_by_name(path, value, selected), dtype=np.float32)
            self.arrays[argument] = wp.array(row, dtype=wp.float32, device=self.device)
            return argument
        if what in CHOICES and isinstance(value, str):
            value = get_args(CHOICES[what]).index(value)
        return "0" if what == "numbers" else self._number_or_vector(path, kind, value)

    def _image(self, path: str, dtype: Any, name: str) -> tuple[str, tuple[str, ...]]:
        """Return the argument of a camera's images with pixels of a type, and the names of these."""
        term = _found(path, name, self.cameras, "a camera of that name")
        pixels = tuple(f"{row} {column}" for row in range(term.height) for column in range(term.width))
        images, kind = self.images.setdefault(name, {}), IMAGE_KINDS[dtype]
        if kind not in images:
            images[kind] = self.allocate(f"sensors/{name}/{kind}", len(pixels), dtype)
        return self.share("image", (name, kind), lambda: images[kind]), pixels

    def _rays(self, path: str, name: str) -> tuple[str, tuple[str, ...]]:
        """Return the argument of rays, and their names."""
        term = _found(path, name, self.ray_casts, "rays of that name")
        if name not in self.rays:
            frames, struct = frames_of(self.names, f"sensors.{name}", term), cast("Any", RayData)()
            struct.max_distance = term.max_distance
            for field, dtype in (("distance", wp.float32), ("normal", wp.vec3)):
                setattr(struct, field, self.allocate(f"sensors/{name}/{field}", len(frames.columns), dtype))
            self.rays[name] = frames, struct
        frames, struct = self.rays[name]
        return self.share("rays", name, lambda: struct), frames.columns

    def _network(self, path: str, file: str, joints: int) -> str:
        """Return the argument of a network, with a memory for each of some joints."""
        argument = path.replace(".", "_")
        self.arrays[argument] = network = read_network(path, file, self.device)
        network.memory = self.allocate(path, joints * network.columns, wp.float32)
        self.memories.append(f"{argument}.memory")
        return argument

    def _number_or_vector(self, path: str, kind: Any, value: Any) -> str:
        if kind in VECTORS:
            numbers = numbers_of(path, value, len(VECTORS[kind]))
            parts = [self.number(f"{path}.{at}", each) for at, each in enumerate(numbers)]
            return f"wp.{'spatial_vector' if len(parts) == 6 else f'vec{len(parts)}'}({', '.join(parts)})"  # noqa: PLR2004
        if kind in (int, wp.int32) and isinstance(value, float) and not value.is_integer():
            raise UsageError(f"{path} is {value!r}, but must be a whole number.")
        return SCALARS[kind].format(self.number(path, value))

    def selection(self, path: str, rule: Takes, patterns: Any) -> tuple[str, tuple[str, ...]]:
        """Return the argument of what patterns select, and the names."""
        kind, indices = rule.what, self.names.select(rule.what, patterns, path)
        names = tuple(self.names.names(kind)[index] for index in indices)
        if rule.is_one:
            if len(indices) > 1:
                raise UsageError(
                    f"{path} is '{patterns}', which matches more than one {kind} ({', '.join(names)}): name one."
                )
            _, rows = self.names.rows(kind, indices, path)
            return str(int(rows[0])), ()
        if kind == "sensor":
            names = self.names.numbers_of(indices)
        dtype, rows = self.names.rows(kind, indices, path, rule.entry)
        return self._array(kind, (rule.entry, *indices), rows, dtype), names

    def _array(self, what: str, key: object, rows: Any, dtype: Any) -> str:
        """Return the argument of an array."""
        return self.share(what, key, lambda: wp.array(rows, dtype=dtype, device=self.device))

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
