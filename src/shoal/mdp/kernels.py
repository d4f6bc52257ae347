"""Kernels that are generated from text: one for each stage of a step, all in one module.

Warp compiles the text as it compiles a kernel that is written by hand, with the functions of the terms inlined, and
finds the result in its cache when another process builds the same task.
"""

import hashlib
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

import warp as wp


@dataclass(slots=True)
class Source:
    """The body of one kernel, with one thread for each environment `env`; it may call functions and name arrays."""

    name: str
    lines: list[str] = field(default_factory=list[str])
    columns: int = 0
    """With this many threads for each environment, of index `i`."""

    def add(self, *lines: str, depth: int = 0) -> None:
        """Add lines, each of which may be several."""
        self.lines += [indent(line, "    " * depth) for line in lines]

    @property
    def body(self) -> str:
        """All lines."""
        return "\n".join(self.lines)

    def used(self, names: Mapping[str, object]) -> list[str]:
        """Return those of some names that occur."""
        words = set(re.findall(r"\w+", self.body))
        return [name for name in names if name in words]


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """A kernel with its arguments."""

    kernel: wp.Kernel
    arguments: dict[str, Any]
    """By their names in the text."""
    columns: int


_compiled: dict[Any, dict[str, Any]] = {}
"""Kernels by what they were generated from: a task that is built again launches the same."""


def generate(
    sources: Sequence[Source], functions: Mapping[str, wp.Function], arguments: Mapping[str, Any]
) -> dict[str, GeneratedKernel]:
    """Compile kernels, and return them by name.

    Args:
        sources: Their bodies; those without a line are left out.
        functions: Functions by their names in the text.
        arguments: Arrays and structs by their names in the text; a kernel takes those that it names.
    """
    types = {name: annotation_of(value) for name, value in arguments.items()}
    texts = {each.name: _text(each, each.used(arguments)) for each in sources if each.lines}
    described = [f"{name}: {_described(kind)}" for name, kind in types.items()]
    # The name is the same in every process, so that Warp finds what another one has compiled.
    digest = hashlib.sha256(repr((texts, sorted(functions), described)).encode()).hexdigest()[:16]
    key = digest, tuple(functions[name] for name in sorted(functions)), tuple(map(_identity, types.values()))
    if key not in _compiled:
        module = wp.get_module(f"shoal_terms_{digest}_{sum(each[0] == digest for each in _compiled)}")
        scope = {"wp": wp, "__name__": module.name, **functions, **{_type_name(name): types[name] for name in types}}
        made = {name: python_function(name, text, dict(scope), module.name) for name, text in texts.items()}
        _compiled[key] = {
            name: wp.kernel(function, enable_backward=False, module=module) for name, function in made.items()
        }
    return {
        each.name: GeneratedKernel(
            _compiled[key][each.name], {name: arguments[name] for name in each.used(arguments)}, each.columns
        )
        for each in sources
        if each.lines
    }


def _text(source: Source, arguments: Sequence[str]) -> str:
    """Return the text of a kernel."""
    threads = "env, i" if source.columns else "env"
    declared = ", ".join(f"{name}: {_type_name(name)}" for name in arguments)
    return f"def {source.name}({declared}):\n    {threads} = wp.tid()\n{indent(source.body, '    ')}\n"


def _type_name(argument: str) -> str:
    return f"type_of_{argument}"


def python_function(name: str, text: str, scope: dict[str, Any], module: str) -> Callable[..., None]:
    """Return the function of a text, whose lines tracebacks and Warp can read."""
    file = f"<{module}.{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), scope)  # noqa: S102  Our own text.
    return scope[name]


_structs: dict[tuple[tuple[str, Any], ...], Any] = {}


def struct_of(values: Mapping[str, Any]) -> Any:
    """Return a struct with these fields; its type is the same for fields of the same names and types."""
    types = {name: annotation_of(values[name]) for name in sorted(values)}
    key = tuple((name, _identity(kind)) for name, kind in types.items())
    if key not in _structs:
        described = [(name, _described(kind)) for name, kind in types.items()]
        name = f"State_{hashlib.sha256(repr(described).encode()).hexdigest()[:12]}"
        _structs[key] = wp.struct(type(name, (), {"__annotations__": types, "__module__": __name__}))
    made = _structs[key]()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def annotation_of(value: Any) -> Any:
    """Return the annotation of a value: a number, an array, or a struct."""
    if isinstance(value, wp.array):
        return wp.array(dtype=value.dtype, ndim=value.ndim)
    if isinstance(value, int | float):
        return wp.float32 if isinstance(value, float) else wp.int32
    return value._cls  # noqa: SLF001  A struct's instance knows its type by no other name.


def _identity(kind: Any) -> Any:
    """Return what is equal for equal types alone: annotations of arrays are made again for each value."""
    return (kind.ndim, kind.dtype) if isinstance(kind, wp.array) else kind


def _described(kind: Any) -> str:
    """Return a type in words that are the same in every process."""
    if isinstance(kind, wp.array):
        return f"{kind.ndim} {_described(kind.dtype)}"
    if hasattr(kind, "native_name"):  # A struct: with a hash of its fields.
        return f"{kind.cls.__module__}.{kind.native_name}"
    return f"{kind.__name__}{getattr(kind, '_shape_', '')}"
