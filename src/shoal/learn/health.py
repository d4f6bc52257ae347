"""Checks for NaN and infinity: in a rollout before the update, in the weights after it, and in the simulation.

Each check synchronises with the device once, so it runs once an iteration and never in a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from shoal.errors import TrainingFailedError, shown

if TYPE_CHECKING:
    from tensordict import TensorDict

    from shoal.learn.training_env import TrainingEnv

    Observations = Mapping[str, torch.Tensor] | TensorDict

_NO_DUMP = "Look at that task's dynamics, or lower its time step"

_PHYSICS = "Look at the model's masses and gains, lower its time step"

ALLOWED_DIVERGED = 3
"""Diverged environments in an iteration that do not stop a training."""


def refuse_non_finite_rollout(
    env: TrainingEnv, observations: Observations, rewards: torch.Tensor, newest: Observations
) -> None:
    """Stop before a full rollout of `env` with NaN or infinity in it reaches the gradients.

    Rewards, and observations by group, have the shape (num_steps, num_envs, ...). The returns are computed from
    `newest` too, the observations after the last step.

    Raises:
        TrainingFailedError: Names the first non-finite value, and its environments.
    """
    values = [*observations.values(), *newest.values(), rewards]
    # Finite numbers may have an infinite sum; that costs the detailed check below and nothing more.
    sums = [each.sum(dtype=torch.float32) for each in values if each.is_floating_point()]
    if bool(torch.stack(sums).isfinite().all()):
        return
    found = _first_non_finite(observations, rewards, newest)
    if found is None:
        return
    what, envs = found
    remedy = env.dump_diverged(env.iteration) if env.dump_diverged else None
    raise TrainingFailedError(
        f"{what} of environments {shown(envs)} on rank {env.world.rank} held NaN or infinity in iteration "
        f"{env.iteration}, and no gradient step was taken. {remedy or _NO_DUMP}; --resume goes on from the last "
        "checkpoint, if there is one."
    )


def _first_non_finite(
    observations: Observations, rewards: torch.Tensor, newest: Observations
) -> tuple[str, list[int]] | None:
    """Return the value that was the first with NaN or infinity, which is the cause, and its environments."""
    # Row r of each holds what step r-1 returned. (num_steps + 1, num_envs, ...)
    rollout: dict[str, torch.Tensor] = {**observations}
    latest: dict[str, torch.Tensor] = {**newest}
    returned = {
        f"The observation group '{name}'": torch.cat([values, latest[name].unsqueeze(0)])
        for name, values in rollout.items()
    }
    returned["The rewards"] = torch.cat([torch.zeros_like(rewards[:1]), rewards])
    bad = {what: ~values.isfinite().reshape(*values.shape[:2], -1).all(dim=2) for what, values in returned.items()}
    first = {what: int(rows.any(dim=1).nonzero()[0]) for what, rows in bad.items() if rows.any()}
    if not first:
        return None
    what = min(first, key=lambda each: first[each])  # Of two in one step the observation: rewards follow from states.
    return what, bad[what][first[what]].nonzero().flatten().tolist()


def refuse_non_finite_update(optimizer: torch.optim.Optimizer, losses: Mapping[str, float], *, iteration: int) -> None:
    """Stop before non-finite weights are used or saved.

    Gradients are averaged and losses pooled over ranks, so all ranks stop or none. With an infinite loss the weights
    stay finite, as gradients are clipped, but nothing is learned any more. `losses` are empty if the update failed.

    Raises:
        TrainingFailedError: Some loss or weight is not finite.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    has_bad_weights = not torch.nn.utils.get_total_norm(weights).isfinite()
    if not has_bad_weights and all(math.isfinite(loss) for loss in losses.values()):
        return
    values = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items()) or "in the middle of its update"
    raise TrainingFailedError(
        f"Learning diverged in iteration {iteration}: {'the weights are' if has_bad_weights else 'a loss is'} NaN or "
        f"infinite ({values}). Lower --agent.algorithm.learning-rate, or the size of the rewards; "
        "--resume goes on from the last checkpoint, if there is one."
    )


def refuse_many_diverged(
    diverged: int, num_envs: int, limit: float, *, iteration: int, cause: str | None = None
) -> None:
    """Stop when more than `limit` of all environments diverged in one iteration.

    Unless the limit is 0, `ALLOWED_DIVERGED` are always allowed: one of few environments is a large fraction, and says
    little about the task. `cause` is known where a reward was not finite, and else it is the physics.

    Raises:
        TrainingFailedError: There were more.
    """
    if diverged <= max(limit * num_envs, ALLOWED_DIVERGED if limit else 0):
        return
    raise TrainingFailedError(
        f"{diverged:,} of {num_envs:,} environments diverged to NaN or infinity in iteration {iteration}, more than "
        f"--env.lost-limit {limit:g} allows. {cause or _PHYSICS}, or pass --env.on-nan stop to stop at the first."
    )
