"""Where Shoal's own log lines go."""

from __future__ import annotations

import contextlib
import io
import logging

from shoal.logs import configure_logging


def test_lines_go_to_what_standard_error_is_when_they_are_written() -> None:
    configure_logging()
    later = io.StringIO()
    with contextlib.redirect_stderr(later):
        logging.getLogger("shoal.somewhere").warning("rank %d is slow", 3)
    assert later.getvalue().endswith(" W rank 3 is slow\n")
