"""What `shoal replay` is asked: which file, and which of its environments."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.config.checks import refuse_no_mp4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """The steps that led to the loss of one environment."""

    file: str
    """What a training left when it stopped: `<run>/ranks/rank_00000.lost.npz`."""
    env: int | None = None
    """The environment, by its index on its rank. Default: the one that was lost first."""
    video: str | None = None
    """Film it, in slow motion, into this mp4."""

    def __post_init__(self) -> None:
        """Refuse what is no film.

        Raises:
            UsageError: It has another suffix.
        """
        refuse_no_mp4(self.video)
