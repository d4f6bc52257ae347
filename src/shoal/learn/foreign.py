"""Checkpoints from elsewhere: loaded without running code unless they are trusted, and written as plain values.

What their entries are called is `shoal.learn.layouts`; Shoal's own checkpoints are `shoal.learn.checkpoints`.
"""

from __future__ import annotations

import io
import re
import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ShoalError, UsageError
from shoal.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

_WHAT_TRUST_DOES = "--trust unpickles it and runs whatever code is in it: pass it only for files from people you trust."
_NOT_PLAIN = object()
"""Stands for what cannot be kept."""


def load_foreign(file: Path, *, trust: bool) -> object:
    """Load what `torch.save` has written, onto the CPU.

    Args:
        file: The file.
        trust: Whether code of the file may run. It does so only where the file cannot be loaded without.

    Raises:
        UsageError: The file holds code and is not trusted, or cannot be loaded at all.
    """
    try:
        return _load(file, weights_only=True)
    except OSError as error:
        message = f"The file {file} cannot be read ({error.strerror or error}): mend that, or pass another file."
        raise UsageError(message) from error
    except Exception as error:  # torch raises many kinds for a file that is none of its own.
        if not trust:
            raise UsageError(_why_refused(file, error)) from error
    try:
        return _load(file, weights_only=False)
    except Exception as error:
        message = (
            f"The file {file} cannot be unpickled ({type(error).__name__}: {' '.join(str(error).split())}): it is "
            "damaged, or needs a package that is not installed here. Install it, or pass another file."
        )
        raise UsageError(message) from error


def _load(file: Path, *, weights_only: bool) -> object:
    """Load a file without what torch says of files that `torch.save` has not written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=weights_only)


def _why_refused(file: Path, error: Exception) -> str:
    """Say what is in the way of loading a file without running code, as far as torch tells."""
    asked = re.search(r"GLOBAL ([\w.]+)", str(error))
    if asked:
        message = f"The file {file} holds pickled code, which asks for {asked[1]}, and was not loaded. "
    else:
        message = (
            f"The file {file} cannot be loaded as plain tensors ({type(error).__name__}): it is damaged, is no "
            "checkpoint, or holds pickled code. "
        )
    return message + _WHAT_TRUST_DOES


def write_plain(state: dict[str, Any], file: Path) -> list[str]:
    """Write a checkpoint so that it loads without running code. The file appears whole or not at all.

    Args:
        state: A checkpoint of rsl_rl's. `iter` and `infos`, which rsl_rl insists on, may be missing.
        file: Where it goes.

    Returns:
        The names of what is neither tensor nor plain value, and was left out.

    Raises:
        ShoalError: The disk refused it.
    """
    dropped: list[str] = []
    buffer = io.BytesIO()
    torch.save({"iter": 0, "infos": None} | _plain(state, "", dropped), buffer)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, buffer.getbuffer())
    except OSError as error:
        message = f"{file} could not be written ({error.strerror or error}): make room, or pass another --output."
        raise ShoalError(message) from error
    return dropped


def _plain(value: Any, name: str, dropped: list[str]) -> Any:  # noqa: ANN401, PLR0911  A kind of value a line.
    """Return a value with nothing in it but tensors and plain values, of exactly these types.

    Classes that inherit from them, such as numpy's floats, are pickled by the name of their class.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, torch.Tensor):
        return value.detach().as_subclass(torch.Tensor)
    if isinstance(value, dict):
        named = [(key, f"{name}[{key!r}]" if name else str(key), each) for key, each in value.items()]
        kept = ((_plain(key, path, dropped), _plain(each, path, dropped)) for key, path, each in named)
        return {key: each for key, each in kept if key is not _NOT_PLAIN and each is not _NOT_PLAIN}
    if isinstance(value, list | tuple):
        kept = [_plain(each, f"{name}[{index}]", dropped) for index, each in enumerate(value)]
        return (list if isinstance(value, list) else tuple)(each for each in kept if each is not _NOT_PLAIN)
    dropped.append(name)
    return _NOT_PLAIN
