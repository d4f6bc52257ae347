"""Reading files from outside: YAML, JSON, JSON lines, CSV, npz and torch's, as data within limits. No code of one runs.

Readers raise `OSError` or `ValueError`, which `refusing` turns into one sentence that names the file.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile, is_zipfile

import yaml

from shoal.errors import ShoalError, UsageError

MAX_DEPTH = 100
MAX_TEXT_BYTES = 2**28
_MAX_LINE_BYTES = 2**24
_MAX_VALUES = 5_000_000
"""Values in a file, as counted before JSON is built: it has a comma or a bracket for each."""
_MAX_YAML_VALUES = 100_000
"""YAML takes so much more time. What aliases repeat counts each time."""
_MAX_PLAIN = 10_000
"""Characters of a YAML value without quotes, which may be a number of base 60: it takes quadratic time."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is six times as fast.


@contextmanager
def refusing(file: Path, remedy: str, what: str = "") -> Iterator[None]:
    """Turn an error of the body about a file into one sentence, which begins with `what` and ends with the remedy.

    Raises:
        UsageError: The file cannot be read, or holds something else.
    """
    try:
        yield
    except ShoalError as error:
        if str(file) in str(error) or not isinstance(error, UsageError):
            raise
        raise UsageError(f"In {file}: {error}") from error
    except Exception as error:  # Of libraries, about half a file, or one that holds something else.
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        reason = f"has no {reason}" if isinstance(error, KeyError) else reason
        raise UsageError(f"{what}{file} cannot be read ({reason:.300}): {remedy}.") from error


@contextmanager
def opened(file: Path, limit: int | None = None) -> Iterator[BufferedReader]:
    """Open a regular file of at most `limit` bytes for reading. A pipe in its place is refused, and does not block."""
    with open(file, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EISDIR, "it is no regular file")
        _refuse_above(limit or status.st_size, status.st_size, "bytes")
        yield stream


def read_bytes(file: Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Return the content of a file of at most `limit` bytes."""
    with opened(file, limit) as stream:
        data = stream.read(limit + 1)
    _refuse_above(limit, len(data), "bytes")  # It grows, or is one of /proc.
    return data


def read_plain_file(flag: str, file: Path, *, example: str) -> Any:  # noqa: ANN401  Whatever the file holds.
    """Return the plain values of a YAML or JSON file; `flag`, which names it, and `example` are for errors.

    Raises:
        UsageError: It cannot be read, or is neither.
    """
    with refusing(file, f"pass a file such as {example}", f"{flag} "):
        data = read_bytes(file)
        return parse_json(data) if file.suffix == ".json" else parse_yaml(data)  # YAML refuses JSON with tabs.


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401
    """Return the plain values of JSON."""
    text = text if isinstance(text, str) else text.decode()
    _refuse_above(_MAX_VALUES, sum(map(text.count, ",[{")), "values")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from error
    _refuse_unusual(leaves_of(value))
    return value


def parse_yaml(text: str | bytes) -> Any:  # noqa: ANN401
    """Return the plain values of YAML. What aliases repeat is counted each time, before it is built."""
    text = text if isinstance(text, str) else text.decode()
    try:
        _refuse_bombs(yaml.parse(text, Loader=_LOADER))
        value = yaml.load(text, Loader=_LOADER)  # noqa: S506  Both are safe.
    except Exception as error:  # Of a value that its tag does not fit, too.
        raise ValueError(f"it is no plain YAML: {' '.join(str(error).split())}") from error
    _refuse_unusual(leaves_of(value))
    return value


def read_lines(file: Path, fields: Mapping[str, Any], remedy: str, *, is_whole: bool = False) -> Iterator[Any]:
    """Yield the JSON objects of a file, each with `fields` of these types; none if there is no file.

    A last line without its end is left out, unless the file `is_whole`: a process that was killed has left it, or
    another one writes it.

    Raises:
        UsageError: The file is corrupt. The sentence names line and field, and ends with the remedy.
    """
    if not file.exists():
        return
    with refusing(file, remedy), opened(file) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE_BYTES), b""), 1):
            if not line.endswith(b"\n") and not is_whole:
                _refuse_above(_MAX_LINE_BYTES - 1, len(line), f"bytes in line {number}")
                return
            try:
                value = parse_object(line, fields)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            yield value


def parse_object(text: str | bytes, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with `fields` of these types, of which `dict` has numbers."""
    return checked(parse_json(text), fields)


def checked(value: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value that is a dict with `fields` of these types, of which `dict` has numbers."""
    if not isinstance(value, dict):
        raise ValueError(f"it is no object, but {value!r:.60}")  # noqa: TRY004  All of them are of one kind.
    for name, kind in fields.items():
        found = value.get(name)
        numbers = found.values() if isinstance(found, dict) and kind is dict else ()
        if not isinstance(found, kind) or not all(isinstance(each, int | float) for each in numbers):
            shown = f"is {found!r:.60}" if name in value else "is missing"
            raise ValueError(f"{name} {shown}, but must be {getattr(kind, '__name__', kind)}")
    return cast("dict[str, Any]", value)


def read_table(file: Path) -> Any:  # noqa: ANN401  NumPy is not imported here.
    """Return the numbers of a CSV file without a header. Shape (rows, columns)."""
    import numpy as np

    lines = read_bytes(file, 2**26).decode().splitlines()
    if not any(map(str.strip, lines)):
        raise ValueError("it is empty")
    return np.loadtxt(lines, delimiter=",", dtype=np.float64, ndmin=2)


def read_arrays(file: Path, limit: int = 2**29) -> dict[str, Any]:
    """Return the arrays of an npz file by name. Their headers are compared with their sizes before memory is taken."""
    with opened(file, limit) as stream, ZipFile(stream) as archive:
        members = archive.infolist()
        _refuse_above(limit, sum(member.file_size for member in members), "bytes when it is unpacked")
        return {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}


def _read_array(archive: ZipFile, member: Any) -> Any:  # noqa: ANN401
    from numpy.lib import format as npy

    with archive.open(member) as part:
        is_first = npy.read_magic(part) == (1, 0)
        shape, _, dtype = (npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0)(part)
        if dtype.hasobject:
            raise ValueError("Object arrays cannot be loaded, since they run code")
        size = dtype.itemsize * math.prod(shape) if min(shape, default=0) >= 0 else -1
        if not dtype.itemsize or size != member.file_size - part.tell():
            raise ValueError(f"{member.filename:.60} has another size than its header says")
    with archive.open(member) as part:
        return npy.read_array(part)


def read_tensors(file: Path, *, weights_only: bool = True) -> Any:  # noqa: ANN401
    """Load a file of `torch.save` into host memory. Code in it runs only without `weights_only`."""
    import torch

    with opened(file) as stream:
        size = max(os.fstat(stream.fileno()).st_size, 1)
        if is_zipfile(stream):
            with ZipFile(stream) as archive:
                _refuse_above(size, sum(member.file_size for member in archive.infolist()), "bytes when it is unpacked")
        stream.seek(0)
        state = torch.load(stream, map_location="cpu", weights_only=weights_only)
    for path, value in leaves_of(state, _MAX_VALUES // 10):
        if isinstance(value, torch.Tensor) and (
            value.layout is not torch.strided or value.is_meta or value.numel() * value.element_size() > size
        ):
            raise ValueError(f"{path} is a tensor of shape {tuple(value.shape)} whose numbers are not in the file")
    return state


def leaves_of(value: object, most: int = _MAX_VALUES) -> Iterator[tuple[str, object]]:
    """Yield what nested dicts, lists and tuples hold, by dotted names.

    Raises:
        ValueError: They are nested too deeply, perhaps in themselves, or hold too much.
    """
    left, count = [("it", value, 0)], 0
    while left:
        path, each, depth = left.pop()
        count += 1
        if isinstance(each, dict | list | tuple):
            if depth == MAX_DEPTH:
                raise ValueError(f"{path:.60} is nested more than {MAX_DEPTH} deep")
            pairs = each.items() if isinstance(each, dict) else enumerate(each)
            prefix = "" if depth == 0 else f"{path}."
            left += [(f"{prefix}{str(key)[:40]}", inner, depth + 1) for key, inner in pairs]
            _refuse_above(most, count + len(left), "values")
        else:
            yield path, each


def _refuse_unusual(leaves: Iterable[tuple[str, object]]) -> None:
    """Refuse numbers beyond 64 bits, and dates and bytes, which YAML has."""
    for path, value in leaves:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{path} is a whole number of more than 64 bits")
        if not isinstance(value, str | int | float | None):
            raise ValueError(f"{path} is a {type(value).__name__}, and not a plain value: put it in quotes")  # noqa: TRY004


def _refuse_bombs(events: Iterable[Any]) -> None:
    """Refuse YAML that is nested too deeply, or holds too many values once its aliases are replaced."""
    sizes: dict[str | None, int] = {}
    parents: list[tuple[str | None, int]] = []
    count = 0
    for event in events:
        where = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            parents.append((event.anchor, count))
            sizes[event.anchor] = _MAX_YAML_VALUES + 1  # An alias in it would repeat itself for ever.
            count += 1
            if len(parents) > MAX_DEPTH:
                raise ValueError(f"{where}: it is nested more than {MAX_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = parents.pop()
            sizes[anchor] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
            count += 1
            if event.tag or event.implicit[0]:
                _refuse_above(_MAX_PLAIN, len(event.value), f"characters without quotes in {where}")
        elif isinstance(event, yaml.AliasEvent):
            count += sizes.get(event.anchor, 1)
        _refuse_above(_MAX_YAML_VALUES, count, f"values up to {where}")


def _refuse_above(limit: int, number: int, what: str) -> None:
    if number > limit:
        raise ValueError(f"it has {number:,} {what}, and {limit:,} is the most")
