"""The flags of a command: those of the fields of its configuration, for help, completion and errors.

tyro parses them. Here they are read from the configuration alone, without tyro. Descriptions are docstrings: of fields,
and of the functions of terms and commands. They are read from the source when they are shown, without importing it.
"""

from __future__ import annotations

import ast
import shlex
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from shoal.config import PlayConfig, TrainConfig
from shoal.config.evaluate import EvaluateConfig
from shoal.reading import read_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OPERANDS = ("file", "a", "b")
"""Fields that are no flags: they are typed before all flags."""
_CONFIG = "Read defaults from a file, such as <run>/params/train.yaml; repeat it for several."
_ROOT = Path(__file__).parents[2]
BY_PATTERN: Mapping[Any, str] = {dict[str, float]: "[PATTERN FLOAT ...]", dict[str, str]: "[PATTERN WORD ...]"}
"""Types of mappings by pattern, and the words for their value. Each is one flag."""

_hints: Callable[[type], dict[str, Any]] = cache(get_type_hints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag."""

    name: str
    kind: Any
    """Annotation of its field."""
    default: Any
    path: tuple[tuple[type, str], ...]
    """Class and field of each section that it is in, and its own last."""

    @property
    def field(self) -> str:
        """The flag that its field makes; another one than its name if that is an alias."""
        return "--" + ".".join(name for _, name in self.path).replace("_", "-")

    @property
    def section(self) -> str:
        """Dotted name of the section that it is in; empty for those of the command itself."""
        return self.name.removeprefix("--").rpartition(".")[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """Values of a `Literal`; empty for other kinds."""
        literals = [kind for kind in _members(self.kind) if get_origin(kind) is Literal]
        return tuple(str(value) for kind in literals for value in get_args(kind))

    @property
    def takes_one_word(self) -> bool:
        """Whether exactly one word follows it."""
        return all(kind is not bool and get_origin(kind) not in (tuple, list, dict) for kind in _members(self.kind))

    @property
    def negated(self) -> str:
        """The flag that turns this switch off."""
        section, dot, last = self.name.removeprefix("--").rpartition(".")
        return f"--{section}{dot}no-{last}"

    @property
    def invocation(self) -> str:
        """The flag and what follows it; of a switch both forms."""
        if self.kind is bool:
            return f"{self.name}, {self.negated}"
        return f"{self.name} {'|'.join(_word_for(kind) for kind in _members(self.kind))}"

    @property
    def description(self) -> str:
        """Docstring of its field, in one line; for a parameter of a term that of the term's function."""
        if not self.path:
            return _CONFIG
        return docstring_of(*self.path[-1]) or _of_a_term(*self.path[-1])

    @property
    def shown_default(self) -> str:
        """Its default as it is typed; empty where there is none, or where the description says it."""
        return "" if self.default in (None, (), {}) else f"(default: {_typed(self.default)})"


def flags_of(config: DataclassInstance) -> list[Flag]:
    """Return the flags of a configuration, with its values as defaults."""
    found = [flag for flag in _walk(config, "--", ()) if flag.path[0][1] not in OPERANDS]
    if isinstance(config, TrainConfig):
        # It belongs beside `--keep-last`, but is a field of the learner.
        found += [replace(flag, name="--save-interval") for flag in found if flag.name == "--agent.save-interval"]
        found.append(Flag(name="--config", kind=Path, default=None, path=()))
    if isinstance(config, PlayConfig | EvaluateConfig):  # The word of jobs, which also fits `zero` and `random`.
        found += [replace(flag, name="--policy") for flag in found if flag.name == "--checkpoint"]
    return found


def _walk(config: DataclassInstance, prefix: str, path: tuple[tuple[type, str], ...]) -> Iterator[Flag]:
    for item in fields(config):
        kind, value = _hints(type(config))[item.name], getattr(config, item.name)
        name, here = prefix + item.name.replace("_", "-"), (*path, (type(config), item.name))
        if is_dataclass(value) and not isinstance(value, type):
            yield from _walk(value, f"{name}.", here)
        elif isinstance(value, dict) and value and kind not in BY_PATTERN:
            for key, each in cast("dict[str, Any]", value).items():
                yield Flag(name=f"{name}.{key}", kind=get_args(kind)[1], default=each, path=(*here, here[-1]))
        else:
            yield Flag(name=name, kind=kind, default=value, path=here)


def _members(kind: Any) -> list[Any]:  # noqa: ANN401  An annotation.
    """Return the members of a union without None, or the kind itself."""
    is_union = get_origin(kind) in (Union, types.UnionType)
    return [member for member in get_args(kind) if member is not type(None)] if is_union else [kind]


def _word_for(kind: Any) -> str:  # noqa: ANN401  An annotation.
    """Return the words for a value, such as ``INT`` or ``{a,b}``."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"{{{','.join(map(str, inner))}}}"
    if kind in BY_PATTERN:
        return BY_PATTERN[kind]
    if origin in (tuple, list) and inner:
        repeated = origin is list or inner[-1] is ...
        return f"[{_word_for(inner[0])} ...]" if repeated else " ".join(map(_word_for, inner))
    return getattr(kind, "__name__", str(kind)).upper()


def _typed(value: Any) -> str:  # noqa: ANN401  Of any field.
    if isinstance(value, dict):
        value = [each for item in cast("dict[Any, Any]", value).items() for each in item]
    if isinstance(value, tuple | list):
        return " ".join(map(_typed, cast("list[Any]", value)))
    return shlex.quote(str(value))


def docstring_of(owner: type, field: str) -> str:
    """Return the docstring of a field in one line, of the class itself or of the nearest base that has one."""
    found = (_docstrings(cls.__module__).get((cls.__name__, field)) for cls in owner.__mro__)
    return next((text for text in found if text is not None), "")


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings of the fields of all classes of a module, by class and field."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return {
        (cls.name, field.target.id): " ".join(str(ast.literal_eval(after.value)).split())
        for cls in (ast.walk(_parsed(Path(file))) if file.endswith(".py") else ())
        if isinstance(cls, ast.ClassDef)
        for field, after in zip(cls.body, cls.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr)
    }


def _of_a_term(owner: type, field: str) -> str:
    """Return what the function of a term says; empty for what is no term, and after its first undocumented field."""
    undocumented = [item.name for item in fields(owner) if not docstring_of(owner, item.name)]
    function = vars(owner).get("func")
    if function is None or field != undocumented[0]:
        return ""
    if isinstance(function, str):
        return docstring_of_function(function)
    function = getattr(function, "__func__", function)
    return _first_paragraph(getattr(function, "func", function).__doc__)


def docstring_of_function(name: str) -> str:
    """Return the first paragraph of a function's docstring, of a module or by its name in `shoal.mdp`."""
    module, _, function = name.rpartition(":")
    shipped = sorted((_ROOT / "shoal" / "mdp").glob("*.py"))
    files = [_ROOT.joinpath(*module.split(".")).with_suffix(".py")] if module else shipped
    trees = (_parsed(file) for file in files if file.is_file())
    defined = (each for tree in trees for each in tree.body if isinstance(each, ast.FunctionDef))
    return next((_first_paragraph(ast.get_docstring(each)) for each in defined if each.name == function), "")


def _first_paragraph(docstring: str | None) -> str:
    return " ".join((docstring or "").partition("\n\n")[0].split())


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(read_bytes(file))
