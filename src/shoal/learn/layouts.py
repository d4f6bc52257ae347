"""The layouts that rsl_rl has given its checkpoints, and how the older ones become that of rsl_rl 5.

Names only; no tensor changes. mjlab and Isaac Lab leave saving to rsl_rl, so the layout of a file of theirs follows
from the rsl_rl that they were used with:

- 5: `actor_state_dict` and `critic_state_dict`. Shoal writes this one.
- 4: the same, but the actions' deviation is the actor's own `std` or `log_std`.
- 1 to 3: both networks are one `model_state_dict`. Normalisers are in it, or, in older versions, beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_DEVIATION = {"std": "distribution.std_param", "log_std": "distribution.log_std_param"}

_PARTS = {
    "actor.": ("actor", "mlp."),
    "critic.": ("critic", "mlp."),
    "memory_a.": ("actor", "rnn."),
    "memory_c.": ("critic", "rnn."),
    "actor_obs_normalizer.": ("actor", "obs_normalizer."),
    "critic_obs_normalizer.": ("critic", "obs_normalizer."),
}
"""Where the parts of a `model_state_dict` belong, and what they are called there."""

_NORMALISERS = {
    "obs_norm_state_dict": "actor",
    "privileged_obs_norm_state_dict": "critic",
    "critic_obs_norm_state_dict": "critic",
}
"""Whose the normalisers beside a `model_state_dict` are. The last is the oldest name."""

_OF_ALL = ("iter", "infos")
_OF_5 = ("optimizer_state_dict", "rnd_state_dict", "rnd_optimizer_state_dict")
"""What version 5 may have beside the two networks."""

_COUNT = 1_000_000
"""How many observations a normaliser is taken to have seen that does not say so. Actions do not depend on it. With 0
the first observations of a training would replace all that went before, and with too many it would never learn again;
this is about ten iterations of a usual training."""

_KEYS_TOLD = 8
"""Keys of a file that are named in a refusal."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """A checkpoint in the layout of rsl_rl 5."""

    layout: str
    """The layout that it came in."""
    state: dict[str, Any]
    notes: tuple[str, ...]
    """A sentence about each thing that is not as it was."""


def in_current_layout(saved: object, file: Path) -> Renamed:
    """Give a checkpoint the layout of rsl_rl 5.

    Args:
        saved: What the file holds.
        file: Its name, for refusals.

    Raises:
        UsageError: It is in none of the layouts.
    """
    if not isinstance(saved, dict):
        raise _unknown(file, f"a {type(saved).__name__}")
    actor, critic, merged = (saved.get(f"{name}_state_dict") for name in ("actor", "critic", "model"))
    if _are_parameters(actor) and _are_parameters(critic):
        version = "4" if _DEVIATION.keys() & actor.keys() else "5"
        networks = {"actor": {_DEVIATION.get(key, key): value for key, value in actor.items()}, "critic": critic}
        taken = {"actor_state_dict", "critic_state_dict"}
    elif _are_parameters(merged):
        version = "1 to 3"
        networks = _split(merged, saved, file)
        taken = {"model_state_dict", *_NORMALISERS}
    else:
        raise _unknown(file, _keys("the keys", saved))
    kept = [key for key in (*_OF_ALL, *(_OF_5 if version == "5" else ())) if key in saved]
    notes = [_why_left_out(key) for key in saved if key not in {*taken, *kept}]
    notes += [note for name, network in networks.items() if (note := _complete_normaliser(name, network))]
    state = {f"{name}_state_dict": network for name, network in networks.items()} | {key: saved[key] for key in kept}
    return Renamed(f"the layout of rsl_rl {version}", state, tuple(notes))


def _are_parameters(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _split(merged: dict[str, Any], saved: dict[Any, Any], file: Path) -> dict[str, dict[str, Any]]:
    """Return actor and critic of a `model_state_dict`, with the normalisers that are beside it."""
    networks: dict[str, dict[str, Any]] = {"actor": {}, "critic": {}}
    unknown = []
    for key, value in merged.items():
        part = key.partition(".")[0] + "."
        if key in _DEVIATION:
            networks["actor"][_DEVIATION[key]] = value
        elif part in _PARTS:
            name, renamed = _PARTS[part]
            networks[name][renamed + key.removeprefix(part)] = value
        else:
            unknown.append(key)
    if unknown or not all(networks.values()):
        raise _unknown(file, _keys("a model_state_dict with the keys", unknown or merged))
    for key, name in _NORMALISERS.items():
        beside = saved.get(key)
        if _are_parameters(beside):
            networks[name] |= {f"obs_normalizer.{part}": value for part, value in beside.items()}
    return networks


def _complete_normaliser(name: str, network: dict[str, Any]) -> str | None:
    """Add the count that the oldest versions did not save; return a sentence about it."""
    if "obs_normalizer._mean" not in network or "obs_normalizer.count" in network:
        return None
    network["obs_normalizer.count"] = torch.tensor(_COUNT)
    return f"The {name}'s normaliser does not say how many observations it has seen: {_COUNT:,} are assumed."


def _why_left_out(key: object) -> str:
    if key == "optimizer_state_dict":
        return "optimizer_state_dict was left out: it belongs to the order of parameters in the older layout."
    return f"{key!r} was left out: the layout of rsl_rl 5 has no place for it."


def _keys(what: str, keys: Iterable[object]) -> str:
    """Name some keys. They come from a file that anybody may have written, so they are quoted."""
    told = [repr(key) for key in keys]
    more = f" and {len(told) - _KEYS_TOLD} more" if len(told) > _KEYS_TOLD else ""
    return f"{what} {', '.join(told[:_KEYS_TOLD]) or '(none)'}{more}"


def _unknown(file: Path, holds: str) -> UsageError:
    message = (
        f"The file {file} is no checkpoint that can be converted: it holds {holds}. Pass one that has actor_state_dict "
        "and critic_state_dict, or a model_state_dict with an actor and a critic."
    )
    return UsageError(message)
