"""Conversion of checkpoints of plain rsl_rl, mjlab and Isaac Lab: load safely, rename to rsl_rl 5, write plain values.

mjlab and Isaac Lab leave saving to rsl_rl, so the layout of a file follows from the rsl_rl that wrote it:

- 5: `actor_state_dict` and `critic_state_dict`. Shoal writes this one.
- 4: the same, but the standard deviation of the actions is the actor's `std` or `log_std`.
- 1 to 3: both networks are in one `model_state_dict`; normalisers are in it or, in older versions, beside it.

Only names change, no tensor. Shoal's own checkpoints are in `shoal.learn.checkpoints`.
"""

import io
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

import torch

from shoal.errors import ShoalError, UsageError, refusing_os_errors
from shoal.files import folder_of
from shoal.reading import read_tensors

_TRUST_HELP = "--trust unpickles it and runs whatever code is in it: pass it only for files from people you trust."
_NOT_PLAIN = object()
"""Marks a value that is left out."""

_STD_NAMES = {"std": "distribution.std_param", "log_std": "distribution.log_std_param"}
_PREFIXES = {
    "actor.": ("actor", "mlp."),
    "critic.": ("critic", "mlp."),
    "memory_a.": ("actor", "rnn."),
    "memory_c.": ("critic", "rnn."),
    "actor_obs_normalizer.": ("actor", "obs_normalizer."),
    "critic_obs_normalizer.": ("critic", "obs_normalizer."),
}
"""Network and new prefix of each part of a `model_state_dict`."""
_NORMALISERS = {
    "obs_norm_state_dict": "actor",
    "privileged_obs_norm_state_dict": "critic",
    "critic_obs_norm_state_dict": "critic",
}
"""Network of each normaliser beside a `model_state_dict`. The last is the oldest name."""
_KEPT = ("iter", "infos", "learner")
_KEPT_FROM_5 = ("optimizer_state_dict", "rnd_state_dict", "rnd_optimizer_state_dict")

_ASSUMED_COUNT = 1_000_000
"""Observations of a normaliser without a count: about ten iterations of a usual training.

Actions do not depend on it. With 0 the first new observations would replace the statistics; with far more, new
observations would hardly change them.
"""
_KEYS_SHOWN = 8
"""Keys of a file that an error names."""


@dataclass(frozen=True, slots=True)
class RenamedCheckpoint:
    """A checkpoint in the layout of rsl_rl 5."""

    layout: str
    """The layout of the file."""
    state: dict[str, Any]
    notes: tuple[str, ...]
    """A sentence about each entry that was changed or left out."""


def load_foreign_checkpoint(file: Path, *, trust: bool) -> object:
    """Load a file of `torch.save` onto the CPU. With `trust`, code in it may run if it cannot be loaded without.

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
            name = re.search(r"GLOBAL ([\w.]+)", str(error))
            if name:
                message = f"The file {file} holds pickled code, which asks for {name[1]}, and was not loaded. "
            else:
                message = (
                    f"The file {file} cannot be loaded as plain tensors ({type(error).__name__}): it is damaged, is "
                    "no checkpoint, or holds pickled code. "
                )
            raise UsageError(message + _TRUST_HELP) from error
    try:
        return _load(file, weights_only=False)
    except Exception as error:
        raise UsageError(
            f"The file {file} cannot be unpickled ({type(error).__name__}: {' '.join(str(error).split())}): it is "
            "damaged, or needs a package that is not installed here. Install it, or pass another file."
        ) from error


def _load(file: Path, *, weights_only: bool) -> object:
    with warnings.catch_warnings(action="ignore"):  # torch's, about files that `torch.save` has not written.
        return read_tensors(file, weights_only=weights_only)


def rename_to_current_layout(saved: object, file: Path) -> RenamedCheckpoint:
    """Rename the entries of a loaded checkpoint to the layout of rsl_rl 5. `file` is for errors.

    Raises:
        UsageError: It has none of the known layouts.
    """
    if not isinstance(saved, dict):
        raise _unknown(file, f"a {type(saved).__name__}")
    actor, critic, merged = (saved.get(f"{name}_state_dict") for name in ("actor", "critic", "model"))
    if _is_state_dict(actor) and _is_state_dict(critic):
        version = "4" if _STD_NAMES.keys() & actor.keys() else "5"
        networks = {"actor": {_STD_NAMES.get(key, key): value for key, value in actor.items()}, "critic": critic}
        converted = {"actor_state_dict", "critic_state_dict"}
    elif _is_state_dict(merged):
        version = "1 to 3"
        networks = _split(merged, saved, file)
        converted = {"model_state_dict", *_NORMALISERS}
    else:
        raise _unknown(file, _keys("the keys", saved))
    kept = [key for key in (*_KEPT, *(_KEPT_FROM_5 if version == "5" else ())) if key in saved]
    notes = [
        "optimizer_state_dict was left out: it belongs to the order of parameters in the older layout."
        if key == "optimizer_state_dict"
        else f"{key!r} was left out: the layout of rsl_rl 5 has no place for it."
        for key in saved
        if key not in {*converted, *kept}
    ]
    for name, network in networks.items():
        if "obs_normalizer._mean" in network and "obs_normalizer.count" not in network:
            network["obs_normalizer.count"] = torch.tensor(_ASSUMED_COUNT)
            notes.append(
                f"The {name}'s normaliser does not say how many observations it has seen: "
                f"{_ASSUMED_COUNT:,} are assumed."
            )
    state = {f"{name}_state_dict": network for name, network in networks.items()} | {key: saved[key] for key in kept}
    return RenamedCheckpoint(f"the layout of rsl_rl {version}", state, tuple(notes))


def _is_state_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _split(merged: dict[str, Any], saved: dict[Any, Any], file: Path) -> dict[str, dict[str, Any]]:
    """Split a `model_state_dict` into actor and critic, and add the normalisers beside it."""
    networks: dict[str, dict[str, Any]] = {"actor": {}, "critic": {}}
    unknown = []
    for key, value in merged.items():
        prefix = key.partition(".")[0] + "."
        if key in _STD_NAMES:
            networks["actor"][_STD_NAMES[key]] = value
        elif prefix in _PREFIXES:
            name, renamed = _PREFIXES[prefix]
            networks[name][renamed + key.removeprefix(prefix)] = value
        else:
            unknown.append(key)
    if unknown or not all(networks.values()):
        raise _unknown(file, _keys("a model_state_dict with the keys", unknown or merged))
    for key, name in _NORMALISERS.items():
        normaliser = saved.get(key)
        if _is_state_dict(normaliser):
            networks[name] |= {f"obs_normalizer.{part}": value for part, value in normaliser.items()}
    return networks


def _keys(what: str, keys: Iterable[object]) -> str:
    """List some keys, quoted, as the file is not trusted."""
    shown = [repr(key) for key in keys]
    more = f" and {len(shown) - _KEYS_SHOWN} more" if len(shown) > _KEYS_SHOWN else ""
    return f"{what} {', '.join(shown[:_KEYS_SHOWN]) or '(none)'}{more}"


def _unknown(file: Path, content: str) -> UsageError:
    return UsageError(
        f"The file {file} is no checkpoint that can be converted: it holds {content}. Pass one that has "
        "actor_state_dict and critic_state_dict, or a model_state_dict with an actor and a critic."
    )


def write_plain_checkpoint(state: dict[str, Any], file: Path) -> list[str]:
    """Write a checkpoint that loads without running code, whole or not at all; return the names of dropped values.

    Values that are neither tensors nor plain are dropped. `iter` and `infos`, which rsl_rl requires, are added.

    Raises:
        ShoalError: The file could not be written.
    """
    dropped: list[str] = []
    buffer = io.BytesIO()
    torch.save({"iter": 0, "infos": None} | _plain(state, "", dropped), buffer)
    with refusing_os_errors(f"{file} could not be written", "make room, or pass another --output", ShoalError):
        folder_of(file).write(file, buffer.getbuffer())
    return dropped


def _plain(value: Any, name: str, dropped: list[str]) -> Any:  # noqa: ANN401
    """Return a value made of tensors and plain values of exactly these types.

    Subclasses, such as numpy's floats, are pickled by the name of their class.
    """
    if value is None or isinstance(value, bool):
        return value
    kinds: Any = ((str, str), (Integral, int), (Real, float))
    for kind, plain in kinds:
        if isinstance(value, kind):
            return plain(value)
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
