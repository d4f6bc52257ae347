"""Checks for NaN and infinity: in the weights after an update, and in the simulation. `TrainingEnv` checks rollouts.

Each check synchronises with the device once, so it runs once an iteration and never in a step.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from shoal.errors import TrainingFailedError

_PHYSICS = "Look at the model's masses and gains, lower its time step"

ALLOWED_DIVERGED = 3
"""Diverged environments in an iteration that do not stop a training."""


def refuse_non_finite_update(
    weights: Sequence[torch.Tensor], losses: Mapping[str, float], *, iteration: int, flag: str | None
) -> None:
    """Stop before non-finite weights are used or saved. `flag` sets the learning rate, if the learner has such a flag.

    Gradients are averaged and losses pooled over ranks, so all ranks stop or none. With an infinite loss the weights
    stay finite, as gradients are clipped, but nothing is learned any more. `losses` are empty if the update failed.

    Raises:
        TrainingFailedError: Some loss or weight is not finite.
    """
    has_bad_weights = not torch.nn.utils.get_total_norm(weights).isfinite()
    if not has_bad_weights and all(math.isfinite(loss) for loss in losses.values()):
        return
    values = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items()) or "in the middle of its update"
    raise TrainingFailedError(
        f"Learning diverged in iteration {iteration}: {'the weights are' if has_bad_weights else 'a loss is'} NaN or "
        f"infinite ({values}). Lower {flag or 'the learning rate'}, or the size of the rewards; "
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
        f"--env.diverged-limit {limit:g} allows. {cause or _PHYSICS}, or pass --env.on-nan stop to stop at the first."
    )
