"""Logging: format, level and rank prefix of Shoal's own log lines."""

import logging
import sys


class _NewestStderr(logging.StreamHandler):  # pyright: ignore[reportMissingTypeArgument]
    """Writes to the present `sys.stderr`, which a live view on a terminal replaces for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure_logging(*, rank: int | None = None, level: int | None = None) -> None:
    """Send Shoal's log lines to standard error, each with the rank; None in a process that is no worker.

    `level` is the lowest level to show: by default INFO, and DEBUG on other ranks than 0, whose lines go to files.
    """
    handler = _NewestStderr()
    prefix = "" if rank is None else f"[rank {rank}] "
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname).1s {prefix}%(message)s", datefmt="%H:%M:%S"))
    logger = logging.getLogger("shoal")
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(level if level is not None else logging.DEBUG if rank else logging.INFO)
