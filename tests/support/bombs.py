"""Files of a kilobyte that ask for more than a machine has, and others that no reader may fall for."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ALIASES = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
"""12 anchors, which make 10**12 values."""
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 12))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 300))
"""Nested 300 deep, by aliases."""
YAML = {
    "aliases": ALIASES,
    "merges": MERGES,
    "chain": CHAIN,
    "chain of merges": "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: *a{i - 1}}}\n" for i in range(1, 3000)),
    "itself": "task: &a [*a]",
    "itself in a mapping": "&a {task: Cartpole-Swingup, agent: *a}",
    "brackets": "[" * 5000,
    "lists": "[" * 3000 + "]" * 3000,
    "dashes": "- " * 3000 + "x",
    "a number of 5,000 digits": "seed: " + "9" * 5000,
    "a number of base 60": "seed: 1" + ":1" * 500_000,
    "the same with a tag": "seed: !!int '1" + ":1" * 500_000 + "'",
    "more than 64 bits": f"seed: {2**70}",
    "a date": "task: 2020-01-01",
    "a tag that does not fit": "task: !!timestamp x",
    "an empty number": 'task: !!int ""',
    "code": "task: !!python/object/apply:os.system [true]",
    "a control character": "task: \x01",
    "a list for a key": "? [1]\n: 2",
}
"""YAML that is refused, by what it is."""
JSON = {
    "brackets": "[" * 100_000,
    "lists": "[" * 500 + "]" * 500,
    "more than 64 bits": f'{{"iteration": {2**64}}}',
    "a number of 5,000 digits": "9" * 5000,
    "a word": "word",
    "nothing": "",
}


def header(shape: str, descr: str = "'<f8'", version: bytes = b"\x01\x00") -> bytes:
    """The beginning of an .npy file."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".ljust(118).encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little") + text


def zipped(file: Path, **members: bytes) -> Path:
    """Write an archive of .npy members."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file


def zip_bomb(file: Path) -> Path:
    """Write an array of 600 MiB of zeros in 3 MB."""
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("about.npy", "w") as member,
    ):
        member.write(header("(78643200,)"))
        for _ in range(600):
            member.write(bytes(2**20))
    return file


def npy(values: object) -> bytes:
    """An .npy file."""
    out = io.BytesIO()
    np.save(out, np.asarray(values))
    return out.getvalue()


ARRAYS: dict[str, Callable[[Path], object]] = {
    "a header of 1 TiB": lambda file: zipped(file, about=header("(137438953472,)")),
    "numbers without end": lambda file: zipped(file, about=header("(4611686018427387904,)", "'<U0'")),
    "fewer than none": lambda file: zipped(file, about=header("(-2, -4)") + bytes(64)),
    "objects": lambda file: zipped(file, about=header("(1,)", "'|O'") + b"cos\nsystem\n"),
    "no array": lambda file: zipped(file, about=b"word"),
    "a header of nonsense": lambda file: zipped(file, about=header("((((((((((((((((((((")),
    "a bomb": zip_bomb,
    "no archive": lambda file: file.write_bytes(b"word"),
    "nothing": lambda file: file.write_bytes(b""),
}
"""npz files that are refused, by what is wrong with their array `about`."""
