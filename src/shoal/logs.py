"""Logging: format, level and rank prefix of Shoal's own log lines."""

import logging
import sys
from typing import TextIO

_OUR_LOGGER = "shoal"


class _NewestStderr(logging.StreamHandler):  # pyright: ignore[reportMissingTypeArgument]
    """Writes to the present `sys.stderr`, which a live view on a terminal replaces for a while."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _stream: TextIO) -> None:
        """Ignore the base class, which sets it once."""


class _RankFormatter(logging.Formatter):
    """Prefixes each line with the rank."""

    def __init__(self, rank: int | None) -> None:
        prefix = "" if rank is None else f"[rank {rank}] "
        super().__init__(f"%(asctime)s %(levelname).1s {prefix}%(message)s", datefmt="%H:%M:%S")


def configure_logging(*, rank: int | None = None, level: int | None = None) -> None:
    """Send Shoal's log lines to standard error, each with the rank; None in a process that is no worker.

    `level` is the lowest level to show: by default INFO, and DEBUG on other ranks than 0, whose lines go to files.
    """
    handler = _NewestStderr()
    handler.setFormatter(_RankFormatter(rank))
    logger = logging.getLogger(_OUR_LOGGER)
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(level if level is not None else logging.DEBUG if rank else logging.INFO)
