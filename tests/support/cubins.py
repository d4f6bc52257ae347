"""CUBINs: compile a Warp module with NVRTC, which needs no driver and no GPU, and read what the file holds."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import warp as wp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Of the ELF format, 64 bits, little-endian: `man 5 elf`.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_MACHINE_CUDA = 190
_ABI_VERSION = 8
"""Of CUDA 13. It decides where in the flags of the header the architecture is."""
_SYMBOL_TABLE = 2
_GLOBAL_FUNCTION = 0x12
_ENTRY = 0x10
"""The flag of a function that the host can launch."""

_KERNEL = re.compile(r"(?P<key>.+)_[0-9a-f]{8}_cuda_kernel_forward")
"""How Warp names the entry of a kernel: with the key and the first digits of the hash."""


@dataclass(frozen=True, slots=True)
class Cubin:
    """What a CUBIN holds."""

    arch: int
    """The architecture, 90 for sm_90."""
    kernels: frozenset[str]
    """The keys of the Warp kernels that can be launched."""


def compile_module(module: wp.Module, arch: int, directory: Path, *, block_dim: int | None = None) -> Cubin:
    """Compile all kernels of a Warp module to a CUBIN, and read it.

    Args:
        module: The module.
        arch: The architecture, 90 for sm_90.
        directory: Gets the source and the CUBIN. A CUBIN that is there already is not compiled again.
        block_dim: Threads of a block, which the compiler takes for a constant; None takes the module's own.

    Raises:
        Exception: NVRTC refused the source. Its message is on standard error.
    """
    usual = module.options["block_dim"]
    module.options["block_dim"] = usual if block_dim is None else block_dim
    try:
        (path,) = wp.compile_aot_module(module, arch=arch, module_dir=directory, use_ptx=False)
    finally:
        module.options["block_dim"] = usual
    return read_cubin(path)


def read_cubin(path: Path) -> Cubin:
    """Read the header and the symbols of a CUBIN.

    Raises:
        ValueError: The file is no CUBIN, or is one of a CUDA whose header is not known here.
    """
    content = path.read_bytes()
    if content[:4] != b"\x7fELF":
        message = f"{path} is no ELF file: it begins with {content[:4]!r}."
        raise ValueError(message)
    header = _HEADER.unpack_from(content)
    identity, machine, flags = header[0], header[2], header[7]
    if (machine, identity[8]) != (_MACHINE_CUDA, _ABI_VERSION):
        message = (
            f"{path} has the machine {machine} and the ABI version {identity[8]}; known are {_MACHINE_CUDA} and "
            f"{_ABI_VERSION}, of CUDA 13."
        )
        raise ValueError(message)
    matches = (_KERNEL.fullmatch(name) for name in _entries(content))
    return Cubin(arch=flags >> 8 & 0xFF, kernels=frozenset(match["key"] for match in matches if match))


def _entries(content: bytes) -> Iterator[str]:
    """Return the names of the functions that the host can launch."""
    header = _HEADER.unpack_from(content)
    begin, size, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(content, begin + size * index) for index in range(count)]
    for section in sections:
        kind, offset, length, link = section[1], section[4], section[5], section[6]
        if kind != _SYMBOL_TABLE:
            continue
        names = sections[link][4]
        for name, info, other, *_ in _SYMBOL.iter_unpack(content[offset : offset + length]):
            if info == _GLOBAL_FUNCTION and other & _ENTRY:
                yield content[names + name : content.index(b"\0", names + name)].decode()
