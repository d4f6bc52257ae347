"""Going on with the environments of a checkpoint: exactly where nothing has changed, dealt again where it has.

All environments of a job are in one row, rank by rank. Environment i of the checkpoint goes on as environment i of the
resumed job, on whichever rank that is now. If there are more of them now, those that are new begin a first episode; if
there are fewer, the last ones are left out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from shoal.learn.checkpoints import read_rank_file
from shoal.learn.state import misfit, put_rows, set_random_state
from shoal.plan.checkpoints import Checkpoint, rank_file

if TYPE_CHECKING:
    from shoal.learn.runner import Runner

logger = logging.getLogger(__name__)


def resume_environments(runner: Runner, checkpoint: Checkpoint) -> None:
    """Give this rank's environments the states of a checkpoint, as far as it has them. The learner has been restored.

    With as many ranks and environments as in the checkpoint, random states go on too, and with them the whole training.
    Otherwise they begin anew; `shoal.worker` has seeded them.
    """
    told = checkpoint.manifest()
    ranks, each = told.get("world_size"), told.get("num_envs")
    if ranks is None or each is None or not checkpoint.has_rank_files:
        _say(runner, "the checkpoint has no environments, which --keep-rank-files keeps in the newest ones")
        return
    here = runner.env.num_envs
    if (ranks, each) == (runner.world.size, here):
        own = read_rank_file(checkpoint.path / rank_file(runner.world.rank))
        why = misfit(runner, own["rows"])
        if why is None:
            put_rows(runner, own["rows"])
            set_random_state(runner.world.device, own["random"])
            runner.num_resumed = here
        else:
            _say(runner, why)
        return
    first = runner.world.rank * here
    rows = _dealt(checkpoint, first, min(first + here, ranks * each), each)
    why = misfit(runner, rows) if rows else None
    if why is not None:
        _say(runner, why)
    elif rows:
        put_rows(runner, rows)
        runner.num_resumed = len(rows["running"])


def _dealt(checkpoint: Checkpoint, first: int, end: int, each: int) -> dict[str, torch.Tensor]:
    """Return the rows of the environments from `first` up to `end` of all; empty where there are none."""
    shares: list[dict[str, torch.Tensor]] = []
    for rank in range(first // each, -(-end // each)):
        rows: dict[str, Any] = read_rank_file(checkpoint.path / rank_file(rank))["rows"]
        begin = rank * each
        shares.append({name: row[max(first - begin, 0) : end - begin] for name, row in rows.items()})
    if not shares:
        return {}
    # Ranks of one job save the same names, but for what a recurrent network has not yet begun to remember.
    return {name: torch.cat([share[name] for share in shares]) for name in shares[0]}


def _say(runner: Runner, why: str) -> None:
    if runner.world.is_first:
        logger.warning("All environments begin new episodes: %s.", why)
