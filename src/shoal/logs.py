"""How Shoal's own log lines look and where they go.

Modules log through `logging.getLogger(__name__)`; this module alone decides formats, levels and the rank prefix.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

_OUR_LOGGER = "shoal"


class _NewestStderr(logging.StreamHandler):  # pyright: ignore[reportMissingTypeArgument]
    """Writes to what standard error is at that moment: a live view on a terminal takes its place for a while."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _stream: TextIO) -> None:
        """Take no notice: the base class sets it once."""


class _RankFormatter(logging.Formatter):
    """Puts the rank before each line, so that files of many ranks can be read side by side."""

    def __init__(self, rank: int | None) -> None:
        prefix = "" if rank is None else f"[rank {rank}] "
        super().__init__(f"%(asctime)s %(levelname).1s {prefix}%(message)s", datefmt="%H:%M:%S")


def configure_logging(*, rank: int | None = None, level: int | None = None) -> None:
    """Send Shoal's log lines to standard error.

    Args:
        rank: The rank to name on each line, or None in a process that is no worker.
        level: The least level to show. By default rank 0 and the launching process speak at INFO; the other
            ranks, whose lines go to files, at DEBUG.
    """
    handler = _NewestStderr()
    handler.setFormatter(_RankFormatter(rank))
    logger = logging.getLogger(_OUR_LOGGER)
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(level if level is not None else logging.DEBUG if rank else logging.INFO)
