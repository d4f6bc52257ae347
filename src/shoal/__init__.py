"""Shoal: one command trains a robot policy on the CPU, on one GPU, or on every GPU there is."""

import contextlib
import os
import sys

__version__ = "0.1.0"

PARENT = os.getppid()
"""The process that started this one. It is read before anything that takes seconds: a parent may end meanwhile."""

PYTHON = (sys.executable, "-P")
"""The first words of a process that finds modules where this one does. Without `-P` Python would look for them in the
working directory first, where a file may have the name of a library."""

with contextlib.suppress(OSError):  # The working directory is gone.
    if {"", os.getcwd()} & {*sys.path}:  # noqa: PTH109  pathlib is not needed for this.
        PYTHON = (sys.executable,)
