"""What environments may offer beside rsl_rl's `VecEnv`, and what is missing without it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from shoal.errors import NoPictureError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from shoal.sim.nan.dump import Dump
    from shoal.sim.render.rows import Picture
    from shoal.sim.task import CommandRange

BAD_REWARD = "bad reward"
"""Kind of the warning that names a reward term that was not finite, though the state was."""


class Capabilities:
    """Base class of environments that offer more than rsl_rl's `VecEnv`. The defaults are those of other ones."""

    episode_terms: tuple[str, ...] = ()
    """Names of the columns of ``extras["episode_sums"]``."""
    terminations: tuple[str, ...] = ()
    """Names of the columns of ``extras["done_terms"]``."""
    observation_terms: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    """Columns of each observation term by group, in their order. Empty where unknown."""
    metrics: tuple[str, ...] = ()
    """Names of the tensors of shape (num_envs,) in ``extras["log"]``, where ``Metrics/`` stands before them."""
    best_metric: str | None = None
    """The logged metric that scores checkpoints. None: the mean return, or with a curriculum nothing."""
    can_restart: bool = False
    """Whether `restart` begins the same episodes again for the same seed."""

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Begin a new episode in every environment, see `Task.restart`."""

    def take_warnings(self) -> tuple[int, dict[str, str]]:
        """Return the number of environments that diverged since the last call, and warnings: a sentence by kind."""
        return 0, {}

    def dump(self, name: str, *, rank: int, iteration: int) -> Dump | None:
        """Return the last steps of the environments that diverged, see `Task.dump`. None if they are not kept."""
        del name, rank, iteration

    def curriculum(self) -> Mapping[str, np.ndarray]:
        """Return the state of the curriculum: counts of environments by name."""
        return {}

    def set_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Restore counts that were added up over all ranks."""

    def follow_metrics(self, means: Mapping[str, float]) -> None:
        """Follow the metrics of an iteration of the training, see `Task.follow_metrics`."""

    def rows(self) -> Mapping[str, torch.Tensor]:
        """Return all that the next step depends on, live, by name. Shapes (num_envs, ...). Empty where unknown."""
        return {}

    def put_rows(self, rows: Mapping[str, torch.Tensor]) -> None:
        """Restore rows of the first environments; the others keep theirs."""

    def keep_final_observations(self) -> None:
        """Give ``extras["final_observation"]``, a tensor for each group, from now on: the last ones where `dones`.

        Raises:
            UsageError: These environments do not keep them.
        """
        raise UsageError(
            "The learner needs the last observations of each episode, which these environments do not keep "
            '(extras["final_observation"]): train with another --learner.'
        )

    def picture(self) -> Picture:
        """Return what videos and viewers draw.

        Raises:
            NoPictureError: There is no picture.
        """
        raise NoPictureError("These environments have no picture(): they can be trained and evaluated, and not shown.")

    def commands(self) -> tuple[Mapping[str, CommandRange], torch.Tensor | None]:
        """Return name and range of each command to the policy, and their live tensor, (num_envs, number of them).

        A viewer writes it before each step, see `hold_commands`.
        """
        return {}, None

    def hold_commands(self, *, held: bool) -> None:
        """Leave the commands as a viewer has written them, or draw and update them again."""

    def records(self) -> Mapping[str, torch.Tensor]:
        """Return what is recorded of the present state beside observations and actions. Shapes (num_envs, columns)."""
        return {}

    def deployment(self) -> Mapping[str, Any]:
        """Return what a controller needs beside the network, by name, see `Task.deployment`."""
        return {}


COSTS: Mapping[str, str] = {
    "rows": "a resumed run begins new episodes",
    "can_restart": "evaluations are not repeated exactly, and --eval-interval is not offered",
    "episode_terms": "returns are not split by reward terms",
    "picture": "no videos and no viewer",
    "deployment": "an exported policy has no names of joints and observations",
}
"""What is lost without a capability."""


def capabilities_of(env: object) -> Capabilities:
    """Return the environment itself, or the defaults if it does not derive from `Capabilities`."""
    return env if isinstance(env, Capabilities) else Capabilities()


def costs_of(env: object) -> list[str]:
    """Return what is lost with an environment, a phrase for each capability that it does not have."""
    found, plain = capabilities_of(env), Capabilities()
    return [cost for name, cost in COSTS.items() if _is_default(getattr(found, name), getattr(plain, name))]


def _is_default(value: object, default: object) -> bool:
    """Whether a value, or a method, is that of `Capabilities`."""
    if inspect.ismethod(value) and inspect.ismethod(default):
        return value.__func__ is default.__func__
    return value == default
