"""Checks for NaN and infinity: in a rollout before the update, in the weights after it, and in the simulation.

Each check synchronises with the device once, so it runs once an iteration and never in a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def magnitudes_of(observations: Observations) -> dict[str, torch.Tensor]:
    """Return the largest magnitude in each observation group of each environment, as (num_envs,) on its device.

    Not finite where any number is not; and unlike a sum it is finite where all numbers are.
    """
    return {
        f"The observation group '{name}'": torch.linalg.vector_norm(rows.reshape(len(rows), -1), torch.inf, dim=1)
        for name, rows in observations.items()
        if rows.is_floating_point()
    }


def refuse_non_finite_rollout(env: TrainingEnv, magnitudes: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Stop before a rollout of `env` with NaN or infinity in it reaches the gradients.

    `magnitudes` are those of rewards and observations, (num_envs,) by name, in the order in which steps returned them.
    Of what is not finite the first is the cause, and of two in one step the observations: rewards follow from states.

    Raises:
        TrainingFailedError: Names the first non-finite value, and its environments.
    """
    returned = [each for step in magnitudes for each in step.items()]
    if not returned or bool(torch.cat([rows for _, rows in returned]).isfinite().all()):
        return
    what, rows = next((what, rows) for what, rows in returned if not rows.isfinite().all())
    envs: list[int] = (~rows.isfinite()).nonzero().flatten().tolist()
    remedy = env.dump_diverged(env.iteration) if env.dump_diverged else None
    raise TrainingFailedError(
        f"{what} of environments {shown(envs)} on rank {env.world.rank} held NaN or infinity in iteration "
        f"{env.iteration}, and no gradient step was taken from it. {remedy or _NO_DUMP}; --resume goes on from the "
        "last checkpoint, if there is one."
    )


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
        f"--env.lost-limit {limit:g} allows. {cause or _PHYSICS}, or pass --env.on-nan stop to stop at the first."
    )
