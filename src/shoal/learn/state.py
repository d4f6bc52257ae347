"""What one rank must keep, beside the learner that all share, to go on as if the training had never stopped.

Rows belong to environments: physics, counters, commands, random states, sums of the episodes that run, and what
recurrent networks and RND's reward normaliser remember. They can be dealt again to another number of ranks. Random
states of libraries belong to the rank.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.learn.runner import Runner

_NUMPY = "MT19937"
"""The generator behind NumPy's global state."""


def rows_of(runner: Runner) -> dict[str, torch.Tensor]:
    """Return everything that belongs to environments, live, by name. Shapes (num_envs, ...).

    Empty where the environment cannot say what its next step depends on, as those of others cannot.
    """
    rows = runner.capabilities.rows()
    if not rows:
        return {}
    remembered = {
        f"memory/{who}/{index}": part.transpose(0, 1)
        for who, model in (("actor", runner.alg.actor), ("critic", runner.alg.critic))
        for index, part in enumerate(_parts(model.get_hidden_state()))
    }
    curiosity = _discounted_curiosity(runner)
    if curiosity is not None and curiosity.avg is not None:
        remembered["memory/curiosity"] = curiosity.avg
    return {**{f"task/{name}": row for name, row in rows.items()}, **remembered, "running": runner.statistics.running.T}


def misfit(runner: Runner, saved: Mapping[str, torch.Tensor]) -> str | None:
    """Say why saved rows cannot be those of this rank's environments; None where they can."""
    live = {name: row for name, row in rows_of(runner).items() if not name.startswith("memory/")}
    saved = {name: row for name, row in saved.items() if not name.startswith("memory/")}
    if not live:
        return "the environment does not say what its next step depends on"
    if not saved:
        return "the checkpoint has no environments"
    for name in sorted(live.keys() ^ saved.keys()):
        return f"'{name}' is only in {'this training' if name in live else 'the checkpoint'}"
    for name, row in live.items():
        if row.shape[1:] != saved[name].shape[1:] or row.dtype != saved[name].dtype:
            return f"'{name}' has rows of {_size(row)} here, and of {_size(saved[name])} in the checkpoint"
    return None


def put_rows(runner: Runner, saved: Mapping[str, torch.Tensor]) -> None:
    """Give the first environments of this rank the rows that were saved. `misfit` has been asked."""
    task = {name.removeprefix("task/"): row for name, row in saved.items() if name.startswith("task/")}
    runner.capabilities.put_rows(task)
    runner.statistics.running[:, : len(saved["running"])].copy_(saved["running"].T)
    for who, model in (("actor", runner.alg.actor), ("critic", runner.alg.critic)):
        parts = [row for name, row in sorted(saved.items()) if name.startswith(f"memory/{who}/")]
        if parts and model.is_recurrent:
            hidden: Any = _hidden(parts, runner.env.num_envs, runner.world.device)
            model.reset(hidden_state=hidden)
    curiosity, sums = _discounted_curiosity(runner), saved.get("memory/curiosity")
    if curiosity is not None and sums is not None:
        curiosity.avg = torch.zeros(runner.env.num_envs, dtype=sums.dtype, device=runner.world.device)
        curiosity.avg[: len(sums)] = sums


def _discounted_curiosity(runner: Runner) -> Any:  # noqa: ANN401  A class that rsl_rl keeps to itself.
    """Return what holds, as `avg`, each environment's discounted sum of rewards for what is new.

    They are what RND's reward normaliser learns from, and rsl_rl saves its moments alone.
    """
    return getattr(runner.alg.rnd.reward_normalizer, "disc_avg", None) if runner.alg.rnd else None


def random_state(device: str) -> dict[str, Any]:
    """Return the random states of this process as plain values and tensors."""
    _, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002  User code may draw from it.
    version, words, python_gauss = random.getstate()
    states = {
        "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(gauss)],
        "python": [version, torch.tensor(words), python_gauss],
    }
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.startswith("cuda") else {})


def set_random_state(device: str, states: Mapping[str, Any]) -> None:
    """Go on with random states that `random_state` has returned."""
    torch.set_rng_state(states["torch"])
    keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((_NUMPY, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, words, python_gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), python_gauss))
    if device.startswith("cuda") and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _parts(hidden: torch.Tensor | tuple[torch.Tensor, ...] | None) -> tuple[torch.Tensor, ...]:
    """Return what a recurrent network remembers, (num_layers, num_envs, size) each: one tensor, two of an LSTM."""
    if hidden is None:
        return ()
    return hidden if isinstance(hidden, tuple) else (hidden,)


def _hidden(parts: list[torch.Tensor], num_envs: int, device: str) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return what `_parts` has taken apart, with nothing for environments that are new."""
    whole = []
    for part in parts:
        memory = torch.zeros(part.shape[1], num_envs, part.shape[2], dtype=part.dtype, device=device)
        memory[:, : len(part)] = part.transpose(0, 1)
        whole.append(memory)
    return whole[0] if len(whole) == 1 else tuple(whole)


def _size(row: torch.Tensor) -> str:
    return f"{'x'.join(map(str, row.shape[1:])) or 1} {str(row.dtype).removeprefix('torch.')}"
