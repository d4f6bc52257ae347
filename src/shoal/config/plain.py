"""Configurations to plain values, as YAML and JSON hold them, and back.

`from_plain` overlays the values of a file on a configuration, and checks each against the annotation of its field. It
works for the dataclasses of any task.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from shoal.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_annotations = cache(get_type_hints)
"""Returns the type of each field of a class, resolved where that is defined."""
_SCALARS = (bool, int, float, str)
_WORDS: Mapping[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def to_plain(value: object, path: str = "") -> Any:  # noqa: ANN401 - plain values have no type of their own.
    """Return a configuration as nested dicts and lists of numbers, strings, truth values and None.

    Errors name what stands at `path`.
    """
    if is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in fields(value) if item.init]
        return {name: to_plain(getattr(value, name), _join(path, name)) for name in names}
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {to_plain(key, path): to_plain(item, _join(path, str(key))) for key, item in items}
    if isinstance(value, (tuple, list)):
        return [to_plain(item, path) for item in cast("Sequence[object]", value)]
    if isinstance(value, (Enum, PurePath)):
        return value.name if isinstance(value, Enum) else str(value)
    for kind in _SCALARS:
        if isinstance(value, kind):
            return kind(value)  # A subclass, such as NumPy's float64, is not plain.
    if value is not None:
        message = f"{path} is {value!r}, which files of plain values cannot hold: use numbers, strings, or tuples."
        raise UsageError(message)
    return None


def shared_fields(cls: type[DataclassInstance], config: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a configuration that `cls` has, too, by name."""
    return {item.name: getattr(config, item.name) for item in fields(cls) if hasattr(config, item.name)}


def from_plain(template: T | type[T], mapping: object, path: str = "") -> T:
    """Return `template` with the values of `mapping`; what the mapping does not name stays.

    Nested configurations are overlaid in turn; tuples and dicts are replaced whole. In the metadata of a field `older`
    has today's values by those of older versions, and `older_name` is the field's name there.
    """
    cls = template if isinstance(template, type) else type(template)
    if not isinstance(mapping, Mapping):
        raise _mistyped(path or cls.__name__, mapping, cls)
    given = cast("Mapping[object, object]", mapping)
    known = {item.name: item for item in fields(cls) if item.init}
    renamed: dict[str, str] = {item.metadata.get("older_name", name): name for name, item in known.items()}
    required = [name for name, item in known.items() if item.default is item.default_factory is MISSING]
    missing = [name for name in required if isinstance(template, type) and name not in given]
    if missing:
        near = did_you_mean(missing[0], [str(key) for key in given if key not in known])
        raise UsageError(f"{path and f'{path}: '}the key '{missing[0]}' is missing.{near} Give it a value.")
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = renamed.get(str(key), str(key))
        if name not in known:
            message = f"{_join(path, name)} is given, but {cls.__name__} has no such field."
            raise UsageError(message + (did_you_mean(name, known) or f" It has: {', '.join(known)}."))
        # The template's own value comes along: a nested default may be of a subclass of what is annotated.
        current = None if isinstance(template, type) else getattr(template, name)
        older: Mapping[str, str] = known[name].metadata.get("older", {})
        today = older.get(value, value) if isinstance(value, str) else value
        values[name] = _read(_annotations(cls)[name], today, _join(path, name), current)
    try:
        return template(**values) if isinstance(template, type) else replace(template, **values)
    except (UsageError, ValueError, TypeError) as error:
        # A configuration does not know the field that holds it.
        where = "" if not path or str(error).startswith(f"{path}.") else f"{path}: "
        raise UsageError(f"{where}{error}") from error


def _read(kind: Any, value: object, path: str, current: object = None, *, strict: bool = False) -> Any:  # noqa: ANN401
    """Return the plain value at `path` as the type `kind`, or refuse it.

    `current` is the template's value. A `strict` number must have exactly that type, to tell members of a union.
    """
    kind = getattr(kind, "__value__", kind)  # A `type` statement of Python 3.12.
    origin: Any = get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        return _read_union(kind, value, path, current)
    if _is_config(origin):
        template: Any = current if isinstance(current, origin) else origin
        return value if isinstance(value, origin) else from_plain(template, value, path)
    if origin in (tuple, list, dict, Mapping):
        return _read_entries(kind, origin, value, path)
    return _read_scalar(kind, value, path, strict=strict)


def _read_union(kind: Any, value: object, path: str, current: object) -> Any:  # noqa: ANN401
    """Return `value` as the first member of a union that takes it unchanged, else as the first that can."""
    members = [member for member in get_args(kind) if member is not type(None)]
    if value is None and len(members) < len(get_args(kind)):
        return None
    if len(members) == 1:  # For the more exact error.
        return _read(members[0], value, path, current)
    for strict in (True, False):
        for member in members:
            with suppress(UsageError):
                return _read(member, value, path, current, strict=strict)
    raise _mistyped(path, value, kind)


def _read_entries(kind: Any, origin: Any, value: object, path: str) -> Any:  # noqa: ANN401
    """Return a list or a mapping of plain values as the tuple, list or dict `kind`."""
    if origin in (tuple, list) and isinstance(value, (list, tuple)):
        entries = cast("Sequence[object]", value)
        kinds = get_args(kind) or (Any, ...)
        if origin is list or kinds[1:] == (...,):
            kinds = kinds[:1] * len(entries)
        if len(kinds) == len(entries):
            read = [_read(kinds[i], entry, f"{path}[{i}]") for i, entry in enumerate(entries)]
            return read if origin is list else tuple(read)
    elif origin in (dict, Mapping) and isinstance(value, Mapping):
        key_kind, item_kind = get_args(kind) or (Any, Any)
        items = cast("Mapping[object, object]", value).items()
        if key_kind is int:  # JSON has strings for keys.
            items = [(int(key) if isinstance(key, str) and key.isdecimal() else key, item) for key, item in items]
        return {_read(key_kind, key, path): _read(item_kind, item, _join(path, str(key))) for key, item in items}
    raise _mistyped(path, cast("object", value), kind)


def _read_scalar(kind: Any, value: object, path: str, *, strict: bool) -> Any:  # noqa: ANN401
    """Return a single value as the type `kind`, or refuse it."""
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    same = kind in (*_SCALARS, type(None)) and type(value) is kind
    if same or kind in (Any, object) or any(type(value) is type(one) and value == one for one in choices):
        return value
    with suppress(ValueError, OverflowError, KeyError):
        if kind is float and not strict and isinstance(value, (int, str)) and not isinstance(value, bool):
            return float(value)  # YAML takes 1e-3 for a string.
        if isinstance(kind, type) and issubclass(kind, (Enum, PurePath)) and isinstance(value, str):
            return kind[value] if issubclass(kind, Enum) else kind(value)
    raise _mistyped(path, value, kind)


def _mistyped(path: str, value: object, kind: Any) -> UsageError:  # noqa: ANN401
    """Return the error of a value of the wrong type, with the nearest name if there are names."""
    choices = map(str, get_args(kind)) if get_origin(kind) is Literal and isinstance(value, str) else ()
    return UsageError(f"{path} is {value!r}, but must be {_words(kind)}.{did_you_mean(str(value), choices)}")


def _words(kind: Any) -> str:  # noqa: ANN401
    """Return an annotation in words."""
    kind = getattr(kind, "__value__", kind)
    members: list[Any] = [member for member in get_args(kind) if member is not ...]
    origin: Any = get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        return " or ".join("null" if member is type(None) else _words(member) for member in members)
    if origin in (tuple, list):
        count = f" of {len(members)} values" if origin is tuple and members == list(get_args(kind)) else ""
        return f"a list{count}" + (f" ({', '.join(map(_words, members))})" if members else "")
    if origin in (dict, Mapping) or _is_config(origin):
        return f"a mapping with the fields of {origin.__name__}" if _is_config(origin) else "a mapping"
    if isinstance(origin, type) and issubclass(origin, Enum):
        members = list(origin.__members__)
    return f"one of {', '.join(map(repr, members))}" if members else _WORDS.get(kind, f"of the type {kind}")


def _is_config(kind: object) -> bool:
    """Whether an annotation is a dataclass."""
    return isinstance(kind, type) and is_dataclass(kind)


def _join(path: str, name: str) -> str:
    """Return the path of a field of what stands at `path`."""
    return f"{path}.{name}" if path else name
