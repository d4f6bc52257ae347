"""State of one rank in a checkpoint, beside the learner that all ranks share: environments and random states.

Rows belong to environments: physics, counters, commands, random states, sums of the running episodes, and the memory of
recurrent networks and of RND's reward normaliser. Random states of libraries belong to the rank.

The environments of a job are numbered rank by rank. Environment i of the checkpoint continues as environment i of the
resumed job, on whichever rank that is now. Further ones begin a first episode; with fewer, the last ones are left out.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.learn.checkpoints import read_rank_file
from shoal.plan.checkpoints import Checkpoint, rank_file
from shoal.reading import refusing

if TYPE_CHECKING:
    from shoal.envs.capabilities import Capabilities
    from shoal.learn.loop import TrainingLoop

logger = logging.getLogger(__name__)

_NUMPY_GENERATOR = "MT19937"
"""The generator behind NumPy's global state."""
_REMEDY = "pass --checkpoint to start a new run from its weights"


def restore_curriculum(environments: Capabilities, state: Mapping[str, Any]) -> None:
    """Let environments go on with the curriculum of a checkpoint, if it has one."""
    infos = state.get("infos")
    if isinstance(infos, dict) and (curriculum := infos.get("curriculum")):
        environments.set_curriculum({name: np.array(counts) for name, counts in curriculum.items()})


def collect_rows(loop: TrainingLoop) -> dict[str, torch.Tensor]:
    """Return the state of this rank's environments by name, without copies. Shapes (num_envs, ...).

    Empty for environments of others, which do not give their state.
    """
    rows = loop.capabilities.rows()
    if not rows:
        return {}
    memory = {f"memory/{name}": row for name, row in loop.learner.env_rows().items()}
    return {**{f"task/{name}": row for name, row in rows.items()}, **memory, "running": loop.statistics.running.T}


def _find_mismatch(loop: TrainingLoop, saved: Mapping[str, torch.Tensor]) -> str | None:
    """Return why saved rows do not fit this rank's environments; None if they do."""
    live = {name: row for name, row in collect_rows(loop).items() if not name.startswith("memory/")}
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


def _restore_rows(loop: TrainingLoop, saved: Mapping[str, torch.Tensor]) -> str | None:
    """Restore saved rows into the first environments of this rank, or return why they do not fit."""
    mismatch = _find_mismatch(loop, saved)
    if mismatch is not None:
        return mismatch
    loop.capabilities.put_rows(_below("task/", saved))
    count = len(saved["running"])
    loop.statistics.running[:, :count].copy_(saved["running"].T)
    loop.learner.put_env_rows(_below("memory/", saved), loop.env.num_envs)
    loop.num_resumed = count
    return None


def _below(prefix: str, rows: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the rows whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): row for name, row in rows.items() if name.startswith(prefix)}


def _size(row: torch.Tensor) -> str:
    return f"{'x'.join(map(str, row.shape[1:])) or 1} {str(row.dtype).removeprefix('torch.')}"


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
    """Restore random states that `random_state` has returned."""
    torch.set_rng_state(states["torch"])
    keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((_NUMPY_GENERATOR, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, words, python_gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), python_gauss))
    if device.startswith("cuda") and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def kept_random_state(device: str) -> Iterator[None]:
    """Restore the random states of this process after the body."""
    states = random_state(device)
    yield
    set_random_state(device, states)


def resume_environments(loop: TrainingLoop, checkpoint: Checkpoint) -> None:
    """Restore this rank's environments from a checkpoint, after the learner.

    With as many ranks and environments as in the checkpoint, random states are restored too, and the training continues
    exactly. Otherwise they stay as `shoal.worker` has seeded them.
    """
    manifest = checkpoint.manifest()
    ranks, each = manifest.get("world_size"), manifest.get("num_envs")
    rank, num_envs = loop.world.rank, loop.env.num_envs
    if ranks is None or each is None or not checkpoint.has_rank_files:
        mismatch = "the checkpoint has no environments, which --keep-rank-files keeps in the newest ones"
    else:
        goes_on = (ranks, each) == (loop.world.size, num_envs)
        first, end = rank * num_envs, min((rank + 1) * num_envs, ranks * each)
        with refusing(checkpoint.path / rank_file(rank) if goes_on else checkpoint.path, _REMEDY):
            files = [checkpoint.path / rank_file(number) for number in range(first // each, -(-end // each))]
            states = [read_rank_file(file, each) for file in files]
            begin = first // each * each
            mismatch = _restore_rows(loop, _joined(states, first - begin, end - begin)) if states else None
            if goes_on and mismatch is None:
                set_random_state(loop.world.device, states[0]["random"])
    if mismatch is not None and loop.world.is_first:
        logger.warning("All environments begin new episodes: %s.", mismatch)


def _joined(states: Sequence[Mapping[str, Any]], first: int, end: int) -> dict[str, torch.Tensor]:
    """Return the rows from `first` up to `end` of neighbouring ranks, whose states are given."""
    # Ranks of one job save the same names, except for memory that a recurrent network has not used yet.
    names = states[0]["rows"]
    return {name: torch.cat([state["rows"][name] for state in states])[first:end] for name in names}
