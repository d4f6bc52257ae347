"""NaN and infinity, found before they spread: in a rollout before its gradients, in the weights before they act.

Each look waits for the device once, so it is taken once an iteration and never in a step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from shoal.errors import TrainingFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

_NO_DUMP = "Look at that task's dynamics, or lower its time step"

BORNE = 3
"""Losses in an iteration that are no reason to stop."""

_NAMED_AT_MOST = 8  # environments in a message


def refuse_non_finite_rollout(
    storage: RolloutStorage,
    newest: TensorDict,
    *,
    rank: int,
    iteration: int,
    keep_lost: Callable[[int], str | None] | None = None,
) -> None:
    """Stop before a full rollout with NaN or infinity in it reaches the gradients.

    Args:
        storage: The rollout: the observations that were acted on, and the rewards.
        newest: The observations after the last step; the returns are computed from them too.
        rank: This rank, for the message.
        iteration: The iteration that runs, counted from 1, for the message.
        keep_lost: See `Runner.train`.

    Raises:
        TrainingFailedError: Names what came first, and the environments concerned.
    """
    seen = [*storage.observations.values(), *newest.values(), storage.rewards]
    # Finite numbers may have an infinite sum; that costs a closer look and nothing more.
    sums = [values.sum(dtype=torch.float32) for values in seen if values.is_floating_point()]
    if bool(torch.stack(sums).isfinite().all()):
        return
    found = _first_non_finite(storage, newest)
    if found is None:
        return
    what, envs = found
    shown = ", ".join(map(str, envs[:_NAMED_AT_MOST])) + (", ..." if len(envs) > _NAMED_AT_MOST else "")
    remedy = keep_lost(iteration) if keep_lost else None
    message = (
        f"{what} of environments {shown} on rank {rank} held NaN or infinity in iteration {iteration}, and no "
        f"gradient step was taken. {remedy or _NO_DUMP}; --resume goes on from the last checkpoint, if there is one."
    )
    raise TrainingFailedError(message)


def _first_non_finite(storage: RolloutStorage, newest: TensorDict) -> tuple[str, list[int]] | None:
    """Return what held NaN or infinity first, and in which environments: NaN spreads, and the first is the cause."""
    # Row r of each holds what step r-1 returned. (num_steps + 1, num_envs, ...)
    rollout: dict[str, torch.Tensor] = {**storage.observations}
    latest: dict[str, torch.Tensor] = {**newest}
    returned = {
        f"The observation group '{name}'": torch.cat([values, latest[name].unsqueeze(0)])
        for name, values in rollout.items()
    }
    returned["The rewards"] = torch.cat([torch.zeros_like(storage.rewards[:1]), storage.rewards])
    bad = {what: ~values.isfinite().reshape(*values.shape[:2], -1).all(dim=2) for what, values in returned.items()}
    first = {what: int(rows.any(dim=1).nonzero()[0]) for what, rows in bad.items() if rows.any()}
    if not first:
        return None
    what = min(first, key=lambda each: first[each])  # Of two in one step the observation: rewards follow from states.
    return what, bad[what][first[what]].nonzero().flatten().tolist()


def refuse_non_finite_update(optimizer: torch.optim.Optimizer, losses: Mapping[str, float], *, iteration: int) -> None:
    """Stop before weights that an update has spoiled are acted upon, or saved.

    Gradients are averaged over ranks, so with pooled losses it happens to all ranks or to none.

    Args:
        optimizer: Holds the weights.
        losses: Mean losses of the update over all ranks, if it came to its end. An infinite one leaves the weights
            alone, since gradients are cut to length; from there on nothing would be learned, without a word.
        iteration: The iteration that runs, counted from 1, for the message.

    Raises:
        TrainingFailedError: Some loss or weight is not finite.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    spoiled = not torch.nn.utils.get_total_norm(weights).isfinite()
    if not spoiled and all(math.isfinite(loss) for loss in losses.values()):
        return
    told = ", ".join(f"{name} {value:.3g}" for name, value in losses.items()) or "in the middle of its update"
    message = (
        f"Learning diverged in iteration {iteration}: {'the weights are' if spoiled else 'a loss is'} NaN or infinite "
        f"({told}). Lower --agent.algorithm.learning-rate, or the size of the rewards; "
        "--resume goes on from the last checkpoint, if there is one."
    )
    raise TrainingFailedError(message)


def refuse_many_lost(lost: int, num_envs: int, limit: float, *, iteration: int) -> None:
    """Stop when too many environments were lost in one iteration: what is left to learn from is not the task.

    Args:
        lost: How often environments of all ranks were reset because their state was not finite.
        num_envs: Environments of all ranks.
        limit: Share of `num_envs` that may be lost. Unless it is 0, `BORNE` losses may be whatever their share: one of
            few environments would be too large a share, and tells nothing of the task.
        iteration: Iterations done, for the message.

    Raises:
        TrainingFailedError: There were more.
    """
    if lost <= max(limit * num_envs, BORNE if limit else 0):
        return
    message = (
        f"{lost:,} of {num_envs:,} environments were lost to NaN or infinity in iteration {iteration}, more than "
        f"--env.lost-limit {limit:g} allows. Look at the model's masses and gains, lower its time step, "
        "or pass --env.on-nan stop to stop at the first."
    )
    raise TrainingFailedError(message)
