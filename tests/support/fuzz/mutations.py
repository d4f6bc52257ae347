"""Changes of a file, or of what is in its place, by the kind of the file. Each says what it did.

A mutation takes the file, random numbers, and the folder outside, to which links and names lead.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import yaml
from support.hostile import Hostile

Mutation = Callable[[Path, Random, Path], str]

_DEEP = 3000
_LONG = "x" * 100_000
_NAMES = (
    "../../outside/file",
    "/etc/passwd",
    "..",
    ".",
    "",
    "~root",
    "\x1b]0;title\x07\x1b[2J",
    "a\nb",
    "\x00",
    "ö" * 300,
    "\ud800",
)
_NUMBERS = (
    0,
    -1,
    1,
    2**31,
    2**63,
    10**12,
    10**30,
    10**400,
    1e308,
    5e-324,
    -0.0,
    float("nan"),
    float("inf"),
    -float("inf"),
)


def hostile_value(rng: Random, outside: Path) -> Any:
    """Return a plain value that a field rarely expects."""
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(_NUMBERS),
        lambda: rng.choice(_NAMES),
        lambda: rng.choice((None, True, False, "", "a word", [], {}, [None], {"a": 1}, [[]], _LONG)),
        lambda: rng.choice(
            (str(outside / "file"), str(outside / "folder"), str(outside / "new"), "/dev/zero", "/dev/stdin")
        ),
        lambda: nested(rng.choice((10, 200, _DEEP)), rng.choice(("list", "mapping"))),
        lambda: [0] * 20_000,
        lambda: rng.choice((f"__import__('os').mkdir({str(outside / 'ran')!r})", "os:system", "shoal.nothing:Nothing")),
    )
    return rng.choice(kinds)()


def shown(value: object) -> str:
    """Return the beginning of a value's representation."""
    try:
        return repr(value)[:60]
    except (RecursionError, ValueError):  # It is nested deeply, or a number of too many digits.
        return f"a large {type(value).__name__}"


def nested(depth: int, kind: str) -> Any:
    """Return lists or mappings in one another."""
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


# What stands in place of a file or a folder.


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _replacing(make: Callable[[Path, Path], object], what: str) -> Mutation:
    def mutate(path: Path, rng: Random, outside: Path) -> str:
        del rng
        _remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path, outside)
        return what

    return mutate


IN_PLACE: dict[str, Mutation] = {
    "link to file": _replacing(lambda path, outside: path.symlink_to(outside / "file"), "is a link to a file outside"),
    "link to folder": _replacing(
        lambda path, outside: path.symlink_to(outside / "folder"), "is a link to a folder outside"
    ),
    "link to nothing": _replacing(
        lambda path, outside: path.symlink_to(outside / "new"), "is a link to nothing outside"
    ),
    "second name": _replacing(
        lambda path, outside: path.hardlink_to(outside / "file"), "is a second name of a file outside"
    ),
    "link to itself": _replacing(lambda path, _: path.symlink_to(path.name), "is a link to itself"),
    "FIFO": _replacing(lambda path, _: os.mkfifo(path), "is a FIFO"),
    "folder": _replacing(lambda path, _: path.mkdir(), "is an empty folder"),
    "file": _replacing(lambda path, _: path.write_bytes(b""), "is an empty file"),
    "missing": _replacing(lambda _path, _outside: None, "is missing"),
}
"""What anything may be replaced by."""
LINKS = {"link to file", "link to folder", "second name"}
"""Those with which something outside may be written."""


def _zero(path: Path, _outside: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path, _outside: Path) -> None:
    path.touch()
    os.truncate(path, 64 << 30)


# Bytes.


def _truncate(path: Path, rng: Random, _outside: Path) -> str:
    size = rng.randrange(max(1, path.stat().st_size))
    os.truncate(path, size)
    return f"is cut to {size} bytes"


def _flip(path: Path, rng: Random, _outside: Path) -> str:
    data = bytearray(path.read_bytes())
    places = [rng.randrange(len(data)) for _ in range(rng.choice((1, 3, 30)))] if data else []
    for at in places:
        data[at] = rng.randrange(256)
    path.write_bytes(data)
    return f"has other bytes at {places[:3]}"


def _append(path: Path, rng: Random, _outside: Path) -> str:
    more = rng.choice(
        (b"\0" * 100, b"\xff\xfe", b"{", b"\n- a\n", b"\n[]\n", bytes(rng.randrange(256) for _ in range(50)))
    )
    path.write_bytes(path.read_bytes() + more)
    return f"has {more[:8]!r} appended"


BYTES: dict[str, Mutation] = {
    "truncated": _truncate,
    "flipped": _flip,
    "appended": _append,
    "endless": _replacing(_zero, "is a link to /dev/zero"),
    "huge": _replacing(_huge, "is 64 GiB of zeros"),
}


# Trees of plain values.


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Return each place of a tree, as a container and a key."""
    found: list[tuple[Any, Any]] = []
    left = [tree]
    while left:
        node = left.pop()
        items = (
            list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
        )
        found += [(node, key) for key, _ in items]
        left += [value for _, value in items if isinstance(value, (dict, list))]
    return found


def change_tree(tree: Any, rng: Random, outside: Path) -> tuple[Any, str]:
    """Return a tree with one change, and what it is."""
    places = _places(tree)
    if not places or rng.random() < 0.05:
        value = hostile_value(rng, outside)
        return value, f"is {shown(value)}"
    node, key = rng.choice(places)
    how = rng.choice(("value", "value", "value", "value", "delete", "rename", "add", "grow"))
    if how == "value":
        node[key] = hostile_value(rng, outside)
        return tree, f"{key!r:.40} is {shown(node[key])}"
    if how == "delete":
        del node[key]
        return tree, f"{key!r:.40} is left out"
    if how == "grow" and isinstance(node[key], (dict, list)):
        node[key] = [node[key]] * 1000 if isinstance(node, list) else {str(each): node[key] for each in range(1000)}
        return tree, f"{key!r:.40} is there 1,000 times"
    if isinstance(node, dict):
        name = rng.choice((*_NAMES[:-1], _LONG, "__class__", "task", "hosts", 1, None))
        node[name] = node.pop(key) if how == "rename" else hostile_value(rng, outside)
        return tree, f"{key!r:.40} is named {name!r:.40}" if how == "rename" else f"{name!r:.40} is added"
    node.insert(key, hostile_value(rng, outside))
    return tree, f"{shown(node[key])} is added at {key}"


def _count(path: Path, rng: Random, _outside: Path) -> str:
    """Change a whole number of a file of YAML or JSON to one that is too large to be counted to."""
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    counts = [(node, key) for node, key in _places(tree) if type(node[key]) is int]
    if not counts:
        return "has no whole number"
    node, key = rng.choice(counts)
    node[key] = rng.choice((10**9, 10**12, 2**53, 2**63 - 1))
    path.write_text(json.dumps(tree), encoding="utf-8")
    return f"{key!r:.40} is {node[key]}"


def _json_text(tree: Any) -> str:
    """Return JSON, of a tree that json.dumps may be too deep for."""
    try:
        return json.dumps(tree)
    except RecursionError:
        return "[" * _DEEP + "]" * _DEEP


def _in_yaml(path: Path, rng: Random, outside: Path) -> str:
    tree, what = change_tree(yaml.safe_load(path.read_text(encoding="utf-8")), rng, outside)
    try:
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    except RecursionError:  # YAML holds JSON.
        text = _deep_text(tree)
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    return what


def _other_machines(path: Path, _rng: Random, outside: Path) -> str:
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    ssh_config = path.with_name("ssh")
    ssh_config.write_text(
        f"Match exec 'mkdir {outside}/ran'\n  User x\nHost *\n  ProxyCommand true\n", encoding="utf-8"
    )
    named = {"hosts": ["x"], "ssh_config": str(ssh_config), "logger": "wandb"}
    path.write_text(yaml.safe_dump(tree | named if isinstance(tree, dict) else named), encoding="utf-8")
    return "names machines, a program to reach them, and a logger"


def _deep_text(tree: Any) -> str:
    """Return a tree that is too deep for a library as JSON."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_deep_value(value)}" for key, value in tree.items()) + "}"
    return _deep_value(tree)


def _deep_value(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return _deep_text(value) if isinstance(value, dict) and len(value) > 1 else "[" * _DEEP + "]" * _DEEP


def _in_json(path: Path, rng: Random, outside: Path) -> str:
    tree, what = change_tree(json.loads(path.read_text(encoding="utf-8")), rng, outside)
    path.write_text(_json_text(tree), encoding="utf-8")
    return what


_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)
"""12 anchors, of which each multiplies the one before."""

_TEXTS = {
    "brackets": "[" * 5000,
    "deep lists": "[" * _DEEP + "]" * _DEEP,
    "deep mappings": "{a: " * _DEEP + "0" + "}" * _DEEP,
    "deep JSON": '{"a":' * _DEEP + "0" + "}" * _DEEP,
    "bomb": _BOMB,
    "self": "&a [*a]",
    "self in a mapping": "&a {task: *a}",
    "a word": "word",
    "a number": "1" * 5000,
    "not a number": ".nan",
    "tag": "!!python/object/apply:os.mkdir [ran]",
    "merge": "<<: [1]",
    "duplicate": "name: a\nname: b\ntask: 1\ntask: 2\n",
    "keys": "? [a, b]\n: c\n? {d: e}\n: f\n",
    "date": "2026-13-45 00:00:00",
    "base 60": "1:60:60:60:60:60",
    "controls": '"\\e[2J\\0\\x07"',
    "not UTF-8": "\udcff\udcfe",
    "byte order": "\ufeff{}",
    "UTF-16": "a".encode("utf-16").decode("latin-1"),
    "two documents": "--- a\n--- b\n",
    "list": "[]",
    "mapping": "{}",
    "null": "null",
    "blank": "\n\n",
}


def _with_text(name: str) -> Mutation:
    def mutate(path: Path, _rng: Random, _outside: Path) -> str:
        path.write_bytes(_TEXTS[name].encode("utf-8", errors="surrogateescape"))
        return f"holds {_TEXTS[name]!r:.40}"

    return mutate


def _graft(path: Path, rng: Random, _outside: Path) -> str:
    """Add a hostile value to a file whose other keys are whole."""
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    tree = tree.get("jobs", tree) if isinstance(tree, dict) else tree
    name = rng.choice(("bomb", "self", "deep lists", "deep mappings"))
    body = _TEXTS[name] if name != "bomb" else "{" + ", ".join(_BOMB.splitlines()) + "}"
    node = tree[0] if isinstance(tree, list) and tree else tree
    if not isinstance(node, dict) or not node:
        path.write_text(body, encoding="utf-8")
        return f"holds {body!r:.40}"
    key = rng.choice(list(node))
    node[key] = "GRAFT"
    path.write_text(yaml.safe_dump(tree, sort_keys=False, width=10**6).replace("GRAFT", body, 1), encoding="utf-8")
    return f"{key} is {body!r:.40} ({name})"


# JSON lines.


def _in_lines(path: Path, rng: Random, outside: Path) -> str:
    lines = path.read_bytes().decode("utf-8", errors="replace").splitlines() or [""]
    at = rng.randrange(len(lines))
    try:
        tree, what = change_tree(json.loads(lines[at]), rng, outside)
        lines[at] = _json_text(tree)
    except ValueError:
        lines[at], what = "word", "is a word"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return f"line {at + 1}: {what}"


_LINES = ("word", "[]", "{}", "1", '"a"', "null", "NaN", "[" * 5000, "", "\x00", '{"index": 1}', '{"a":' * _DEEP)


def _with_line(path: Path, rng: Random, _outside: Path) -> str:
    lines = path.read_bytes().decode("utf-8", errors="replace").splitlines()
    at, line = rng.randrange(len(lines) + 1), rng.choice(_LINES)
    lines.insert(at, line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"line {at + 1} is {line!r:.40}"


def _only_line(path: Path, rng: Random, _outside: Path) -> str:
    line = rng.choice(_LINES)
    path.write_text(line + "\n", encoding="utf-8")
    return f"holds the line {line!r:.40}"


# Archives of arrays.


def _npz(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _write_zip(path: Path, members: dict[str, bytes], bomb: str = "") -> None:
    """Write an archive. What the member `bomb` holds is 8 GiB more of zeros, as its directory says."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
            archive.filelist[-1].file_size += (8 << 30) * (name == bomb)


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def _claim(shape: str, dtype: str = "<f8") -> bytes:
    """Return a .npy header that claims a shape, and no data."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def _in_arrays(path: Path, rng: Random, outside: Path) -> str:
    members = _npz(path)
    name = rng.choice(sorted(members))
    if name == "about.npy" and rng.random() < 0.9:
        about = json.loads(str(np.load(io.BytesIO(members[name]))))
        tree, what = change_tree(about, rng, outside)
        members[name] = _npy(np.array(_json_text(tree)))
        _write_zip(path, members)
        return f"about: {what}"
    array = np.load(io.BytesIO(members[name]))
    options: dict[str, Callable[[], bytes]] = {
        "claims 1 TiB": lambda: _claim("(137438953472,)"),
        "claims to be negative": lambda: _claim("(-1,)"),
        "claims a huge word": lambda: _claim("(1,)", "<U2000000000"),
        "has no such type": lambda: _claim("(1,)", "word"),
        "is empty": lambda: _npy(array[:0] if array.ndim else np.array([])),
        "has no axis": lambda: _npy(array.ravel()[0] if array.size else np.array(0)),
        "has one axis more": lambda: _npy(array[None]),
        "has fewer columns": lambda: _npy(array[..., :-1] if array.ndim else array),
        "has an infinite value": lambda: _npy(_with_value(array, rng.choice((np.nan, np.inf, -np.inf, 1e308)))),
        "is of words": lambda: _npy(array.astype("U")),
        "is complex": lambda: _npy(array.astype(complex) if array.dtype.kind in "fiub" else array),
        "is of truth values": lambda: _npy(array.astype(bool) if array.dtype.kind in "fiub" else array),
        "is of whole numbers": lambda: _npy(array.astype(np.int64) if array.dtype.kind in "fiub" else array),
        "is of zeros": lambda: _npy(np.zeros_like(array)),
        "is tiny": lambda: _npy(array * 1e-300 if array.dtype.kind == "f" else array),
        "is negative": lambda: _npy(-array if array.dtype.kind in "fi" else array),
        "is an object": lambda: _npy(np.array([Hostile(outside / "ran")], dtype=object)),
        "is no array": lambda: b"word",
        "is left out": lambda: b"",
        "is a bomb": lambda: _claim("(1073741824,)"),
    }
    what = rng.choice(sorted(options))
    members[name] = options[what]()
    if what == "is left out":
        del members[name]
    _write_zip(path, members, bomb=name if what == "is a bomb" else "")
    return f"{name} {what}"


def _with_value(array: Any, value: float) -> Any:
    if array.dtype.kind != "f" or not array.size:
        return array
    array = array.copy()
    array.flat[array.size // 2] = value
    return array


# Checkpoints.


def _in_torch(path: Path, rng: Random, outside: Path) -> str:
    tree = torch.load(path, weights_only=True)
    node, key = rng.choice(_places(tree))
    if isinstance(node[key], torch.Tensor) and rng.random() < 0.7:
        node[key], what = _other_tensor(node[key], rng)
        what = f"{key} {what}"
    elif rng.random() < 0.1:
        node[key] = Hostile(outside / "ran")
        what = f"{key} runs code"
    else:
        tree, what = change_tree(tree, rng, outside)
    try:
        torch.save(tree, path)
    except RecursionError:
        torch.save(nested(100, "list"), path)
        what = "is nested deeply"
    return what


def _other_tensor(value: torch.Tensor, rng: Random) -> tuple[torch.Tensor, str]:
    """Return a tensor in place of another one, and what it is."""
    real = value.float() if value.is_floating_point() else torch.zeros(2)
    options: dict[str, Callable[[], torch.Tensor]] = {
        "is not a number": lambda: torch.full_like(real, float("nan")),
        "is infinite": lambda: torch.full_like(real, float("inf")),
        "has one axis more": lambda: value[None],
        "is empty": lambda: torch.empty(0),
        "is of whole numbers": value.long,
        "is sparse": real.to_sparse,
        "is a view": lambda: torch.zeros(1).expand(1 << 20, 1 << 20),
        "is on no device": lambda: torch.empty_like(value, device="meta"),
        "needs its gradient": real.clone().requires_grad_,
    }
    what = rng.choice(sorted(options))
    return options[what](), what


def _iteration(path: Path, rng: Random, outside: Path) -> str:
    tree = torch.load(path, weights_only=True)
    if not isinstance(tree, dict) or not tree:
        return _in_torch(path, rng, outside)
    name = rng.choice(sorted(tree))
    tree[name] = rng.choice(("word", -1, 10**30, 1.5, None, [], {}, float("nan"), True, torch.zeros(2)))
    torch.save(tree, path)
    return f"{name} is {shown(tree[name])}"


def _pickle(path: Path, _rng: Random, outside: Path) -> str:
    path.write_bytes(pickle.dumps({"iter": 1, "a": Hostile(outside / "ran")}))
    return "is a pickle that runs code"


def _in_archive(path: Path, rng: Random, outside: Path) -> str:
    """Change a member of an archive as that of `torch.save` or `torch.export`."""
    members = _npz(path)
    name = rng.choice(sorted(members))
    data = members[name]
    how = rng.choice(("leave out", "bytes", "cut", "pickle", "bomb", "tree", "tree", "tree", "tree"))
    if how == "bomb":
        _write_zip(path, members, bomb=name)
        return f"{name} is a bomb"
    if how == "leave out":
        del members[name]
    elif how == "bytes":
        members[name] = bytes(rng.randrange(256) for _ in range(len(data) or 8))
    elif how == "cut":
        members[name] = data[: len(data) // 2]
    elif how == "pickle":
        out = io.BytesIO()
        torch.save({"a": Hostile(outside / "ran")}, out)
        members[name] = out.getvalue() if data[:2] == b"PK" else pickle.dumps(Hostile(outside / "ran"))
    else:
        trees = [each for each in members if each.endswith(".json")]
        if not trees:
            return _flip(path, rng, outside)
        name = rng.choice(trees)
        tree, how = change_tree(json.loads(members[name]), rng, outside)
        members[name] = _json_text(tree).encode("utf-8", errors="replace")
    _write_stored(path, members)
    return f"{name}: {how}"


def _program_of_code(path: Path, rng: Random, outside: Path) -> str:
    """Hide code in a program of `torch.export` where its format takes pickles, expressions and names of functions."""
    members, folder = _npz(path), str(outside / "ran")
    pickled = io.BytesIO()
    torch.save({"a": Hostile(outside / "ran")}, pickled)
    how = rng.choice(("weight", "sample", "expression", "operator"))
    weights, model = "archive/data/weights/model_weights_config.json", "archive/models/model.json"
    if how == "weight":
        config = json.loads(members[weights])
        next(iter(config["config"].values()))["use_pickle"] = True
        members |= {weights: json.dumps(config).encode(), "archive/data/weights/weight_0": pickled.getvalue()}
    elif how == "sample":
        members["archive/data/sample_inputs/model.pt"] = pickled.getvalue()
    elif how == "expression":
        text = re.sub(rb"Symbol\('\w+'[^)]*\)", f"__import__('os').mkdir('{folder}')".encode(), members[model])
        members[model] = text
    else:
        tree = json.loads(members[model])
        node = tree["graph_module"]["graph"]["nodes"][0]
        node |= {"target": "torch.os.mkdir", "inputs": [{"name": "path", "arg": {"as_string": folder}, "kind": 1}]}
        members[model] = json.dumps(tree).encode()
    _write_stored(path, members)
    return f"has code in its {how}"


def _write_stored(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _in_onnx(path: Path, rng: Random, outside: Path) -> str:
    import onnx

    model = onnx.load(path)
    values = [_json_text(hostile_value(rng, outside)), _TEXTS["deep lists"], _TEXTS["brackets"], "[]", "{}", "NaN"]
    how = rng.choice(("metadata", "metadata", "metadata", "external", "shape", "operator", "size", "graph"))
    if how == "metadata":
        entry = rng.choice(model.metadata_props)
        entry.value = rng.choice(values).encode("utf-8", errors="replace").decode()
        how = f"{entry.key} is {entry.value!r:.50}"
    elif how == "external":
        weight = rng.choice(model.graph.initializer)
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        where = rng.choice(("../../outside/file", str(outside / "file"), "/dev/zero", "policy.pt2", "nothing"))
        for key, value in (("location", where), ("offset", "0"), ("length", str(rng.choice((16, 1 << 40))))):
            weight.external_data.add(key=key, value=value)
        how = f"{weight.name} is in {where}"
    elif how == "shape":
        weight = rng.choice(model.graph.initializer)
        weight.dims[0] = rng.choice((-1, 0, 1 << 40, 3))
        how = f"{weight.name} has {weight.dims[0]} rows"
    elif how == "operator":
        node = rng.choice(model.graph.node)
        node.op_type, node.domain = rng.choice((("Nothing", ""), ("Loop", ""), ("Gemm", "of.nobody"), ("Exp", "")))
    elif how == "size":
        which = rng.choice(model.graph.input)
        which.type.tensor_type.shape.dim[-1].dim_value = rng.choice((0, -1, 1 << 40, 2))
        how = f"{which.name} has {which.type.tensor_type.shape.dim[-1].dim_value} columns"
    else:
        model.graph.ClearField(rng.choice(("node", "input", "output", "initializer")))
    path.write_bytes(model.SerializeToString())
    return how


# Tables, and robots.

_CELLS = ("word", "nan", "inf", "1e999", "", "0x10", "1" * 5000, "#", '"', "1,2", "\x1b[2J", "1_0", "\u0661")


def _in_table(path: Path, rng: Random, _outside: Path) -> str:
    rows = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    at = rng.randrange(len(rows))
    options: dict[str, Callable[[], Any]] = {
        "one cell": lambda: rows[at].__setitem__(rng.randrange(len(rows[at])), rng.choice(_CELLS)),
        "one cell more": lambda: rows[at].append("1"),
        "one column": lambda: rows.__setitem__(slice(None), [row[:1] for row in rows]),
        "a header": lambda: rows.insert(0, ["name"] * len(rows[0])),
        "one row": lambda: rows.__setitem__(slice(None), rows[:1]),
        "no orientation": lambda: rows.__setitem__(slice(None), [[*row[:3], *"0000", *row[7:]] for row in rows]),
        "a wide row": lambda: rows.__setitem__(at, ["1"] * 200_000),
        "many rows": lambda: rows.__setitem__(slice(None), rows * 20_000),
        "no rows": rows.clear,
        "comments": lambda: rows.__setitem__(slice(None), [["#"]]),
        "large numbers": lambda: rows.__setitem__(slice(None), [["1e308"] * len(row) for row in rows]),
    }
    what = rng.choice(sorted(options))
    options[what]()
    path.write_text("".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
    return f"row {at + 1}: {what}"


_XML = {
    "cyclic include": '<include file="{name}"/>',
    "include outside": '<include file="{outside}/file"/>',
    "include of a device": '<include file="/dev/zero"/>',
    "plugin": '<extension><plugin plugin="os.nothing"><instance name="a"/></plugin></extension>',
    "large height field": '<asset><hfield name="h" nrow="100000" ncol="100000" size="1 1 1 1"/></asset>',
    "large texture": '<asset><texture name="t" type="2d" builtin="flat" width="100000" height="100000"/></asset>',
    "texture of a device": '<asset><texture name="t" type="2d" file="/dev/zero"/></asset>',
    "many copies": '<worldbody><replicate count="100000000" offset="0 0 1"><geom size="1"/></replicate></worldbody>',
    "large composite": '<worldbody><flexcomp name="f" type="grid" count="999 999 999" spacing="1 1 1"/></worldbody>',
    "large memory": '<size memory="1T"/>',
    "many contacts": '<size nuserdata="2000000000"/>',
    "negative size": '<size nuserdata="-5"/>',
    "mesh outside": '<asset><mesh name="m" file="{outside}/file.obj"/></asset>',
    "mesh of a device": '<asset><mesh name="m" file="/dev/zero" content_type="model/obj"/></asset>',
    "directory outside": '<compiler meshdir="{outside}" texturedir="/"/>',
    "model outside": '<asset><model name="m" file="{outside}/file"/></asset>',
    "short time step": '<option timestep="1e-300"/>',
    "negative time step": '<option timestep="-1"/>',
    "no number": '<option gravity="nan inf 1e999"/>',
    "many words": '<custom><text name="a" data="{long}"/></custom>',
    "deep bodies": "<worldbody>" + "<body>" * 3000 + "</body>" * 3000 + "</worldbody>",
    "deep defaults": "<default>" * 3000 + "</default>" * 3000,
}


def _xml_part(path: Path, rng: Random, outside: Path) -> str:
    what = rng.choice(sorted(_XML))
    text = path.read_text(encoding="utf-8")
    at = text.index(">", text.index("<mujoco" if "<mujoco" in text else "<robot")) + 1
    part = _XML[what].format(name=path.name, outside=outside, long=_LONG)
    if "<robot" in text:
        part = f"<mujoco>{part}</mujoco>"
    path.write_text(text[:at] + part + text[at:], encoding="utf-8")
    return f"has a {what}"


def _xml_attribute(path: Path, rng: Random, outside: Path) -> str:
    tree = ET.parse(path)  # noqa: S314  It is our own.
    nodes = [node for node in tree.iter() if node.attrib]
    node = rng.choice(nodes)
    key = rng.choice(sorted(node.attrib))
    words = (
        "nan",
        "inf",
        "-1",
        "0",
        "1e308",
        "2147483648",
        "word",
        "",
        "1 " * 10_000,
        "../../outside/file",
        str(outside / "file"),
    )
    node.attrib[key] = rng.choice((*words, "/dev/zero", _LONG, "\u2028"))
    tree.write(path)
    return f"{node.tag} {key} is {node.attrib[key]!r:.40}"


def _xml_tree(path: Path, rng: Random, _outside: Path) -> str:
    tree = ET.parse(path)  # noqa: S314  It is our own.
    parents = [node for node in tree.iter() if len(node)]
    node = rng.choice(parents)
    child = rng.choice(list(node))
    if rng.random() < 0.5:
        node.remove(child)
    else:
        node.extend([child] * rng.choice((1, 300)))
    tree.write(path)
    return f"{child.tag} of {node.tag} is left out or there more often"


def _xml_entities(path: Path, _rng: Random, _outside: Path) -> str:
    parts = "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(10))
    path.write_text(f'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">{parts}]><mujoco model="&k;"/>', encoding="utf-8")
    return "has entities that multiply"


# Repositories.


def _git_programs(path: Path, rng: Random, outside: Path) -> str:
    """Let a repository's configuration name a program, which git starts where it looks for changed files."""
    how = rng.choice(("clean", "process", "fsmonitor", "hooksPath", "hook"))
    program = path.parent / "hooks" / "post-index-change"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\nmkdir {outside}/ran\n", encoding="utf-8")
    program.chmod(0o755)
    sections = {"clean": 'filter "a"', "process": 'filter "a"', "fsmonitor": "core", "hooksPath": "core"}
    if how in sections:
        value = program.parent if how == "hooksPath" else program
        text = f"{path.read_text(encoding='utf-8')}[{sections[how]}]\n\t{how} = {value}\n"
        path.write_text(text, encoding="utf-8")
    (path.parent / "info" / "attributes").write_text("* filter=a\n", encoding="utf-8")
    return f"names a program as {how}"


# Folders.


def _odd_entries(path: Path, rng: Random, outside: Path) -> str:
    names: tuple[bytes, ...] = (
        b"\xff\xfe",
        b"\x1b[2J",
        b"a\nb",
        b"-rf",
        b"000003",
        b"9" * 200,
        b"000000",
        b"-00001",
        b"2026-01-01_00-00-01",
    )
    name = os.fsencode(path) + b"/" + rng.choice(names)
    how = rng.choice(("file", "folder", "link", "FIFO"))
    if not Path(os.fsdecode(name)).exists():
        if how == "file":
            Path(os.fsdecode(name)).write_bytes(b"word")
        elif how == "folder":
            Path(os.fsdecode(name)).mkdir()
        elif how == "link":
            Path(os.fsdecode(name)).symlink_to(outside / "folder")
        else:
            os.mkfifo(name)
    return f"holds a {how} {name.rpartition(b'/')[2]!r:.30}"


def _copy(path: Path, rng: Random, _outside: Path) -> str:
    names = [b"\xff copy", b"copy\x1b[2J", b"000009", b"2026-01-01_00-00-01", b"x" * 250]
    target = os.fsdecode(os.fsencode(path.parent) + b"/" + rng.choice(names))
    if not os.path.exists(target):  # noqa: PTH110  It may be no path.
        shutil.copytree(path, target, symlinks=True)
    return f"has a copy {target[-20:]!r}"


_TREE = {f"tree {each}": _in_yaml for each in range(10)} | {f"graft {each}": _graft for each in range(4)}
_COUNT: dict[str, Mutation] = {f"count {each}": _count for each in range(6)}
_TEXT: dict[str, Mutation] = {name: _with_text(name) for name in _TEXTS}
_LINE: dict[str, Mutation] = {
    **{f"tree {each}": _in_lines for each in range(8)},
    **{f"line {each}": _with_line for each in range(8)},
    **{f"only {each}": _only_line for each in range(4)},
}
_TORCH: dict[str, Mutation] = {
    **{f"value {each}": _in_torch for each in range(16)},
    **{f"entry {each}": _iteration for each in range(10)},
    **{f"member {each}": _in_archive for each in range(4)},
    "pickle": _pickle,
}
_ARRAYS: dict[str, Mutation] = {f"array {each}": _in_arrays for each in range(30)} | {"pickle": _pickle}
_ROBOT: dict[str, Mutation] = {
    **{f"part {each}": _xml_part for each in range(len(_XML))},
    **{f"attribute {each}": _xml_attribute for each in range(20)},
    **{f"tree {each}": _xml_tree for each in range(4)},
    "entities": _xml_entities,
}

BY_SUFFIX: dict[str, dict[str, Mutation]] = {
    ".yaml": {**_TREE, **_TEXT, "nodes": _other_machines},
    ".json": {**{f"tree {each}": _in_json for each in range(10)}, **_TEXT},
    ".jsonl": _LINE,
    ".part": _LINE,
    ".journal": _LINE,
    ".pt": _TORCH,
    ".pt2": {
        **{f"member {each}": _in_archive for each in range(30)},
        **{f"code {each}": _program_of_code for each in range(8)},
    },
    ".onnx": {f"model {each}": _in_onnx for each in range(24)},
    ".npz": _ARRAYS,
    ".csv": {f"table {each}": _in_table for each in range(16)},
    ".xml": _ROBOT,
    ".urdf": _ROBOT,
    ".obj": {},
    "config": {f"program {each}": _git_programs for each in range(10)},
}
"""Mutations of the content of a file, by the suffix of its name, or by its name if it has none."""


def of_content(path: Path) -> dict[str, Mutation]:
    """Return the mutations of the content of a file."""
    counted = _COUNT if path.stem in {"jobs", "grid"} else {}  # Which are planned: a training takes its time.
    return BY_SUFFIX.get(path.suffix or path.name, {}) | counted


FOLDERS: dict[str, Mutation] = {f"entry {each}": _odd_entries for each in range(6)} | {
    "copy": _copy,
    "copy again": _copy,
}
"""Mutations of a folder that a command lists."""
