"""What an environment may offer to the learner beside rsl_rl's `VecEnv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


class Capabilities:
    """Base class of environments with state, warnings or a curriculum. The defaults are those of foreign ones."""

    episode_terms: tuple[str, ...] = ()
    """Names of the columns of ``extras["episode_sums"]``."""
    terminations: tuple[str, ...] = ()
    """Names of the columns of ``extras["done_terms"]``."""
    best_metric: str | None = None
    """The logged metric that scores checkpoints. None: the mean return, or with a curriculum nothing."""

    def take_warnings(self) -> tuple[int, dict[str, str]]:
        """Return the number of divergences since the last call, and warnings: a sentence by kind."""
        return 0, {}

    def curriculum(self) -> Mapping[str, np.ndarray]:
        """Return the state of the curriculum: counts of environments by name."""
        return {}

    def set_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Restore counts that were added up over all ranks."""

    def rows(self) -> Mapping[str, torch.Tensor]:
        """Return all that the next step depends on, live, by name. Shapes (num_envs, ...). Empty where unknown."""
        return {}

    def put_rows(self, rows: Mapping[str, torch.Tensor]) -> None:
        """Restore rows of the first environments; the others keep theirs."""

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Begin a new episode in every environment, see `KernelTask.restart`."""


def capabilities_of(env: object) -> Capabilities:
    """Return the environment itself, or the defaults if it is a foreign one."""
    return env if isinstance(env, Capabilities) else Capabilities()
